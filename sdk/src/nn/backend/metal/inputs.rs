//! The index data of a step for the attention kernels: slots, tiles and block tables.

use std::cmp::Reverse;

use crate::{Batch, nn::BLOCK_TOKENS};

/// The slot of a row that only fills up a batch: it is not remembered.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// Tokens of a tile.
const TILE_TOKENS: usize = 64;

/// Keys of a prefix are whole tiles of every kernel, and enough of them for a dispatch of their own.
const PREFIX_TILE: usize = 32;
const PREFIX_MIN: usize = 256;

/// Most sequences that share a prefix, whose parts have to be held.
pub(super) const SHARED_MAX: usize = 64;

/// A shared prefix saves at least one in so many reads of keys, as it takes two more dispatches.
const READS_PER_SAVED_MAX: usize = 8;

/// A batch's index data for the attention kernels.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    /// Of each new token.
    pub(super) slots: Vec<u32>,
    /// Neighbouring new tokens of a sequence: the first of them in the batch, their number, the tokens of the sequence before
    /// them, and the start of its table. Tiles of one token come first, longer contexts before shorter ones, then those of
    /// sequences that share a prefix, in the batch's order, then longer tiles. The last ones are those of prefixes, one for each
    /// of `shared`.
    pub(super) tiles: Vec<[u32; 4]>,
    pub(super) tables: Vec<u32>,
    /// Tokens of the longest tile.
    pub(super) longest: usize,
    /// Tiles of sequences with one new token, which is what a decode has.
    pub(super) singles: usize,
    /// The most keys that a token of a longer tile sees.
    pub(super) tile_keys: usize,
    /// In the order of their tiles, which are the last of the single ones.
    pub(super) shared: Vec<Shared>,
}

/// Neighbours in the batch with one new token each, whose contexts begin with the same blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// The tile of all their new tokens, over the prefix.
    pub(super) tile: usize,
    /// Their own, in the batch's order.
    pub(super) first_tile: usize,
    pub(super) count: usize,
    /// Keys that all of them see, and the most that one does.
    pub(super) prefix: usize,
    pub(super) keys: usize,
}

/// A sequence with one new token.
struct Single<'a> {
    tile: [u32; 4],
    blocks: &'a [u32],
}

impl Single<'_> {
    fn keys(&self) -> usize {
        self.tile[2] as usize + 1
    }

    /// The blocks before the one that its new token is written to.
    fn past_blocks(&self) -> &[u32] {
        &self.blocks[..self.tile[2] as usize / BLOCK_TOKENS]
    }
}

/// The number of first sequences that read a prefix together, and its keys. A sequence joins as long as that saves no fewer
/// reads.
fn sharing(singles: &[Single<'_>]) -> (usize, usize) {
    let whole_tiles = |blocks: usize| blocks * BLOCK_TOKENS / PREFIX_TILE * PREFIX_TILE;
    let (mut common, mut count) = (singles[0].past_blocks(), 1);
    for (before, single) in singles.iter().zip(&singles[1..]).take(SHARED_MAX - 1) {
        let same = common.iter().zip(single.past_blocks()).take_while(|(ours, theirs)| ours == theirs).count();
        let (now, then) = (whole_tiles(common.len()) * (count - 1), whole_tiles(same) * count);
        if single.tile[0] != before.tile[0] + 1 || whole_tiles(same) < PREFIX_MIN || then < now {
            break;
        }
        (common, count) = (&common[..same], count + 1);
    }
    (count, whole_tiles(common.len()))
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
            if span.len > 1 {
                inputs.tile_keys = inputs.tile_keys.max(keys);
            }
            for first in (0..span.len).step_by(TILE_TOKENS) {
                let count = TILE_TOKENS.min(span.len - first);
                inputs.longest = inputs.longest.max(count);
                let tile = [(span.start + first) as u32, count as u32, (span.past + first) as u32, table];
                if span.len == 1 { singles.push(Single { tile, blocks }) } else { inputs.tiles.push(tile) }
            }
        }
        // Long ones first: a GPU starts threadgroups in order, and would end with few of its cores at work.
        inputs.tiles.sort_by_key(|tile| Reverse(tile[2]));
        inputs.singles = singles.len();
        inputs.place(&singles);
        inputs
    }

    /// Places single tiles before the others, and tiles of prefixes last.
    fn place(&mut self, singles: &[Single<'_>]) {
        let (mut apart, mut together, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = singles;
        while !rest.is_empty() {
            let (count, prefix) = sharing(rest);
            let (run, others) = rest.split_at(count);
            let read: usize = run.iter().map(Single::keys).sum();
            if (count - 1) * prefix * READS_PER_SAVED_MAX < read {
                apart.extend(run.iter().map(|single| single.tile));
            } else {
                runs.push((together.len(), run, prefix));
                together.extend(run.iter().map(|single| single.tile));
            }
            rest = others;
        }
        apart.sort_by_key(|tile| Reverse(tile[2]));
        let behind = apart.len();
        self.tiles.splice(0..0, apart.into_iter().chain(together));
        for (first, run, prefix) in runs {
            let [token, _, _, table] = run[0].tile;
            self.shared.push(Shared {
                tile: self.tiles.len(),
                first_tile: behind + first,
                count: run.len(),
                prefix,
                keys: run.iter().map(Single::keys).max().unwrap_or_default(),
            });
            self.tiles.push([token, run.len() as u32, prefix as u32 - 1, table]);
        }
    }

    /// Number of tiles, without those of prefixes.
    pub(super) fn own_tiles(&self) -> usize {
        self.tiles.len() - self.shared.len()
    }
}
