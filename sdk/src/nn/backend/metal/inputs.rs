//! What the kernels take besides tensors: shapes in the layout of the kernels' sources, and a step's slots, tiles and block
//! tables.

use bytemuck::{Pod, Zeroable};

use super::launch::Launch;
use crate::{
    Batch,
    nn::{BLOCK_TOKENS, spec::KvType},
};

/// Threads of a threadgroup of `store`.
const STORE_THREADS: usize = 256;

/// Threads of a threadgroup of `attend`.
const THREADS: usize = 128;

/// Query rows that a threadgroup of `attend` holds.
const ROWS: usize = 8;

/// The slot of a row that only fills up a batch: it is not remembered.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// Tokens of a tile.
const TILE_TOKENS: usize = 64;

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct StoreShape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// Half of the values that are rotated in a head.
    pub(super) half_dim: u32,
    pub(super) is_interleaved: u32,
    pub(super) rotates: u32,
    pub(super) tokens: u32,
    pub(super) slots: u32,
}

impl StoreShape {
    /// A thread for a value of each token's queries, keys and values each.
    pub(super) fn launch(&self, kind: KvType) -> Launch {
        let kernel = match kind {
            KvType::F16 => "store_f16",
            KvType::F32 => "store_f32",
        };
        let width = ((self.heads + 2 * self.kv_heads) * self.head_dim) as usize;
        let groups = [width.div_ceil(STORE_THREADS), self.tokens as usize, 1];
        Launch { kernel, groups, threads: STORE_THREADS, shared_bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AttendShape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) slots: u32,
    pub(super) tiles: u32,
    /// 0: none.
    pub(super) window: u32,
    pub(super) has_sinks: u32,
    pub(super) scale: f32,
    /// 0: none.
    pub(super) softcap: f32,
}

impl AttendShape {
    /// For tiles of up to `longest` tokens; a threadgroup has memory for its queries and as many sums.
    pub(super) fn launch(&self, kind: KvType, longest: usize) -> Launch {
        let kernel = match kind {
            KvType::F16 => "attend_f16",
            KvType::F32 => "attend_f32",
        };
        let rows = longest * (self.heads / self.kv_heads) as usize;
        let groups = [rows.div_ceil(ROWS), self.kv_heads as usize, self.tiles as usize];
        let shared_bytes = 2 * ROWS * self.head_dim as usize * size_of::<f32>();
        Launch { kernel, groups, threads: THREADS, shared_bytes }
    }
}

/// A batch's index data for the attention kernels.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    /// Of each new token.
    pub(super) slots: Vec<u32>,
    /// Neighbouring new tokens of a sequence: the first of them in the batch, how many there are, how many tokens of the
    /// sequence come before, and where its table begins.
    pub(super) tiles: Vec<[u32; 4]>,
    pub(super) tables: Vec<u32>,
    /// Tokens of the longest tile.
    pub(super) longest: usize,
}

impl Inputs {
    /// The index data for a group of caches; empty for a group without blocks.
    pub(super) fn of(batch: &Batch<'_>, group: usize) -> Self {
        let mut inputs = Self::default();
        for span in &batch.spans {
            let (table, blocks) = (inputs.tables.len() as u32, span.blocks(group));
            if blocks.is_empty() {
                continue;
            }
            inputs.tables.extend_from_slice(&blocks[..(span.past + span.len).div_ceil(BLOCK_TOKENS)]);
            let slot = |at: usize| blocks[at / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (at % BLOCK_TOKENS) as u32;
            inputs.slots.extend((span.past..span.past + span.len).map(slot));
            for first in (0..span.len).step_by(TILE_TOKENS) {
                let count = TILE_TOKENS.min(span.len - first);
                inputs.longest = inputs.longest.max(count);
                inputs.tiles.push([(span.start + first) as u32, count as u32, (span.past + first) as u32, table]);
            }
        }
        inputs
    }
}
