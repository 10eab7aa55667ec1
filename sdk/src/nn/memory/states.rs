//! The states of recurrent layers within one step: which each sequence goes on from, and which have to be kept.

use candle_core::Tensor;

use super::{kv::no_table, pass::Pass};
use crate::{Error, Result, Table};

/// After which rows of a step a state has to be kept, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// The index of the span that it is a state of.
    pub span: usize,
    /// The row of the step that is the first not to be in it.
    pub end: usize,
    pub(in crate::nn) slot: u32,
}

impl Pass<'_> {
    /// The slots that the step's sequences go on from in a layer; none for those that begin.
    pub(in crate::nn) fn read_slots(&self, layer: usize) -> Result<Vec<Option<u32>>> {
        let group = self.kv.group(layer)?;
        let slot = |span: &crate::Span<'_>| match span.caches.get(group) {
            Some(Table::Slots { read, .. }) => Ok(*read),
            _ => Err(no_table()),
        };
        self.batch().spans.iter().map(slot).collect()
    }

    /// A part of the states that the step's sequences go on from: `[spans, values]`, zeros for those that begin.
    pub(in crate::nn) fn states(&self, layer: usize, part: usize) -> Result<Tensor> {
        let states = self.kv.states(layer, part)?;
        let (mut read, mut places) = (Vec::new(), Vec::with_capacity(self.batch().spans.len()));
        for slot in self.read_slots(layer)? {
            read.extend(slot);
            places.push(if slot.is_some() { read.len() as u32 } else { 0 });
        }
        let blank = Tensor::zeros((1, states.dim(2)?), states.dtype(), states.device())?;
        if read.is_empty() {
            return Ok(blank.repeat((places.len(), 1))?);
        }
        let ids = |ids: &[u32]| Tensor::new(ids, states.device());
        let read = states.index_select(&ids(&read)?, 1)?.squeeze(0)?;
        if !places.contains(&0) {
            return Ok(read);
        }
        Ok(Tensor::cat(&[blank, read], 0)?.index_select(&ids(&places)?, 0)?)
    }

    /// After which rows of the step a state of a layer has to be kept: span by span, in their order.
    pub(in crate::nn) fn state_writes(&self, layer: usize) -> Result<Vec<StateWrite>> {
        let group = self.kv.group(layer)?;
        let mut kept = Vec::with_capacity(self.batch().spans.len());
        for (index, span) in self.batch().spans.iter().enumerate() {
            let Some(Table::Slots { write, copies, .. }) = span.caches.get(group) else { return Err(no_table()) };
            let row = |after: usize| span.start + after - span.past;
            kept.extend(copies.iter().map(|copy| StateWrite { span: index, end: row(copy.after), slot: copy.slot }));
            kept.push(StateWrite { span: index, end: span.start + span.len, slot: *write });
        }
        Ok(kept)
    }

    /// Keeps a part of states, one row of `states` for each of `kept`.
    pub(in crate::nn) fn write_states(
        &self,
        layer: usize,
        part: usize,
        kept: &[StateWrite],
        states: &Tensor,
    ) -> Result<()> {
        let (group, memory) = (self.kv.group(layer)?, self.kv.states(layer, part)?);
        let (count, values) = (kept.len(), memory.dim(2)?);
        if states.dims() != [count, values] {
            let dims = states.dims();
            return Err(Error::invalid(format!(
                "states of {dims:?} where layer {layer} keeps {count} of {values} values"
            )));
        }
        let key = (self.kv.place(layer)?, group, values);
        let known = self.prepared.borrow().kept.get(&key).cloned();
        let targets = match known {
            Some(targets) => targets,
            None => {
                let slots: Vec<u32> = kept.iter().map(|one| one.slot).collect();
                let slots = Tensor::new(&slots[..], memory.device())?.reshape((1, count, 1))?;
                let targets = slots.broadcast_as((1, count, values))?.contiguous()?;
                self.prepared.borrow_mut().kept.insert(key, targets.clone());
                targets
            }
        };
        Ok(memory.scatter_set(&targets, &states.contiguous()?.unsqueeze(0)?, 1)?)
    }
}
