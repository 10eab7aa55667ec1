//! The blocks of the model's memory. Each is in one of four states, told by two fields:
//!
//! | state   | refs | key  | is in                         |
//! |---------|------|------|-------------------------------|
//! | free    | 0    | none | `free`                        |
//! | private | 1    | none | one sequence's table          |
//! | shared  | ≥ 1  | some | that many tables              |
//! | cached  | 0    | some | `cached`, by time of last use |
//!
//! A sequence that lets go of its blocks touches them from the last to the first, so a block is always colder than the
//! blocks before it in its text. Taking the coldest cached block therefore never cuts a child off from its parent.

use std::collections::BTreeMap;

use super::{index::Index, key::Key};

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) blocks: Vec<Block>,
    pub(super) free: Vec<u32>,
    pub(super) cached: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) refs: u32,
    pub(super) key: Option<Key>,
}

impl Pool {
    pub(super) fn new(count: u32) -> Self {
        let blocks = vec![Block::default(); count as usize];
        Self { blocks, free: (0..count).rev().collect(), cached: BTreeMap::new() }
    }

    /// How many blocks can be had right now.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// A private block: a free one, else the coldest cached one, which is forgotten.
    pub(super) fn allocate(&mut self, index: &mut Index) -> Option<u32> {
        let block = self.free.pop().or_else(|| self.cached.pop_first().map(|(_, block)| block))?;
        let state = &mut self.blocks[block as usize];
        if let Some(key) = state.key.take() {
            index.evict(key);
        }
        state.refs = 1;
        Some(block)
    }

    /// Gives a private block back.
    pub(super) fn discard(&mut self, block: u32) {
        self.blocks[block as usize].refs = 0;
        self.free.push(block);
    }

    /// One more table has this known block; `used` is when it was last used, under which it may be cached.
    pub(super) fn hold(&mut self, block: u32, used: u64) {
        let state = &mut self.blocks[block as usize];
        if state.refs == 0 {
            self.cached.remove(&used);
        }
        state.refs += 1;
    }

    /// One table less has this known block.
    pub(super) fn release(&mut self, block: u32, used: u64) {
        let state = &mut self.blocks[block as usize];
        state.refs -= 1;
        if state.refs == 0 {
            self.cached.insert(used, block);
        }
    }
}
