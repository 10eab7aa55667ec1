//! The block table and the prefix cache: which blocks of the model's memory hold which tokens of which sequence. Memory is
//! allocated in blocks of a few tokens, and in slots for recurrent states, so that sequences grow without a reservation and
//! common prefixes are computed once: a full block is published under the hash of its text (`key`), any sequence that
//! continues the same text shares it, and a block that no sequence uses stays cached until its memory is needed (`pool`).
//! Blocks can also be cached on disk (`disk`); the table says what to copy where, the engine copies.
//!
//! One cache group keeps all tokens: the *primary* group. A sequence's primary table starts with shared blocks, its *chain*,
//! followed by private ones that it fills. Blocks join the chain once they are full and the step that computed them is done,
//! so shared blocks are never written again. The other groups are *secondary* (`secondary`): a sliding-window group frees
//! blocks that have left its window, and copies of a recurrent state (checkpoints) are left at block boundaries. A text can
//! be continued at the last boundary up to which the primary blocks are known, the windows are complete, and a checkpoint
//! exists; that boundary is the sequence's *reach*. A model without a group that keeps all tokens gets a primary group that
//! takes no memory.
//!
//! The last token of a text is always computed, as its logits are needed: its block is never taken over.

#[cfg(test)]
mod check;
mod disk;
mod index;
mod indexed_block;
mod key;
mod layout;
mod pool;
mod recall;
mod secondary;
mod sequence_tables;
#[cfg(test)]
mod tests;

pub use disk::{Import, Record, Spill};
pub use key::Key;
pub use layout::{Full, Group, Kind, Layout, Usage};
pub use sequence_tables::CacheLocation;

use std::collections::HashMap;

use index::Index;
use indexed_block::{Disk, Published};
use key::Chain;
use pool::Pool;
use sequence_tables::SequenceTables;

#[derive(Debug)]
pub struct BlockTable {
    layout: Layout,
    /// Groups that the model has. A primary group that the table adds itself comes after them.
    groups: usize,
    chain: Chain,
    pools: Vec<Pool>,
    index: Index,
    sequences: HashMap<u64, SequenceTables>,
}

impl BlockTable {
    /// A table with nothing in use. The secret keys the hashes: a disk tier that keeps the blocks needs the same one
    /// again.
    pub fn new(layout: Layout, secret: &[u8; 16]) -> Self {
        let groups = layout.groups.len();
        let layout = layout.with_primary();
        let primary = layout.primary();
        let costs = layout.groups.iter().map(|group| group.disk_bytes).collect();
        Self {
            groups,
            chain: Chain::new(secret, layout.block_tokens),
            pools: layout.groups.iter().map(|group| Pool::new(group.capacity)).collect(),
            index: Index::new(primary, Disk::new(layout.disk_bytes, costs)),
            sequences: HashMap::new(),
            layout,
        }
    }

    /// The root of all texts under a salt. The salt covers everything besides tokens that keys and values depend on, or that
    /// must not be shared across (model fingerprint, adapter content and scale, API key).
    pub fn root(&self, salt: &[u8]) -> Key {
        self.chain.root(salt)
    }

    /// Adds a sequence with empty tables.
    pub fn open(&mut self, sequence: u64, root: Key) {
        self.close(sequence);
        self.sequences.insert(sequence, SequenceTables::new(root, &self.layout));
    }

    /// Takes over cached blocks in memory that continue the sequence along `text`, its tokens, of which it has computed the
    /// first `computed`. They replace private blocks in which the same tokens were being computed. Returns by how many blocks
    /// the sequence's reach has grown.
    pub fn share(&mut self, sequence: u64, text: &[u32], computed: usize) -> usize {
        let text = without_last(text);
        let Some(walk) = self.walk(sequence, text, false) else { return 0 };
        let Some(owned) = self.sequences.get_mut(&sequence) else { return 0 };
        owned.branch = walk.keys.len() + owned.chain.len();
        let before = owned.reach;
        if walk.reach > before {
            self.take_over(sequence, &walk, computed);
        }
        self.sequences.get(&sequence).map_or(0, |owned| owned.reach - before)
    }

    /// Allocates room for the tokens from `from` up to `end` of a sequence that has computed the ones before, all or nothing.
    /// Frees first what no later token reads.
    pub fn extend(&mut self, sequence: u64, from: usize, end: usize) -> Result<(), Full> {
        self.leave_behind(sequence, from);
        let Some(owned) = self.sequences.get(&sequence) else { return Ok(()) };
        let missing: Vec<usize> = self
            .layout
            .groups
            .iter()
            .zip(&owned.tables)
            .map(|(group, table)| table.missing(group, from, end, &self.layout))
            .collect();
        if missing.iter().zip(&self.pools).any(|(missing, pool)| *missing > pool.available()) {
            return Err(Full);
        }
        for (group, missing) in missing.into_iter().enumerate() {
            let behind = self.layout.behind(group, from);
            for _ in 0..missing {
                let location = self.allocate(group).ok_or(Full)?;
                if let Some(owned) = self.sequences.get_mut(&sequence) {
                    owned.tables[group].push(location, behind);
                }
            }
        }
        Ok(())
    }

