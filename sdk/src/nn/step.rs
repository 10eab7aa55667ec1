//! What one forward pass knows besides the activations: the batch, the KV cache, the adapters.
//!
//! Layers take a `Step` along with their input, so that a model file is the mathematics of its layers and nothing else.

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

/// Rows that were gathered from those of a step, which may not be its own: adapters follow them.
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

    /// The computations on the model's device.
    pub fn ops(&self) -> &'a Ops {
        self.ops
    }

    /// The batch.
    pub fn batch(&self) -> &'a Batch<'a> {
        self.pass.batch()
    }

    /// The new tokens.
    pub fn tokens(&self) -> &'a [u32] {
        self.batch().tokens
    }

    /// Their positions.
    pub fn positions(&self) -> &'a [u32] {
        self.batch().positions
    }

    /// The states that the step's sequences go on from in a recurrent layer: `[spans, values]` in single precision, zeros for
    /// those that begin.
    pub fn states(&self, layer: usize) -> Result<Tensor> {
        self.states_of(layer, 0)
    }

    /// The same of a part of the states.
    pub fn states_of(&self, layer: usize, part: usize) -> Result<Tensor> {
        self.pass.states(layer, part)
    }

    /// After which rows of the step a state of a recurrent layer has to be kept: span by span, in their order.
    pub fn state_writes(&self, layer: usize) -> Result<Vec<StateWrite>> {
        self.pass.state_writes(layer)
    }

    /// Keeps states of a recurrent layer, one row of `states` for each of `kept`.
    pub fn write_states(&mut self, layer: usize, kept: &[StateWrite], states: &Tensor) -> Result<()> {
        self.write_states_of(layer, 0, kept, states)
    }

    /// The same of a part of the states.
    pub fn write_states_of(&mut self, layer: usize, part: usize, kept: &[StateWrite], states: &Tensor) -> Result<()> {
        let states = self.ops.bring(states, self.pass.kv.place(layer)?)?;
        self.pass.write_states(layer, part, kept, &states)
    }

    /// Takes a recurrent layer through the new tokens of every sequence, one sequence after the other. `advance` is given a state,
    /// of `values` values in single precision, and the rows of the step that follow it, and answers the state after them. It is
    /// called once for each run of rows after which a state has to be kept.
    pub fn recur(
        &mut self,
        layer: usize,
        mut advance: impl FnMut(&Step<'_>, Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<()> {
        let (states, kept, spans) = (self.states(layer)?, self.state_writes(layer)?, &self.batch().spans);
        let mut made: Vec<Tensor> = Vec::with_capacity(kept.len());
        let mut last: Option<StateWrite> = None;
        for one in &kept {
            let before = last.filter(|last| last.span == one.span);
            let row = before.map_or(spans[one.span].start, |last| last.end);
            let state = match (before, made.last()) {
                (Some(_), Some(state)) => state.clone(),
                _ => states.get(one.span)?,
            };
            made.push(if one.end > row { advance(self, state, row..one.end)? } else { state });
            last = Some(*one);
        }
        self.write_states(layer, &kept, &Tensor::stack(&made, 0)?)
    }

    /// The columns `start..start + len` of `x`, as a tensor of their own.
    pub fn columns(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(self.ops().columns(x, &[(start, len)])?.remove(0))
    }

    /// Columns that follow each other, such as the queries, keys and values of a fused projection, as tensors of their own: as many
    /// for each as `widths` says.
    pub fn split<const N: usize>(&self, x: &Tensor, widths: [usize; N]) -> Result<[Tensor; N]> {
        let mut end = 0;
        let parts = widths.map(|len| {
            end += len;
            (end - len, len)
        });
        let parts: Result<[Tensor; N], _> = self.ops().columns(x, &parts)?.try_into();
        parts.map_err(|_| Error::invalid("a backend made other parts than it was asked for"))
    }

    /// Rows that are those of these indices among the step's, from the first to the last. An index may come more than once.
    pub fn rows(&self, indices: &[u32]) -> Rows {
        let place = |row: usize| indices.partition_point(|&index| (index as usize) < row);
        let of =
            |group: &AdaptedRows| AdaptedRows { rows: place(group.rows.start)..place(group.rows.end), ..group.clone() };
        Rows { adapted: self.adapted.iter().map(of).filter(|group| !group.rows.is_empty()).collect() }
    }

    /// Whether adapters change any of the step's rows.
    pub(super) fn is_adapted(&self) -> bool {
        !self.adapted.is_empty()
    }

    /// The rows of `x` whose logits are wanted. What follows works on them alone.
    pub(super) fn wanted(&mut self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        self.adapted = self.rows(rows).adapted;
        if rows.len() == x.dim(0)? { Ok(x.clone()) } else { self.ops.select_rows(x, rows) }
    }

    /// A layer's output with the adapters' changes.
    pub(super) fn adapt(&self, layer: LayerId, x: &Tensor, out: Tensor) -> Result<Tensor> {
        if self.adapted.is_empty() { Ok(out) } else { self.adapters.apply(self.ops, layer, x, out, &self.adapted) }
    }

    /// The same for rows that were gathered.
    pub(super) fn adapt_rows(&self, layer: LayerId, x: &Tensor, out: Tensor, rows: &Rows) -> Result<Tensor> {
        if rows.adapted.is_empty() { Ok(out) } else { self.adapters.apply(self.ops, layer, x, out, &rows.adapted) }
    }

    /// The vectors of the step's tokens with the adapters' changes.
    pub(super) fn adapt_table(&self, table: LayerId, out: Tensor) -> Result<Tensor> {
        if self.adapted.is_empty() {
            return Ok(out);
        }
        self.adapters.apply_to_table(self.ops, table, self.tokens(), out, &self.adapted)
    }
}
