//! The context of a forward pass: the batch, the KV cache, the adapters.
//!
//! Layers take a `Step` along with their input, so that a model file contains only the mathematics of its layers.

use candle_core::Tensor;
use std::ops::Range;

use super::{
    adapters::{AdaptedRows, Adapters, registry::LayerId},
    items::{Encoded, Items, Taken},
    memory::{kv::KvCache, pass::Pass, states::StateWrite},
    ops::Ops,
};
use crate::{Batch, Error, Result};

/// One forward pass over a batch.
pub struct Step<'a> {
    ops: &'a Ops,
    pub(super) pass: Pass<'a>,
    adapters: &'a Adapters,
    adapted: Vec<AdaptedRows>,
    /// The rows of each sequence.
    sequences: Vec<Range<usize>>,
    /// The items of its sequences, if a token belongs to one or stands before one.
    pub(super) items: Option<&'a Items>,
}

/// The adapters and sequences of rows gathered from a step's, in the order of the gathered rows.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    adapted: Vec<AdaptedRows>,
    sequences: Vec<Range<usize>>,
}

impl Rows {
    /// How many rows each sequence has.
    pub(super) fn stretches(&self) -> Vec<usize> {
        self.sequences.iter().map(Range::len).collect()
    }
}

impl<'a> Step<'a> {
    pub(super) fn new(ops: &'a Ops, batch: &'a Batch<'a>, kv: &'a mut KvCache, adapters: &'a Adapters) -> Self {
        let adapted = batch.spans.iter().filter(|span| span.adapter != 0 && span.adapter_scale != 0.0);
        let adapted = adapted.map(|span| AdaptedRows {
            rows: span.start..span.start + span.len,
            adapter: span.adapter,
            scale: span.adapter_scale,
        });
        let adapted = adapted.collect();
        let sequences = batch.spans.iter().map(|span| span.start..span.start + span.len).collect();
        Self { ops, pass: Pass::new(batch, kv), adapters, adapted, sequences, items: None }
    }

