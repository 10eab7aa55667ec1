//! The states of recurrent layers within one step: those that sequences continue from, and those to store.

use candle_core::Tensor;

use super::{kv::no_table, pass::Pass};
use crate::{Error, Result, Table};

/// A state to store: the row of the step after which it is taken, and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// Index of the span whose state it is.
    pub span: usize,
    /// The first row of the step that the state does not include.
    pub end: usize,
    pub(in crate::nn) slot: u32,
}

impl Pass<'_> {
    /// The slots from which the step's sequences continue in a layer; `None` for new sequences.
    pub(in crate::nn) fn read_slots(&self, layer: usize) -> Result<Vec<Option<u32>>> {
        let group = self.kv.group(layer)?;
        let slot = |span: &crate::Span<'_>| match span.caches.get(group) {
            Some(Table::Slots { read, .. }) => Ok(*read),
            _ => Err(no_table()),
        };
        self.batch().spans.iter().map(slot).collect()
    }

    /// One part of the states from which the step's sequences continue: `[spans, values]`, zeros for new sequences.
    pub(in crate::nn) fn states(&self, layer: usize, part: usize) -> Result<Tensor> {
        let states = self.kv.states(layer, part)?;
        let (mut read, mut rows) = (Vec::new(), Vec::with_capacity(self.batch().spans.len()));
        for slot in self.read_slots(layer)? {
            read.extend(slot);
            rows.push(if slot.is_some() { read.len() as u32 } else { 0 });
        }
        let blank = Tensor::zeros((1, states.dim(2)?), states.dtype(), states.device())?;
        if read.is_empty() {
            return Ok(blank.repeat((rows.len(), 1))?);
        }
        let ids = |ids: &[u32]| Tensor::new(ids, states.device());
        let read = states.index_select(&ids(&read)?, 1)?.squeeze(0)?;
        if !rows.contains(&0) {
            return Ok(read);
        }
        Ok(Tensor::cat(&[blank, read], 0)?.index_select(&ids(&rows)?, 0)?)
    }

    /// The rows after which a layer's state must be stored, in the order of spans and rows.
    pub(in crate::nn) fn state_writes(&self, layer: usize) -> Result<Vec<StateWrite>> {
        let group = self.kv.group(layer)?;
        let mut writes = Vec::with_capacity(self.batch().spans.len());
        for (index, span) in self.batch().spans.iter().enumerate() {
            let Some(Table::Slots { write, copies, .. }) = span.caches.get(group) else { return Err(no_table()) };
            let row = |after: usize| span.start + after - span.past;
            writes.extend(copies.iter().map(|copy| StateWrite { span: index, end: row(copy.after), slot: copy.slot }));
            writes.push(StateWrite { span: index, end: span.start + span.len, slot: *write });
        }
        Ok(writes)
    }

    /// Stores one part of the states: a row of `states` for each of `writes`.
    pub(in crate::nn) fn write_states(
        &self,
        layer: usize,
        part: usize,
        writes: &[StateWrite],
        states: &Tensor,
    ) -> Result<()> {
        let (group, memory) = (self.kv.group(layer)?, self.kv.states(layer, part)?);
        let (count, values) = (writes.len(), memory.dim(2)?);
        if states.dims() != [count, values] {
            let dims = states.dims();
            return Err(Error::invalid(format!(
                "states of {dims:?} where layer {layer} keeps {count} of {values} values"
            )));
        }
        let key = (self.kv.place(layer)?, group, values);
        let known = self.prepared.borrow().state_targets.get(&key).cloned();
        let targets = match known {
            Some(targets) => targets,
            None => {
                let slots: Vec<u32> = writes.iter().map(|one| one.slot).collect();
                let slots = Tensor::new(&slots[..], memory.device())?.reshape((1, count, 1))?;
                let targets = slots.broadcast_as((1, count, values))?.contiguous()?;
                self.prepared.borrow_mut().state_targets.insert(key, targets.clone());
                targets
            }
        };
        Ok(memory.scatter_set(&targets, &states.contiguous()?.unsqueeze(0)?, 1)?)
    }
}
