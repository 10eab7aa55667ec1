//! The blocks or slots of one group of caches. Each is in one of four states, told by two fields:
//!
//! | state   | refs | key  | is in                         |
//! |---------|------|------|-------------------------------|
//! | free    | 0    | none | `free`                        |
//! | private | 1    | none | one sequence's table          |
//! | shared  | ≥ 1  | some | that many tables              |
//! | cached  | 0    | some | `cached`, coldest first       |
//!
//! A sequence that ends releases its blocks from the last to the first, so a block is always colder than the blocks before
//! it in its text. Evicting the coldest cached block therefore never separates a child from its parent. Blocks that
//! a sequence frees on its way, such as those before a window, are colder than all that sequences ended with.

use std::collections::BTreeMap;

use super::key::Key;

/// Set in the times of what was released at the end of a text: warmer than anything that was freed on the way.
pub(super) const WARM: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct Pool {
    /// Those that have ever been in use.
    pub(super) blocks: Vec<Block>,
    /// How many there may be at most.
    limit: usize,
    pub(super) free: Vec<u32>,
    pub(super) cached: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) refs: u32,
    pub(super) key: Option<Key>,
    /// Time of its release, while it is cached.
    pub(super) used: u64,
}

impl Pool {
    pub(super) fn new(count: u32) -> Self {
        Self { blocks: Vec::new(), limit: count as usize, free: Vec::new(), cached: BTreeMap::new() }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Blocks that no sequence uses and that have no known content.
    pub(super) fn unused(&self) -> usize {
        self.free.len() + self.limit - self.blocks.len()
    }

    /// Blocks that can be allocated right now.
    pub(super) fn available(&self) -> usize {
        self.unused() + self.cached.len()
    }

    /// Allocates a private block: a free one, else the coldest cached one, with the key that it was known by.
    pub(super) fn allocate(&mut self) -> Option<(u32, Option<Key>)> {
        if self.free.is_empty() && self.blocks.len() < self.limit {
            self.free.push(self.blocks.len() as u32);
            self.blocks.push(Block::default());
        }
        let block = self.free.pop().or_else(|| self.cached.pop_first().map(|(_, block)| block))?;
        let state = &mut self.blocks[block as usize];
        state.refs = 1;
        Some((block, state.key.take()))
    }

    /// Frees a private block.
    pub(super) fn discard(&mut self, block: u32) {
        self.blocks[block as usize].refs = 0;
        self.free.push(block);
    }

    /// Adds a reference to a known block.
    pub(super) fn hold(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        if state.refs == 0 {
            self.cached.remove(&state.used);
        }
        state.refs += 1;
    }

    /// Drops a reference. A private block becomes free; a known one without references is cached, with `used` as its time.
    pub(super) fn release(&mut self, block: u32, used: u64) {
        let state = &mut self.blocks[block as usize];
        if state.key.is_none() {
            return self.discard(block);
        }
        state.refs -= 1;
        if state.refs == 0 {
            state.used = used;
            self.cached.insert(used, block);
        }
    }

    /// Makes a known block unknown; a cached one becomes free.
    pub(super) fn forget(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        state.key = None;
        if state.refs == 0 {
            self.cached.remove(&state.used);
            self.free.push(block);
        }
    }
}
