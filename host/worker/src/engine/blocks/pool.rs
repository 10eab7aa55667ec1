//! The blocks or slots of one cache group. Each is in one of four states, given by two fields:
//!
//! | state   | refs | key  | is in                         |
//! |---------|------|------|-------------------------------|
//! | free    | 0    | none | `free`                        |
//! | private | 1    | none | one sequence's table          |
//! | shared  | ≥ 1  | some | that many tables              |
//! | cached  | 0    | some | `cached`, coldest first       |
//!
//! A sequence that ends releases its blocks from last to first, so a block is always colder than the earlier blocks of
//! its text (`rank`). Evicting the coldest cached block therefore never separates a child from its parent. Blocks that a
//! sequence frees while running, such as those behind a window, are colder than all blocks released at a sequence's
//! end.

use std::collections::BTreeMap;

use super::{key::Key, rank::Rank};

#[derive(Debug)]
pub(super) struct Pool {
    /// Blocks that have ever been in use.
    pub(super) blocks: Vec<Block>,
    /// Maximum number of blocks.
    limit: usize,
    pub(super) free: Vec<u32>,
    pub(super) cached: BTreeMap<Rank, u32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) refs: u32,
    pub(super) key: Option<Key>,
    /// Its place in the eviction order, while it is cached.
    pub(super) used: Rank,
}

impl Pool {
    pub(super) fn new(count: u32) -> Self {
        Self { blocks: Vec::new(), limit: count as usize, free: Vec::new(), cached: BTreeMap::new() }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Blocks that no sequence uses and that have no indexed content.
    pub(super) fn unused(&self) -> usize {
        self.free.len() + self.limit - self.blocks.len()
    }

    /// Blocks that can be allocated now.
    pub(super) fn available(&self) -> usize {
        self.unused() + self.cached.len()
    }

    /// Allocates a private block: a free one, or else the coldest cached one, returned with its former key.
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

    /// Adds a reference to a published block.
    pub(super) fn hold(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        if state.refs == 0 {
            self.cached.remove(&state.used);
        }
        state.refs += 1;
    }

    /// Drops a reference. An unreferenced private block becomes free; a published one is cached, with `used` as its
    /// rank.
    pub(super) fn release(&mut self, block: u32, used: Rank) {
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

    /// Changes the rank of a cached block.
    pub(super) fn rank(&mut self, block: u32, used: Rank) {
        let state = &mut self.blocks[block as usize];
        self.cached.remove(&state.used);
        state.used = used;
        self.cached.insert(used, block);
    }

    /// Removes a block's key; a cached block becomes free.
    pub(super) fn forget(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        state.key = None;
        if state.refs == 0 {
            self.cached.remove(&state.used);
            self.free.push(block);
        }
    }
}
