//! The index data of a step for the attention kernels: slots, tiles and block tables.

use std::cmp::Reverse;

use crate::{Batch, nn::BLOCK_TOKENS};

/// The slot of a row that only fills up a batch: it is not remembered.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// Tokens of a tile.
const TILE_TOKENS: usize = 64;

/// A batch's index data for the attention kernels.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    /// Of each new token.
    pub(super) slots: Vec<u32>,
    /// Neighbouring new tokens of a sequence: the first of them in the batch, how many there are, how many tokens of the
    /// sequence come before, and where its table begins. Those of one token come first, and of each kind those that see most.
    pub(super) tiles: Vec<[u32; 4]>,
    pub(super) tables: Vec<u32>,
    /// Tokens of the longest tile.
    pub(super) longest: usize,
    /// Tiles of sequences with one new token, which is what a decode has.
    pub(super) singles: usize,
    /// The most keys that a token of a single tile sees, and one of another tile.
    pub(super) single_keys: usize,
    pub(super) tile_keys: usize,
}

impl Inputs {
    /// The index data for a group of caches; empty for a group without blocks.
    pub(super) fn of(batch: &Batch<'_>, group: usize) -> Self {
        let (mut inputs, mut singles) = (Self::default(), Vec::new());
        for span in &batch.spans {
            let (table, blocks) = (inputs.tables.len() as u32, span.blocks(group));
            if blocks.is_empty() {
                continue;
            }
            inputs.tables.extend_from_slice(&blocks[..(span.past + span.len).div_ceil(BLOCK_TOKENS)]);
            let slot = |at: usize| blocks[at / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (at % BLOCK_TOKENS) as u32;
            inputs.slots.extend((span.past..span.past + span.len).map(slot));
            let keys = span.past + span.len;
            if span.len == 1 {
                inputs.single_keys = inputs.single_keys.max(keys);
            } else {
                inputs.tile_keys = inputs.tile_keys.max(keys);
            }
            for first in (0..span.len).step_by(TILE_TOKENS) {
                let count = TILE_TOKENS.min(span.len - first);
                inputs.longest = inputs.longest.max(count);
                let tile = [(span.start + first) as u32, count as u32, (span.past + first) as u32, table];
                if span.len == 1 { singles.push(tile) } else { inputs.tiles.push(tile) }
            }
        }
        // Long ones first: a GPU starts threadgroups in order, and would end with few of its cores at work.
        singles.sort_by_key(|tile| Reverse(tile[2]));
        inputs.tiles.sort_by_key(|tile| Reverse(tile[2]));
        inputs.singles = singles.len();
        inputs.tiles.splice(0..0, singles);
        inputs
    }
}
