//! The rows of a tile of positions in a cache, as they are or widened.

use super::POSITIONS;
use crate::kv::{Kv, KvLayout};

/// Where a tile's rows of one cache head are.
#[derive(Clone, Copy)]
pub(super) struct TileRows<'a> {
    bytes: &'a [u8],
    /// Bytes from one row to the next.
    stride: usize,
    place: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    /// In the cache, from position `start` of a sequence on; the head's first slot is `first`.
    Slots { layout: KvLayout, blocks: &'a [u32], first: usize, start: usize },
    /// One after the other.
    Unpacked,
}

impl<'a> TileRows<'a> {
    /// `seen` positions of a sequence from `start` on. Packed rows are widened to `f32`, but stay rotated.
    #[inline(always)]
    pub(super) fn new(
        (layout, cache): (KvLayout, Kv<'a>),
        blocks: &'a [u32],
        kv_head: usize,
        (start, seen): (usize, usize),
        unpacked: &'a mut Vec<f32>,
    ) -> Self {
        let (dim, first) = (layout.head_dim, kv_head * layout.slots);
        let stride = cache.row_bytes(dim);
        let Kv::Packed(packing, bytes) = cache else {
            return Self { bytes: cache.bytes(), stride, place: Place::Slots { layout, blocks, first, start } };
        };
        // Whole vectors of rows are read, up to the last of a tile.
        unpacked.resize(seen.next_multiple_of(POSITIONS) * dim, 0.0);
        for (position, row) in unpacked.chunks_exact_mut(dim).enumerate().take(seen) {
            let slot = first + layout.slot(blocks, start + position);
            packing.unpack(&bytes[slot * stride..][..stride], row);
        }
        Self { bytes: Kv::F32(unpacked).bytes(), stride: dim * size_of::<f32>(), place: Place::Unpacked }
    }

    /// The bytes from a position's row on, counted from the tile's first.
    #[inline(always)]
    pub(super) fn at(&self, position: usize) -> &'a [u8] {
        let row = match self.place {
            Place::Slots { layout, blocks, first, start } => first + layout.slot(blocks, start + position),
            Place::Unpacked => position,
        };
        &self.bytes[row * self.stride..]
    }

    /// Returns whether as many rows lie one after the other, from each multiple of their number on.
    #[inline(always)]
    pub(super) fn are_adjacent(&self, rows: usize) -> bool {
        match self.place {
            Place::Slots { layout, .. } => layout.block_len.is_multiple_of(rows),
            Place::Unpacked => POSITIONS.is_multiple_of(rows),
        }
    }
}
