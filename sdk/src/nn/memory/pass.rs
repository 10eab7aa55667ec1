//! A forward pass as a backend sees it: the batch, the KV cache, and the index tensors that its layers share.

use candle_core::Tensor;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use super::kv::KvCache;
use crate::{Batch, nn::spec::Attention};

/// A batch on its way through the layers.
pub(in crate::nn) struct Pass<'a> {
    batch: &'a Batch<'a>,
    pub(in crate::nn) kv: &'a mut KvCache,
    was_read: Cell<bool>,
    pub(in crate::nn) prepared: RefCell<Prepared>,
    /// How far each token sees, if items are seen as a whole.
    seen: Option<Rc<[u32]>>,
}

/// Index tensors shared by all layers of a step on one device. The first component of each key is the device's index.
#[derive(Default)]
pub(in crate::nn) struct Prepared {
    /// By group of caches and group of spans: the slots of their tokens, oldest first.
    pub(in crate::nn) slots: HashMap<(usize, usize, Group), Tensor>,
    /// By group of spans, first row, window, and whether items are seen as a whole: the attention mask.
    pub(in crate::nn) masks: HashMap<(usize, Group, usize, Option<usize>, bool), Tensor>,
    /// By group of caches, heads and head size: the positions to which the new tokens' keys or values are written.
    pub(in crate::nn) targets: HashMap<(usize, usize, usize, usize), Tensor>,
    /// By group of whole texts: their rows, padded to the longest. These models lie on one device.
    pub(in crate::nn) texts: HashMap<Group, Tensor>,
    /// The tiles of whole texts, for kernels that read them where they are.
    #[cfg(feature = "cuda")]
    pub(in crate::nn) text_tiles: Option<Tensor>,
    /// The number of tokens that each token sees, where items are seen as a whole; by device.
    #[cfg(feature = "cuda")]
    pub(in crate::nn) ends: HashMap<usize, Tensor>,
    /// By group of caches and size of a state: the positions to which states are written.
    pub(in crate::nn) state_targets: HashMap<(usize, usize, usize), Tensor>,
    /// By group of caches and kernel size of a convolution: the rows that it reads.
    pub(in crate::nn) convolved: HashMap<(usize, usize, usize), (Vec<Tensor>, Tensor)>,
}

/// Spans that are computed together: a single one with several tokens, or several that decode.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::nn) struct Group {
    /// The first span.
    pub(in crate::nn) start: usize,
    /// Spans in the group.
    pub(in crate::nn) len: usize,
    /// Tokens that each of them attends to, after padding.
    pub(in crate::nn) all: usize,
}

impl<'a> Pass<'a> {
    pub(in crate::nn) fn new(batch: &'a Batch<'a>, kv: &'a mut KvCache) -> Self {
        Self { batch, kv, was_read: Cell::new(false), prepared: RefCell::default(), seen: None }
    }

    /// The batch, for whatever depends on its contents; sets [`Self::was_read`].
    pub(in crate::nn) fn batch(&self) -> &'a Batch<'a> {
        self.was_read.set(true);
        self.batch
    }

    /// The new tokens.
    pub(in crate::nn) fn tokens(&self) -> &'a [u32] {
        self.batch().tokens
    }

    /// The new tokens' positions.
    pub(in crate::nn) fn positions(&self) -> &'a [u32] {
        self.batch().positions
    }

    /// Sets the number of tokens of its sequence that each token sees, in attention with
    /// [`Attention::whole_items`].
    pub(in crate::nn) fn see(&mut self, seen: Vec<u32>) {
        self.seen = Some(seen.into());
    }

    /// The number of tokens that each token sees, where a layer sees more than those up to its own.
    pub(in crate::nn) fn seen(&self, spec: &Attention) -> Option<Rc<[u32]>> {
        self.seen.clone().filter(|_| spec.whole_items)
    }

    /// The batch, for uses that depend only on its number of tokens; does not set [`Self::was_read`].
    pub(in crate::nn) fn input(&self) -> &'a Batch<'a> {
        self.batch
    }

    /// True if the host has read the batch's contents, so that the launches of this pass may not fit another batch of
    /// the same size.
    pub(in crate::nn) fn was_read(&self) -> bool {
        self.was_read.get()
    }
}
