//! The blocks or slots of one group of caches. Each is in one of four states, told by two fields:
//!
//! | state   | refs | key  | is in                         |
//! |---------|------|------|-------------------------------|
//! | free    | 0    | none | `free`                        |
//! | private | 1    | none | one sequence's table          |
//! | shared  | ≥ 1  | some | that many tables              |
//! | cached  | 0    | some | `cached`, coldest first       |
//!
//! A sequence that lets go of its blocks touches them from the last to the first, so a block is always colder than the
//! blocks before it in its text. Taking the coldest cached block therefore never cuts a child off from its parent. What a
//! sequence leaves behind on its way, such as the blocks before a window, is colder than all that sequences ended with.

use std::collections::BTreeMap;

use super::key::Key;

/// What was let go as the end of a text is warmer than anything that was left on the way.
pub(super) const WARM: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct Pool {
    /// As many as have ever been in use.
    pub(super) blocks: Vec<Block>,
    /// How many there may be.
    limit: usize,
    pub(super) free: Vec<u32>,
    pub(super) cached: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) refs: u32,
    pub(super) key: Option<Key>,
    /// When it was let go, while it is cached.
    pub(super) used: u64,
}

impl Pool {
    pub(super) fn new(count: u32) -> Self {
        Self { blocks: Vec::new(), limit: count as usize, free: Vec::new(), cached: BTreeMap::new() }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// How many blocks no sequence uses and that are known for nothing.
    pub(super) fn unused(&self) -> usize {
        self.free.len() + self.limit - self.blocks.len()
    }

    /// How many blocks can be had right now.
    pub(super) fn available(&self) -> usize {
        self.unused() + self.cached.len()
    }

    /// A private block: a free one, else the coldest cached one, and the key that it was known by.
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

    /// Gives a private block back.
    pub(super) fn discard(&mut self, block: u32) {
        self.blocks[block as usize].refs = 0;
        self.free.push(block);
    }

    /// One more table has this known block.
    pub(super) fn hold(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        if state.refs == 0 {
            self.cached.remove(&state.used);
        }
        state.refs += 1;
    }

    /// One table less has this block. A private one is free; one that is known stays cached from `used` on.
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

    /// A cached block is not known any more.
    pub(super) fn forget(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        state.key = None;
        if state.refs == 0 {
            self.cached.remove(&state.used);
            self.free.push(block);
        }
    }
}
