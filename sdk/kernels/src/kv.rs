//! The paged KV cache: blocks of slots, assigned to sequences by block tables.
//!
//! A cache is `[kv_heads, slots, head_dim]`; slot `b · block_len + i` is token `i` of block `b`. Block tables come from
//! the host and the cache belongs to the model, so every table is checked in full before anything is read or written.

use half::{f16, slice::HalfFloatSliceExt};

use super::{
    kv_packed::{self, Packing},
    pool::Pool,
};

/// Fewer values than this are not worth another thread.
const SHARED: usize = 1 << 12;

/// The shape of a cache of keys or of values.
#[derive(Clone, Copy, Debug)]
pub struct KvLayout {
    pub kv_heads: usize,
    pub slots: usize,
    pub head_dim: usize,
    pub block_len: usize,
}

/// New rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// First row in the batch, and number of rows.
    pub start: usize,
    pub len: usize,
    /// Positions of the sequence before these rows.
    pub past: usize,
    /// The sequence's blocks, for at least `past + len` positions.
    pub blocks: &'a [u32],
}

/// A cache to read.
#[derive(Clone, Copy, Debug)]
pub enum Kv<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Packed(Packing, &'a [u8]),
}

impl<'a> Kv<'a> {
    pub(super) fn bytes(self) -> &'a [u8] {
        let (start, len) = match self {
            Kv::F32(cache) => (cache.as_ptr().cast(), size_of_val(cache)),
            Kv::F16(cache) => (cache.as_ptr().cast(), size_of_val(cache)),
            Kv::Packed(_, cache) => return cache,
        };
        // SAFETY: these are the bytes of the slice, whose elements have no padding.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Bytes of a row of so many values.
    pub(super) fn row_bytes(self, values: usize) -> usize {
        match self {
            Kv::F32(_) => values * size_of::<f32>(),
            Kv::F16(_) => values * size_of::<f16>(),
            Kv::Packed(packing, _) => packing.row_bytes(values),
        }
    }

    /// Returns whether both have the same type.
    pub(super) fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Kv::Packed(packing, _), Kv::Packed(other, _)) => packing == other,
            _ => std::mem::discriminant(&self) == std::mem::discriminant(&other),
        }
    }
}

/// A cache to write.
#[derive(Debug)]
pub enum KvMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Packed(Packing, &'a mut [u8]),
}

/// Writes `rows[n, kv_heads, head_dim]` to the slots of their positions.
pub fn store_kv(pool: &Pool, layout: KvLayout, cache: KvMut<'_>, rows: &[f32], spans: &[Span<'_>]) {
    let width = layout.kv_heads * layout.head_dim;
    assert!(width > 0 && rows.len().is_multiple_of(width), "{} values for rows of {width}", rows.len());
    layout.check(rows.len() / width, spans);
    let dim = layout.head_dim;
    match cache {
        KvMut::F32(cache) => store(pool, layout, (cache, dim), rows, spans, |to, from| to.copy_from_slice(from)),
        KvMut::F16(cache) => store(pool, layout, (cache, dim), rows, spans, HalfFloatSliceExt::convert_from_f32_slice),
        KvMut::Packed(packing, cache) => {
            let pack = |to: &mut [u8], from: &[f32]| kv_packed::pack(pool, packing, from, to);
            store(pool, layout, (cache, packing.row_bytes(dim)), rows, spans, pack);
        }
    }
}

/// Reads all positions of one span so far: `rows[past + len, kv_heads, head_dim]`.
pub fn load_kv(layout: KvLayout, cache: Kv<'_>, span: Span<'_>, rows: &mut [f32]) {
    assert!(layout.holds(cache), "a cache of {layout:?}");
    layout.check(span.start.saturating_add(span.len), &[span]);
    let (dim, positions) = (layout.head_dim, span.past + span.len);
    assert_eq!(rows.len(), positions * layout.kv_heads * dim, "values of {positions} positions");
    for (index, row) in rows.chunks_exact_mut(dim.max(1)).enumerate() {
        let (position, head) = (index / layout.kv_heads, index % layout.kv_heads);
        let slot = head * layout.slots + layout.slot(span.blocks, position);
        match cache {
            Kv::F32(cache) => row.copy_from_slice(&cache[slot * dim..][..dim]),
            Kv::F16(cache) => row.iter_mut().zip(&cache[slot * dim..]).for_each(|(to, from)| *to = from.to_f32()),
            Kv::Packed(packing, cache) => {
                let each = packing.row_bytes(dim);
                kv_packed::unpack(packing, &cache[slot * each..][..each], row);
            }
        }
    }
}

/// Stores rows in a cache with so many elements for each. Tables may name a slot twice, so threads share the heads, whose slots
/// are apart.
fn store<T: Send>(
    pool: &Pool,
    layout: KvLayout,
    (cache, each): (&mut [T], usize),
    rows: &[f32],
    spans: &[Span<'_>],
    copy: impl Fn(&mut [T], &[f32]) + Sync,
) {
    assert_eq!(cache.len(), layout.kv_heads * layout.slots * each, "a cache of {layout:?}");
    let (dim, heads) = (layout.head_dim, layout.kv_heads);
    let store = |head: usize, cache: &mut [T]| {
        for span in spans {
            for i in 0..span.len {
                let slot = layout.slot(span.blocks, span.past + i);
                let row = &rows[((span.start + i) * heads + head) * dim..][..dim];
                copy(&mut cache[slot * each..][..each], row);
            }
        }
    };
    let each = (layout.slots * each).max(1);
    if rows.len() < SHARED {
        cache.chunks_mut(each).enumerate().for_each(|(head, cache)| store(head, cache));
    } else {
        pool.run_pieces(cache, each, store);
    }
}

impl KvLayout {
    /// Elements of a cache.
    pub fn elements(self) -> usize {
        self.kv_heads * self.slots * self.head_dim
    }

    pub(super) fn holds(self, cache: Kv<'_>) -> bool {
        cache.bytes().len() == self.kv_heads * self.slots * cache.row_bytes(self.head_dim)
    }

    /// Panics unless every span lies within `n` rows and its table has blocks of this cache for all its positions.
    pub(super) fn check(self, n: usize, spans: &[Span<'_>]) {
        assert!(self.block_len > 0, "blocks of no slots");
        let blocks = self.slots / self.block_len;
        for span in spans {
            let within = span.start.checked_add(span.len).is_some_and(|end| end <= n);
            assert!(within, "a span of {} rows at {} in a batch of {n}", span.len, span.start);
            let positions = span.past.checked_add(span.len);
            let needed = positions.map_or(usize::MAX, |positions| positions.div_ceil(self.block_len));
            assert!(needed <= span.blocks.len(), "{} blocks where {needed} are needed", span.blocks.len());
            let wrong = span.blocks[..needed].iter().find(|block| **block as usize >= blocks);
            assert!(wrong.is_none(), "block {wrong:?} of {blocks}");
        }
    }

    #[inline(always)]
    pub(super) fn slot(self, blocks: &[u32], position: usize) -> usize {
        blocks[position / self.block_len] as usize * self.block_len + position % self.block_len
    }
}
