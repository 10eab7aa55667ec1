//! A step's index data: tokens, positions, slots, block tables and state slots. A single copy uploads all of it to a
//! buffer at a fixed address, where a captured graph finds the next step's data.

use candle_core::cuda_backend::cudarc::driver::CudaSlice;

use super::{memory::failed, module::Module};
use crate::{Batch, Result, Span, Table, nn::BLOCK_TOKENS};

/// Initial capacity in words: a million blocks.
const ROOM: usize = 1 << 20;

/// Minimum number of new tokens for a prompt to attend in tiles; fewer attend one by one.
const TILED_MIN: usize = 16;

/// Tokens per tile of `attend_tiles`.
const TILE: usize = 64;

/// Words for the rows and states of a sequence, as in `recurrence.cu`.
const SEQUENCE_WORDS: usize = 5;

/// Marks padding, which is not written to caches.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// The buffer, and the offsets of the current step's parts.
pub(super) struct Inputs {
    buffer: CudaSlice<u32>,
    words: Vec<u32>,
    pub(super) tokens: usize,
    /// Number of tokens that attend one by one.
    pub(super) single: usize,
    pub(super) tiles: usize,
    /// Length of the longest sequence among those that attend one by one.
    pub(super) longest: usize,
    /// Length of the longest sequence.
    pub(super) longest_of_all: usize,
    /// Number of cache groups. A step without sequences has tables for as many, so that everything a graph reads stays
    /// in place.
    pub(super) groups: usize,
    /// Number of sequences and padding rows.
    pub(super) sequences: usize,
    /// Each sequence has one row.
    pub(super) is_single_rows: bool,
    groups_at: usize,
    sequences_at: usize,
    tables_at: usize,
    tiles_at: usize,
}

impl Inputs {
    pub(super) fn new(module: &Module) -> Result<Self> {
        let buffer = module.stream.alloc_zeros(ROOM).map_err(failed)?;
        Ok(Self {
            buffer,
            words: Vec::new(),
            tokens: 0,
            single: 0,
            tiles: 0,
            longest: 0,
            longest_of_all: 0,
            groups: 0,
            sequences: 0,
            is_single_rows: true,
            groups_at: 0,
            sequences_at: 0,
            tables_at: 0,
            tiles_at: 0,
        })
    }

    /// Uploads a batch, padded to `rows` tokens. Returns true if the buffer has not moved.
    pub(super) fn set(&mut self, module: &Module, batch: &Batch<'_>, rows: usize) -> Result<bool> {
        let (tokens, all) = (batch.tokens.len(), rows.max(batch.tokens.len()));
        let words = &mut self.words;
        words.clear();
        words.extend_from_slice(batch.tokens);
        words.resize(all, 0);
        words.extend_from_slice(batch.positions);
        words.resize(2 * all, 0);
        let (mut lens, mut single) = (vec![0; all], Vec::with_capacity(all));
        (self.longest, self.longest_of_all) = (0, 0);
        for span in &batch.spans {
            for index in 0..span.len {
                lens[span.start + index] = (span.past + index) as u32 + 1;
            }
            self.longest_of_all = self.longest_of_all.max(span.past + span.len);
            if span.len < TILED_MIN {
                single.extend((span.start..span.start + span.len).map(|token| token as u32));
                self.longest = self.longest.max(span.past + span.len);
            }
        }
        words.extend_from_slice(&lens);
        single.extend((tokens..all).map(|token| token as u32));
        (self.tokens, self.single) = (all, single.len());
        single.resize(all, 0);
        words.extend_from_slice(&single);
        self.groups_at = words.len();
        let (mut tables, mut tiles) = (Vec::new(), Vec::new());
        self.sequences = batch.spans.len() + all - tokens;
        self.is_single_rows = batch.spans.iter().all(|span| span.len == 1);
        let mut sequences = Vec::new();
        for group in 0..batch.spans.first().map_or(self.groups, |span| span.caches.len()) {
            let padding = (tokens..all).zip(batch.spans.len() as u32..);
            let mut starts = vec![0; tokens];
            starts.extend(padding.map(|(_, index)| index));
            for (index, span) in batch.spans.iter().enumerate() {
                place(span, group, words, &mut starts, &mut tables, &mut tiles);
                place_state(span, group, &mut starts, &mut sequences, &mut tables, index);
            }
            sequences.extend((tokens..all).flat_map(|row| [row as u32, 1, NO_SLOT, 0, 0]));
            words.resize(self.groups_at + (2 * group + 1) * all, NO_SLOT);
            words.extend_from_slice(&starts);
            self.tiles = tiles.len() / (group + 1);
        }
        self.sequences_at = words.len();
        words.extend_from_slice(&sequences);
        // Tiles are read as four words at once.
        words.resize(words.len().next_multiple_of(4), 0);
        self.tiles_at = words.len();
        words.extend(tiles.iter().flatten());
        self.tables_at = words.len();
        words.extend_from_slice(&tables);
        let stays = words.len() <= self.buffer.len();
        if !stays {
            self.buffer = module.stream.alloc_zeros(2 * words.len()).map_err(failed)?;
        }
        let mut part = self.buffer.slice_mut(..self.words.len());
        module.stream.memcpy_htod(&self.words, &mut part).map_err(failed)?;
        Ok(stays)
    }

