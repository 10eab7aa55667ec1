//! What one forward pass knows besides the activations: the batch, the KV cache, the adapters.
//!
//! Layers take a `Step` along with their input, so that a model file is the mathematics of its layers and nothing else.

use candle_core::Tensor;
use std::{cell::RefCell, collections::HashMap, ops::Range};

use super::{
    KvCache,
    adapters::{AdaptedRows, Adapters},
    backend::Group,
    loader::LayerId,
    ops::Ops,
};
use crate::{Batch, Checkpoint, Error, Result, Span, Table};

/// One forward pass over a batch.
pub struct Step<'a> {
    ops: &'a Ops,
    batch: &'a Batch<'a>,
    pub(super) kv: &'a mut KvCache,
    adapters: &'a Adapters,
    adapted: Vec<AdaptedRows>,
    pub(super) prepared: RefCell<Prepared>,
}

/// Index tensors of the generic attention that all layers of a step share.
#[derive(Default)]
pub(super) struct Prepared {
    /// For each group of caches and of spans, the slots of its tokens, oldest first.
    pub(super) slots: HashMap<(usize, Group), Tensor>,
    /// For each group, first row and window, what the tokens may not see.
    pub(super) masks: HashMap<(Group, usize, Option<usize>), Tensor>,
    /// For each group of caches, heads and their size: where the new tokens' keys or values go.
    pub(super) targets: HashMap<(usize, usize, usize), Tensor>,
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
        Self { ops, batch, kv, adapters, adapted, prepared: RefCell::default() }
    }

    /// The computations on the model's device.
    pub fn ops(&self) -> &'a Ops {
        self.ops
    }

    /// The batch.
    pub fn batch(&self) -> &'a Batch<'a> {
        self.batch
    }

    /// The new tokens.
    pub fn tokens(&self) -> &'a [u32] {
        self.batch.tokens
    }

    /// Their positions.
    pub fn positions(&self) -> &'a [u32] {
        self.batch.positions
    }

    /// The blocks of a span's sequence in the group of an attention layer.
    pub(super) fn blocks(&self, layer: usize, span: &'a Span<'a>) -> Result<&'a [u32]> {
        match span.caches.get(self.kv.group(layer)?) {
            Some(Table::Blocks(blocks)) => Ok(blocks),
            _ => Err(Error::invalid(format!("layer {layer} keeps keys and values, but its group has no blocks"))),
        }
    }

    /// Takes a recurrent layer through the new tokens of every sequence. `advance` is given a state, of `values` values in
    /// single precision, and the rows of the step that follow it, and answers the state after them. It is called once for
    /// each run of rows after which a state has to be kept; a sequence that begins has a state of zeros.
    pub fn recur(
        &mut self,
        layer: usize,
        mut advance: impl FnMut(&Step<'_>, Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<()> {
        let (group, states) = (self.kv.group(layer)?, self.kv.states(layer)?.clone());
        let values = states.dim(2)?;
        for span in &self.batch().spans {
            let Some(Table::Slots { read, write, checkpoints }) = span.caches.get(group) else {
                return Err(Error::invalid(format!("layer {layer} keeps a state, but its group has no slots")));
            };
            let mut state = match read {
                Some(slot) => states.narrow(1, *slot as usize, 1)?.force_contiguous()?.reshape(values)?,
                None => Tensor::zeros(values, states.dtype(), states.device())?,
            };
            let keep = |state: &Tensor, slot: u32| -> Result<()> {
                if state.dims() != [values] {
                    let dims = state.dims();
                    return Err(Error::invalid(format!("a state of {dims:?} where layer {layer} has {values} values")));
                }
                Ok(states.slice_set(&state.reshape((1, 1, values))?.contiguous()?, 1, slot as usize)?)
            };
            let mut row = span.start;
            let last = Checkpoint { after: (span.past + span.len) as u32, slot: *write };
            for checkpoint in checkpoints.iter().chain([&last]) {
                let end = span.start + checkpoint.after as usize - span.past;
                if end > row {
                    state = advance(self, state, row..end)?;
                    row = end;
                }
                keep(&state, checkpoint.slot)?;
            }
        }
        Ok(())
    }

    /// The columns `start..start + len` of `x`, such as the queries of a fused projection, as a tensor of their own.
    pub fn columns(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(x.narrow(1, start, len)?.force_contiguous()?)
    }

    /// The rows of `x` whose logits are wanted. What follows works on them alone.
    pub(super) fn wanted(&mut self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        let place = |row: usize| rows.partition_point(|&wanted| (wanted as usize) < row);
        for group in &mut self.adapted {
            group.rows = place(group.rows.start)..place(group.rows.end);
        }
        self.adapted.retain(|group| !group.rows.is_empty());
        if rows.len() == x.dim(0)? { Ok(x.clone()) } else { self.ops.select_rows(x, rows) }
    }

    /// A layer's output with the adapters' changes.
    pub(super) fn adapt(&self, layer: LayerId, x: &Tensor, out: Tensor) -> Result<Tensor> {
        if self.adapted.is_empty() { Ok(out) } else { self.adapters.apply(self.ops, layer, x, out, &self.adapted) }
    }
    /// The vectors of the step's tokens with the adapters' changes.
    pub(super) fn adapt_table(&self, table: LayerId, out: Tensor) -> Result<Tensor> {
        if self.adapted.is_empty() {
            return Ok(out);
        }
        self.adapters.apply_to_table(self.ops, table, self.tokens(), out, &self.adapted)
    }
}
