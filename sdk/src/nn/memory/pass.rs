//! What a backend sees of a forward pass: the batch, the KV cache, and the index tensors that its layers share.

use candle_core::Tensor;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use super::kv::KvCache;
use crate::Batch;

/// A batch on its way through the layers.
pub(in crate::nn) struct Pass<'a> {
    batch: &'a Batch<'a>,
    pub(in crate::nn) kv: &'a mut KvCache,
    was_read: Cell<bool>,
    pub(in crate::nn) prepared: RefCell<Prepared>,
}

/// Index tensors that all layers of a step share, those on one device: its place among the model's comes first in each key.
#[derive(Default)]
pub(in crate::nn) struct Prepared {
    /// For each group of caches and of spans, the slots of its tokens, oldest first.
    pub(in crate::nn) slots: HashMap<(usize, usize, Group), Tensor>,
    /// For each group, first row and window, what the tokens may not see.
    pub(in crate::nn) masks: HashMap<(usize, Group, usize, Option<usize>), Tensor>,
    /// For each group of caches, heads and their size: where the new tokens' keys or values go.
    pub(in crate::nn) targets: HashMap<(usize, usize, usize, usize), Tensor>,
    /// For each group of caches and size of a state: where the states that are kept go.
    pub(in crate::nn) kept: HashMap<(usize, usize, usize), Tensor>,
    /// For each group of caches and length of a convolution: which rows it reads.
    pub(in crate::nn) convolved: HashMap<(usize, usize, usize), (Vec<Tensor>, Tensor)>,
}

/// Spans that are computed together: one that is longer than a token, or several that decode.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::nn) struct Group {
    /// The first span.
    pub(in crate::nn) start: usize,
    /// Spans in the group.
    pub(in crate::nn) len: usize,
    /// Tokens that each of them attends to, or is padded to.
    pub(in crate::nn) all: usize,
}

impl<'a> Pass<'a> {
    pub(in crate::nn) fn new(batch: &'a Batch<'a>, kv: &'a mut KvCache) -> Self {
        Self { batch, kv, was_read: Cell::new(false), prepared: RefCell::default() }
    }

    /// The batch.
    pub(in crate::nn) fn batch(&self) -> &'a Batch<'a> {
        self.was_read.set(true);
        self.batch
    }

    /// The new tokens.
    pub(in crate::nn) fn tokens(&self) -> &'a [u32] {
        self.batch().tokens
    }

    /// Their positions.
    pub(in crate::nn) fn positions(&self) -> &'a [u32] {
        self.batch().positions
    }

    /// The batch, for what is the same in all steps of as many tokens.
    pub(in crate::nn) fn input(&self) -> &'a Batch<'a> {
        self.batch
    }

    /// Whether anything has looked at the batch, so that what was computed may not hold for another of as many tokens.
    pub(in crate::nn) fn was_read(&self) -> bool {
        self.was_read.get()
    }
}