    /// Publishes the full blocks that a sequence has computed: `text` is its tokens up to there. Where another sequence was
    /// first with the same text, its block replaces this one's, so that the parent of a known block is always known.
    pub fn publish(&mut self, sequence: u64, text: &[u32]) {
        let primary = self.index.primary;
        while let Some(owned) = self.sequences.get_mut(&sequence) {
            let depth = owned.chain.len();
            let Some(link) = owned.next(&self.chain, text) else { break };
            let Some(slot) = owned.tables[primary].blocks.get_mut(depth) else { break };
            match self.index.publish(&link, *slot) {
                Published::New => self.pools[primary].blocks[*slot as usize].key = Some(link.key),
                Published::Twin(block) => {
                    self.pools[primary].hold(block);
                    self.pools[primary].discard(std::mem::replace(slot, block));
                }
                Published::Collision => break,
            }
            owned.chain.push(link.key);
            owned.reach = owned.reach.max(depth + 1);
            self.publish_secondary(sequence, link.key, depth);
        }
        self.arrive(sequence, text.len());
    }

    /// Removes a sequence and releases its blocks and slots. Known ones stay cached.
    pub fn close(&mut self, sequence: u64) {
        let Some(owned) = self.sequences.remove(&sequence) else { return };
        self.let_go(owned);
    }

    /// Where each of the model's groups keeps a sequence: what the plugin gets as its cache tables.
    pub fn cache_locations(&self, sequence: u64) -> impl Iterator<Item = CacheLocation<'_>> {
        let tables = self.sequences.get(&sequence).map_or(&[][..], |owned| &owned.tables);
        tables.iter().take(self.groups).map(|table| table.location())
    }

    /// Tokens of a sequence that need not be computed, as they lie in known blocks.
    pub fn known(&self, sequence: u64) -> usize {
        self.sequences.get(&sequence).map_or(0, |owned| owned.reach * self.layout.block_tokens)
    }

    /// The key of the next block in a sequence's chain, if the text fills one.
    pub fn next_key(&self, sequence: u64, text: &[u32]) -> Option<Key> {
        self.sequences.get(&sequence)?.next(&self.chain, without_last(text)).map(|link| link.key)
    }

    /// Blocks and slots of each group that a sequence still needs for `tokens` tokens and one block more.
    pub fn lacks(&self, sequence: u64, tokens: usize) -> Vec<usize> {
        let owned = self.sequences.get(&sequence);
        let lacks = |(index, group): (usize, &Group)| {
            let held = owned.map_or(0, |owned| owned.tables[index].held());
            group.wants(tokens + self.layout.block_tokens, self.layout.block_tokens).saturating_sub(held)
        };
        self.layout.groups.iter().enumerate().map(lacks).collect()
    }

    /// Whether each group has the wanted number free or cached, so that no sequence must give any up.
    pub fn has_room_for(&self, wanted: &[usize]) -> bool {
        wanted.iter().zip(&self.pools).all(|(wanted, pool)| *wanted <= pool.available())
    }

    /// Tokens that there is memory for.
    pub fn room(&self) -> usize {
        self.pools[self.index.primary].limit() * self.layout.block_tokens
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for pool in &self.pools[..self.groups] {
            let (free, cached) = (pool.unused(), pool.cached.len());
            usage.free += free;
            usage.cached += cached;
            usage.active += pool.limit() - free - cached;
        }
        Usage { disk: self.index.disk.len, ..usage }
    }

    /// True if fewer than one in `share` blocks or slots of some group is free.
    pub fn is_scarce(&self, share: usize) -> bool {
        self.pools[..self.groups].iter().any(|pool| pool.unused() * share < pool.limit())
    }

    /// Indexes what an earlier run left on disk, coldest first; called before anything is spilled. Records that are damaged,
    /// unreachable or over the budget come back from [`BlockTable::take_dropped`].
    pub fn restore(&mut self, records: &[Record]) {
        self.index.restore(&self.chain, records, self.layout.block_tokens);
    }

    /// Up to `count` blocks and slots worth copying to disk now, in the order in which to report them as
    /// [`BlockTable::spilled`]. Only the `window` cached ones of each group that would be evicted first are considered: a
    /// few before steps, all before an exit.
    pub fn to_spill(&self, window: usize, count: usize) -> Vec<Spill> {
        self.index.to_spill(&self.pools, window, count)
    }

    /// A block or slot from [`BlockTable::to_spill`] was written, and can be read back from now on.
    pub fn spilled(&mut self, key: Key, group: usize) {
        self.index.spilled(key, group);
    }

    /// A copy on disk cannot be read back: writing it failed, or its file is damaged.
    pub fn lost(&mut self, key: Key, group: usize) {
        self.index.lost(key, group);
    }

    /// Copies to delete from disk before anything else is spilled.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = (Key, usize)> + use<> {
        std::mem::take(&mut self.index.disk.dropped).into_iter()
    }

    /// Allocates a private block or slot of a group; evicts the coldest cached one if none is free.
    fn allocate(&mut self, group: usize) -> Option<u32> {
        let (location, key) = self.pools[group].allocate()?;
        for (evicted, location) in key.map(|key| self.index.evict(group, key)).unwrap_or_default() {
            self.pools[evicted].forget(location);
        }
        Some(location)
    }
}

/// The part of a text that may come from the cache. The last token is always computed, as its logits are needed.
fn without_last(text: &[u32]) -> &[u32] {
    &text[..text.len().saturating_sub(1)]
}
