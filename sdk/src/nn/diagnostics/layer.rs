//! A layer's attention over a cache of any device.

use candle_core::Tensor;

use crate::{
    Batch, KvTransfer, Result,
    nn::{
        backend::{
            Backend,
            cases::{Activations, Case, Part, spans, tables},
        },
        memory::{kv::KvCache, pass::Pass},
        spec::KvShape,
    },
};

/// A cache, and the attention over it, on one backend.
pub(super) struct Layer<'a> {
    backend: &'a dyn Backend,
    cache: KvCache,
    tables: Vec<Vec<u32>>,
}

impl<'a> Layer<'a> {
    /// Room for sequences of these lengths.
    pub(super) fn new(backend: &'a dyn Backend, case: Case, lengths: &[usize]) -> Result<Self> {
        let tables = tables(lengths.iter().copied());
        let (shape, blocks) = (KvShape::uniform(1, case.kv_heads, case.head_dim), tables.iter().map(Vec::len).sum());
        let cache = KvCache::new(&shape, case.kv, &[blocks], |_| 0, |_, shape, _| backend.store(shape))?;
        Ok(Self { backend, cache, tables })
    }

    /// Has all sequences begin with the first one's blocks.
    pub(super) fn share(&mut self, blocks: usize) {
        if let Some((first, others)) = self.tables.split_first_mut() {
            others.iter_mut().for_each(|table| table[..blocks].copy_from_slice(&first[..blocks]));
        }
    }

    /// Attends for new tokens of the sequences, `times` over, as layers of one step do.
    pub(super) fn step(&mut self, parts: &[Part], x: &Activations, times: u32) -> Result<Tensor> {
        let ids = vec![0; parts.iter().map(|(_, len)| len).sum()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(parts, &self.tables), top: 0 };
        self.backend.begin(&batch)?;
        let mut pass = Pass::new(&batch, &mut self.cache);
        let [q, k, v] = &x.qkv;
        for _ in 1..times {
            self.backend.rotated_attention(&x.spec, [q, k, v], &x.rotation, &mut pass)?;
        }
        self.backend.rotated_attention(&x.spec, [q, k, v], &x.rotation, &mut pass)
    }

    /// Attends as the last step did, once the cache has been overwritten with another layer's.
    pub(super) fn step_over(&mut self, other: &Self, parts: &[Part], x: &Activations) -> Result<Tensor> {
        let mut block = vec![0; other.cache.bytes(0)];
        for id in self.tables.iter().flatten() {
            other.cache.export(0, *id, &mut block)?;
            self.cache.import(0, *id, &block)?;
        }
        let ids = vec![0; parts.iter().map(|(_, len)| len).sum()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(parts, &self.tables), top: 0 };
        let mut pass = Pass::new(&batch, &mut self.cache);
        let q = self.backend.rotate(&x.qkv[0], x.spec.head_dim, &x.rotation)?;
        self.backend.attention_over(&x.spec, &q, None, &mut pass)
    }

    /// The keys (`part` 0) or values (1) of a sequence of the last step.
    pub(super) fn cached(&mut self, parts: &[Part], part: usize, span: usize) -> Result<Tensor> {
        let ids = vec![0; parts.iter().map(|(_, len)| len).sum()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(parts, &self.tables), top: 0 };
        self.backend.cached(0, part, span, &mut Pass::new(&batch, &mut self.cache))
    }
}
