//! The context of a forward pass: the batch, the KV cache, the adapters.
//!
//! Layers take a `Step` along with their input, so that a model file contains only the mathematics of its layers.

use candle_core::Tensor;
use std::ops::Range;

use super::{
    adapters::{AdaptedRows, Adapters, registry::LayerId},
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
}

/// The adapters of rows gathered from a step's, in the order of the gathered rows.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    adapted: Vec<AdaptedRows>,
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
        Self { ops, pass: Pass::new(batch, kv), adapters, adapted }
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
        let (states, writes, spans) = (self.states(layer)?, self.state_writes(layer)?, &self.batch().spans);
        let mut advanced: Vec<Tensor> = Vec::with_capacity(writes.len());
        let mut last: Option<StateWrite> = None;
        for write in &writes {
            let before = last.filter(|last| last.span == write.span);
            let row = before.map_or(spans[write.span].start, |last| last.end);
            let state = match (before, advanced.last()) {
                (Some(_), Some(state)) => state.clone(),
                _ => states.get(write.span)?,
            };
            advanced.push(if write.end > row { advance(self, state, row..write.end)? } else { state });
            last = Some(*write);
        }
        self.write_states(layer, &writes, &Tensor::stack(&advanced, 0)?)
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

    /// Returns the adapters of rows gathered by `indices`, which ascend and may repeat.
    pub fn rows(&self, indices: &[u32]) -> Rows {
        let position = |row: usize| indices.partition_point(|&index| (index as usize) < row);
        let of = |group: &AdaptedRows| AdaptedRows {
            rows: position(group.rows.start)..position(group.rows.end),
            ..group.clone()
        };
        Rows { adapted: self.adapted.iter().map(of).filter(|group| !group.rows.is_empty()).collect() }
    }

    /// True if adapters apply to any of the step's rows.
    pub(super) fn is_adapted(&self) -> bool {
        !self.adapted.is_empty()
    }

    /// Gathers the rows of `x` whose logits are wanted; the rest of the step works only on them.
    pub(super) fn wanted(&mut self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        self.adapted = self.rows(rows).adapted;
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