    fn at(&self, module: &Module, word: usize) -> u64 {
        module.address(&self.buffer) + 4 * word as u64
    }

    pub(super) fn token_ids(&self, module: &Module) -> u64 {
        self.at(module, 0)
    }

    pub(super) fn positions(&self, module: &Module) -> u64 {
        self.at(module, self.tokens)
    }

    /// Per token: the number of tokens that it attends to.
    pub(super) fn lens(&self, module: &Module) -> u64 {
        self.at(module, 2 * self.tokens)
    }

    /// The tokens that attend one by one.
    pub(super) fn singles(&self, module: &Module) -> u64 {
        self.at(module, 3 * self.tokens)
    }

    /// Per token: the slot of its keys and values in a cache group.
    pub(super) fn slots(&self, module: &Module, group: usize) -> u64 {
        self.at(module, self.groups_at + 2 * group * self.tokens)
    }

    /// Per token: the start of its sequence's table in a cache group.
    pub(super) fn table_starts(&self, module: &Module, group: usize) -> u64 {
        self.at(module, self.groups_at + (2 * group + 1) * self.tokens)
    }

    /// Per token: the index of its sequence, in a group of states.
    pub(super) fn sequence_of(&self, module: &Module, group: usize) -> u64 {
        self.table_starts(module, group)
    }

    /// Per sequence: its rows and slots in a group of states.
    pub(super) fn sequences(&self, module: &Module, group: usize) -> u64 {
        self.at(module, self.sequences_at + group * self.sequences * SEQUENCE_WORDS)
    }

    /// The tiles, with the starts of their sequences' tables in a group.
    pub(super) fn tiles(&self, module: &Module, group: usize) -> u64 {
        self.at(module, self.tiles_at + 4 * group * self.tiles)
    }

    pub(super) fn tables(&self, module: &Module) -> u64 {
        self.at(module, self.tables_at)
    }
}

/// Records a span's rows and states for a group of states; each token gets its sequence's index instead of a table
/// start.
fn place_state(
    span: &Span<'_>,
    group: usize,
    starts: &mut [u32],
    sequences: &mut Vec<u32>,
    tables: &mut Vec<u32>,
    index: usize,
) {
    let mut one = [span.start as u32, span.len as u32, NO_SLOT, tables.len() as u32, 0];
    if let Some(Table::Slots { read, write, copies }) = span.caches.get(group) {
        starts[span.start..span.start + span.len].fill(index as u32);
        let saves = copies.iter().map(|copy| [(span.start + copy.after - span.past) as u32, copy.slot]);
        let last = [(span.start + span.len) as u32, *write];
        (one[2], one[4]) = (read.unwrap_or(NO_SLOT), copies.len() as u32 + 1);
        tables.extend(saves.chain([last]).flatten());
    }
    sequences.extend(one);
}

/// Records slots and table starts for a span's new tokens in a cache group; `NO_SLOT` in a group without blocks.
fn place(
    span: &Span<'_>,
    group: usize,
    slots: &mut Vec<u32>,
    starts: &mut [u32],
    tables: &mut Vec<u32>,
    tiles: &mut Vec<[u32; 4]>,
) {
    let (table_at, blocks) = (tables.len() as u32, span.blocks(group));
    tables.extend(blocks.iter().take((span.past + span.len).div_ceil(BLOCK_TOKENS)));
    for index in 0..span.len {
        let at = span.past + index;
        let slot = |block: &u32| block * BLOCK_TOKENS as u32 + (at % BLOCK_TOKENS) as u32;
        slots.push(blocks.get(at / BLOCK_TOKENS).map_or(NO_SLOT, slot));
        starts[span.start + index] = table_at;
    }
    if span.len >= TILED_MIN {
        let first = (0..span.len).step_by(TILE);
        tiles.extend(
            first.map(|at| {
                [(span.start + at) as u32, TILE.min(span.len - at) as u32, (span.past + at) as u32, table_at]
            }),
        );
    }
}
