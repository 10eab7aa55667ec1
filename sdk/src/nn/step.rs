//! What one forward pass knows besides the activations: the batch, the KV cache, the adapters.
//!
//! Layers take a `Step` along with their input, so that a model file is the mathematics of its layers and nothing else.

use candle_core::Tensor;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use super::{
    KvCache,
    adapters::{AdaptedRows, Adapters},
    backend::Group,
    loader::LayerId,
    ops::Ops,
};
use crate::{Batch, Result};

/// One forward pass over a batch.
pub struct Step<'a> {
    ops: &'a Ops,
    batch: &'a Batch<'a>,
    pub(super) kv: &'a mut KvCache,
    adapters: &'a Adapters,
    adapted: Vec<AdaptedRows>,
    was_read: Cell<bool>,
    pub(super) prepared: RefCell<Prepared>,
}

/// Rows that were gathered from those of a step, which may not be its own: adapters follow them.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    adapted: Vec<AdaptedRows>,
}

/// Index tensors of the generic attention that all layers of a step share.
#[derive(Default)]
pub(super) struct Prepared {
    /// For each group of spans, the slots of its tokens, oldest first.
    pub(super) slots: HashMap<Group, Tensor>,
    /// For each group, first row and window, what the tokens may not see.
    pub(super) masks: HashMap<(Group, usize, Option<usize>), Tensor>,
    /// Where the new tokens' keys and values go.
    pub(super) targets: Option<Tensor>,
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
        Self { ops, batch, kv, adapters, adapted, was_read: Cell::new(false), prepared: RefCell::default() }
    }

    /// The computations on the model's device.
    pub fn ops(&self) -> &'a Ops {
        self.ops
    }

    /// The batch.
    pub fn batch(&self) -> &'a Batch<'a> {
        self.was_read.set(true);
        self.batch
    }

    /// The new tokens.
    pub fn tokens(&self) -> &'a [u32] {
        self.batch().tokens
    }

    /// Their positions.
    pub fn positions(&self) -> &'a [u32] {
        self.batch().positions
    }

    /// The batch, for what is the same in all steps of as many tokens.
    pub(super) fn input(&self) -> &'a Batch<'a> {
        self.batch
    }

    /// Whether anything has looked at the batch, so that what was computed may not hold for another of as many tokens.
    pub(super) fn was_read(&self) -> bool {
        self.was_read.get()
    }

    /// The columns `start..start + len` of `x`, such as the queries of a fused projection, as a tensor of their own.
    pub fn columns(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(x.narrow(1, start, len)?.force_contiguous()?)
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