    /// The operations on the model's devices.
    pub fn ops(&self) -> &'a Ops {
        self.ops
    }

    /// The batch as the host passed it.
    pub fn batch(&self) -> &'a Batch<'a> {
        self.pass.batch()
    }

    /// The new tokens.
    pub fn tokens(&self) -> &'a [u32] {
        self.batch().tokens
    }

    /// The position of each new token in its sequence.
    pub fn positions(&self) -> &'a [u32] {
        self.batch().positions
    }

    /// Puts the rows of images and sounds in place of the embeddings of their slots; `x` has a row for each token.
    pub fn with_items(&self, x: Tensor) -> Result<Tensor> {
        let Some(items) = self.items else { return Ok(x) };
        let taken = items.taken(self.batch())?;
        if taken.is_empty() {
            return Ok(x);
        }
        let mut sources = vec![x];
        let mut rows: Vec<u32> = (0..self.tokens().len() as u32).collect();
        self.gather(&taken, items, |encoded| Some(&encoded.rows), &mut sources, &mut rows)?;
        self.ops.select_rows(&Tensor::cat(&sources, 0)?, &rows)
    }

    /// Adds the rows of a tap to the hidden states of their slots, `x`; nothing for items without that tap.
    pub fn add_taps(&self, x: Tensor, tap: usize) -> Result<Tensor> {
        let Some(items) = self.items else { return Ok(x) };
        let taken = items.taken(self.batch())?;
        let nothing = Tensor::zeros((1, x.dim(1)?), x.dtype(), x.device())?;
        let (mut sources, mut rows) = (vec![nothing], vec![0; self.tokens().len()]);
        self.gather(&taken, items, |encoded| encoded.taps.get(tap), &mut sources, &mut rows)?;
        if sources.len() == 1 {
            return Ok(x);
        }
        self.ops.add(&x, &self.ops.select_rows(&Tensor::cat(&sources, 0)?, &rows)?)
    }

    /// Appends what items have for their slots to `sources`, and points the slots' `rows` there.
    fn gather(
        &self,
        taken: &[Taken],
        items: &'a Items,
        of: impl Fn(&'a Encoded) -> Option<&'a Tensor>,
        sources: &mut Vec<Tensor>,
        rows: &mut [u32],
    ) -> Result<()> {
        let mut next = sources[0].dim(0)?;
        for Taken { handle, tokens, row } in taken {
            let Some(encoded) = items.encoded(*handle) else {
                return Err(Error::not_found(format!("item {handle} was closed, and a sequence is placed on it")));
            };
            let Some(source) = of(encoded) else { continue };
            let source = self.ops.beside(&source.narrow(0, *row, tokens.len())?.force_contiguous()?, &sources[0])?;
            sources.push(source);
            for token in tokens {
                rows[*token as usize] = next as u32;
                next += 1;
            }
        }
        Ok(())
    }

    /// Position of each token in time, height and width, where an item makes these differ.
    pub(super) fn item_positions(&self) -> Option<Vec<[u32; 3]>> {
        self.items.map(|items| items.positions(self.batch()))
    }

    /// The states from which the step's sequences continue in a recurrent layer: `[spans, values]` in `f32`, zeros for
    /// new sequences.
    pub fn states(&self, layer: usize) -> Result<Tensor> {
        self.states_of(layer, 0)
    }

    /// [`Self::states`] for one part of a multi-part state.
    pub fn states_of(&self, layer: usize, part: usize) -> Result<Tensor> {
        self.pass.states(layer, part)
    }

    /// The rows after which the state of a recurrent layer must be stored, in the order of spans and rows.
    pub fn state_writes(&self, layer: usize) -> Result<Vec<StateWrite>> {
        self.pass.state_writes(layer)
    }

    /// Stores states of a recurrent layer, one row of `states` per entry of `writes`.
    pub fn write_states(&mut self, layer: usize, writes: &[StateWrite], states: &Tensor) -> Result<()> {
        self.write_states_of(layer, 0, writes, states)
    }

    /// [`Self::write_states`] for one part of a multi-part state.
    pub fn write_states_of(&mut self, layer: usize, part: usize, writes: &[StateWrite], states: &Tensor) -> Result<()> {
        let states = self.ops.bring(states, self.pass.kv.place(layer)?)?;
        self.pass.write_states(layer, part, writes, &states)
    }

    /// Advances a recurrent layer over each sequence's new tokens, one sequence after the other. `advance` takes a
    /// state, of `values` values in `f32`, and the rows of the step that follow it, and returns the state after them.
    /// It is called once per run of rows whose last state must be stored.
    pub fn recur(
        &mut self,
        layer: usize,
        mut advance: impl FnMut(&Step<'_>, Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<()> {
        self.recur_parts(layer, [0], |step, [state], rows| Ok([advance(step, state, rows)?]))
    }

    /// [`Self::recur`] for some parts of a multi-part state, which `advance` takes and returns in the order of `parts`.
    pub fn recur_parts<const N: usize>(
        &mut self,
        layer: usize,
        parts: [usize; N],
        mut advance: impl FnMut(&Step<'_>, [Tensor; N], Range<usize>) -> Result<[Tensor; N]>,
    ) -> Result<()> {
        let (writes, spans) = (self.state_writes(layer)?, &self.batch().spans);
        let states = parts.iter().map(|part| self.states_of(layer, *part)).collect::<Result<Vec<_>>>()?;
        let mut advanced: Vec<[Tensor; N]> = Vec::with_capacity(writes.len());
        let mut last: Option<StateWrite> = None;
        for write in &writes {
            let before = last.filter(|last| last.span == write.span);
            let row = before.map_or(spans[write.span].start, |last| last.end);
            let state = match (before, advanced.last()) {
                (Some(_), Some(state)) => state.clone(),
                _ => each(states.iter().map(|states| Ok(states.get(write.span)?)))?,
            };
            advanced.push(if write.end > row { advance(self, state, row..write.end)? } else { state });
            last = Some(*write);
        }
        for (index, part) in parts.into_iter().enumerate() {
            let rows: Vec<&Tensor> = advanced.iter().map(|state| &state[index]).collect();
            self.write_states_of(layer, part, &writes, &Tensor::stack(&rows, 0)?)?;
        }
        Ok(())
    }

    /// Writes the new tokens' keys, and values if the layer's cache keeps some, without attending: `[tokens, kv_heads ·
    /// key_dim]`, as for the keys of an indexer.
    pub fn remember(&mut self, layer: usize, k: &Tensor, v: Option<&Tensor>) -> Result<()> {
        self.ops.remember(layer, k, v, &mut self.pass)
    }

    /// The cached keys of one sequence, with those that this step has written: `[past + len, kv_heads · key_dim]`. `span`
    /// is its index in [`Batch::spans`](crate::Batch). For caches without a window.
    pub fn cached_keys(&mut self, layer: usize, span: usize) -> Result<Tensor> {
        self.ops.cached(layer, 0, span, &mut self.pass)
    }

    /// The cached values of one sequence, like [`Self::cached_keys`].
    pub fn cached_values(&mut self, layer: usize, span: usize) -> Result<Tensor> {
        self.ops.cached(layer, 1, span, &mut self.pass)
    }

    /// Copies the columns `start..start + len` of `x`.
    pub fn columns(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(self.ops().columns(x, &[(start, len)])?.remove(0))
    }

    /// Splits the columns of `x` into copies of these widths, such as the parts of a fused projection.
    pub fn split<const N: usize>(&self, x: &Tensor, widths: [usize; N]) -> Result<[Tensor; N]> {
        let mut end = 0;
        let parts = widths.map(|len| {
            end += len;
            (end - len, len)
        });
        let parts: Result<[Tensor; N], _> = self.ops().columns(x, &parts)?.try_into();
        parts.map_err(|_| Error::invalid("a backend made other parts than it was asked for"))
    }

    /// Joins the columns of `parts`, which have the same number of rows: the inverse of [`Self::split`].
    pub fn join<const N: usize>(&self, parts: [&Tensor; N]) -> Result<Tensor> {
        self.ops().join(parts)
    }

    /// Returns the adapters and sequences of rows gathered by `indices`, which ascend and may repeat.
    pub fn rows(&self, indices: &[u32]) -> Rows {
        let position = |row: usize| indices.partition_point(|&index| (index as usize) < row);
        let gathered = |rows: &Range<usize>| position(rows.start)..position(rows.end);
        let of = |group: &AdaptedRows| AdaptedRows { rows: gathered(&group.rows), ..group.clone() };
        Rows {
            adapted: self.adapted.iter().map(of).filter(|group| !group.rows.is_empty()).collect(),
            sequences: self.sequences.iter().map(gathered).filter(|rows| !rows.is_empty()).collect(),
        }
    }

    /// True if adapters apply to any of the step's rows.
    pub(super) fn is_adapted(&self) -> bool {
        !self.adapted.is_empty()
    }

    /// Gathers the rows of `x` whose logits are wanted, as listed by [`Batch::wanted`]; the rest of the step works only
    /// on them.
    pub fn wanted(&mut self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        Rows { adapted: self.adapted, sequences: self.sequences } = self.rows(rows);
        if rows.len() == x.dim(0)? { Ok(x.clone()) } else { self.ops.select_rows(x, rows) }
    }

    /// Adds the adapter terms to a layer's output.
    pub(super) fn adapt(&self, layer: LayerId, x: &Tensor, out: Tensor) -> Result<Tensor> {
        if self.adapted.is_empty() { Ok(out) } else { self.adapters.apply(self.ops, layer, x, out, &self.adapted) }
    }

    /// [`Self::adapt`] for gathered rows.
    pub(super) fn adapt_rows(&self, layer: LayerId, x: &Tensor, out: Tensor, rows: &Rows) -> Result<Tensor> {
        if rows.adapted.is_empty() { Ok(out) } else { self.adapters.apply(self.ops, layer, x, out, &rows.adapted) }
    }

    /// Adds the adapter terms to the embeddings of the step's tokens.
    pub(super) fn adapt_table(&self, table: LayerId, out: Tensor) -> Result<Tensor> {
        if self.adapted.is_empty() {
            return Ok(out);
        }
        self.adapters.apply_to_table(self.ops, table, self.tokens(), out, &self.adapted)
    }
}

/// Collects as many tensors as there are parts.
fn each<const N: usize>(tensors: impl Iterator<Item = Result<Tensor>>) -> Result<[Tensor; N]> {
    let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
    tensors.try_into().map_err(|_| Error::invalid("a state has other parts than were asked for"))
}
