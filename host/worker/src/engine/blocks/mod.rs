//! The block table and prefix cache: which blocks of the model's memory hold which tokens of which sequence. Memory is
//! allocated in blocks of a few tokens, and in slots for recurrent states, so that sequences grow without a reservation
//! and common prefixes are computed once. A full block is published under the hash of its text (`key`), any sequence
//! that continues the same text shares it, and a block without a sequence stays cached until its memory is needed
//! (`pool`). Blocks can also be cached on disk (`disk`); the table decides what to copy where, and the engine copies.
//!
//! One cache group keeps all tokens: the *primary* group. A sequence's primary table starts with shared blocks, its
//! *chain*, followed by private ones that it fills. Blocks join the chain once they are full and the step that computed
//! them is done, so shared blocks are never written again. The other groups are *secondary* (`secondary`): a
//! sliding-window group frees blocks that have left its window, and copies of a recurrent state (checkpoints) are left
//! at block boundaries. A text can be continued at the last boundary for which the primary blocks are indexed, the
//! windows are complete and a checkpoint exists; that boundary is the sequence's *reach*. A model without a group that
//! keeps all tokens gets a primary group that takes no memory.
//!
//! The last token of a text is always computed, as its logits are needed, so its block is never reused.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod check;
mod disk;
mod index;
mod indexed_block;
mod key;
mod layout;
mod pool;
mod rank;
mod recall;
mod secondary;
mod sequence_tables;
#[cfg(test)]
mod tests;
mod text;

pub use disk::{Import, Record, Spill};
pub use key::Key;
pub use layout::{Full, Group, Kind, Layout, Usage};
pub use rank::Eviction;
pub use sequence_tables::CacheLocation;
pub use text::{ItemSpan, SequenceText, run_around};

use std::{collections::HashMap, time::Duration};

use index::Index;
use indexed_block::{Disk, Published};
use key::Chain;
use pool::Pool;
use sequence_tables::SequenceTables;

#[derive(Debug)]
pub struct BlockTable {
    layout: Layout,
    /// Number of the model's groups. A primary group added by the table comes after them.
    groups: usize,
    chain: Chain,
    pools: Vec<Pool>,
    index: Index,
    sequences: HashMap<u64, SequenceTables>,
    /// Time of the current plan, for records of evictions.
    now: Duration,
    /// Plain LRU, for comparison.
    #[cfg(test)]
    is_plain_lru: bool,
}

impl BlockTable {
    /// Returns an empty table. The secret keys the hashes; a persistent disk tier has to supply the same one after a
    /// restart.
    pub fn new(layout: Layout, secret: &[u8; 16]) -> Self {
        let groups = layout.groups.len();
        let layout = layout.with_primary();
        let primary = layout.primary();
        let costs = layout.groups.iter().map(|group| group.disk_bytes).collect();
        Self {
            groups,
            chain: Chain::new(secret, layout.block_tokens),
            pools: layout.groups.iter().map(|group| Pool::new(group.capacity)).collect(),
            index: Index::new(primary, layout.groups[primary].capacity, Disk::new(layout.disk_bytes, costs)),
            sequences: HashMap::new(),
            now: Duration::ZERO,
            #[cfg(test)]
            is_plain_lru: false,
            layout,
        }
    }

    /// Returns the root of all texts under a salt. The salt covers everything besides tokens that keys and values
    /// depend on, or that must not be shared across (model fingerprint, adapter content and scale, API key).
    pub fn root(&self, salt: &[u8]) -> Key {
        self.chain.root(salt)
    }

    /// Adds a sequence with empty tables.
    pub fn open(&mut self, sequence: u64, root: Key) {
        self.close(sequence);
        self.sequences.insert(sequence, SequenceTables::new(root, &self.layout));
    }

    /// Reuses cached blocks in memory that continue the sequence along `text`, its tokens, of which the first
    /// `computed` are computed. They replace private blocks in which the same tokens were being computed. Returns by
    /// how many blocks the sequence's reach has grown.
    pub fn share<'a>(&mut self, sequence: u64, text: impl Into<SequenceText<'a>>, computed: usize) -> usize {
        let text = text.into().without_last();
        let Some(walk) = self.walk(sequence, text, false) else { return 0 };
        let Some(owned) = self.sequences.get_mut(&sequence) else { return 0 };
        owned.branch = walk.keys.len() + owned.chain.len();
        let before = owned.reach;
        if walk.reach > before {
            self.take_over(sequence, &walk, computed);
        }
        self.sequences.get(&sequence).map_or(0, |owned| owned.reach - before)
    }

    /// Allocates room for a sequence's tokens `from..end`, all or nothing; tokens before `from` are computed. First
    /// frees blocks that no later token reads.
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
                let location = self.allocate(group, sequence).ok_or(Full)?;
                if let Some(owned) = self.sequences.get_mut(&sequence) {
                    owned.tables[group].push(location, behind);
                }
            }
        }
        Ok(())
    }

    /// Publishes the full blocks that a sequence has computed; `text` is its tokens up to there. If another sequence
    /// published the same text first, its block replaces this one, so that an indexed block's parent is always indexed.
    pub fn publish<'a>(&mut self, sequence: u64, text: impl Into<SequenceText<'a>>) {
        let text = text.into();
        let primary = self.index.primary;
        let mut superseded = Vec::new();
        while let Some(owned) = self.sequences.get_mut(&sequence) {
            let depth = owned.chain.len();
            let Some(link) = owned.next(&self.chain, text) else { break };
            let Some(slot) = owned.tables[primary].blocks.get_mut(depth) else { break };
            match self.index.publish(&link, *slot, rank::yields(sequence)) {
                Published::New => {
                    self.pools[primary].blocks[*slot as usize].key = Some(link.key);
                    if let Some(before) = self.index.branch(&link) {
                        superseded.push(before);
                    }
                }
                Published::Twin(block) => {
                    self.pools[primary].hold(block);
                    self.pools[primary].discard(std::mem::replace(slot, block));
                    self.index.reuse(&[link.key]);
                }
                Published::Collision => break,
            }
            owned.chain.push(link.key);
            owned.reach = owned.reach.max(depth + 1);
            self.publish_secondary(sequence, link.key, depth);
        }
        self.arrive(sequence, text.tokens.len());
        superseded.into_iter().for_each(|key| self.supersede(key));
    }

    /// Removes a sequence and releases its blocks and slots. Published ones stay cached.
    pub fn close(&mut self, sequence: u64) {
        let Some(owned) = self.sequences.remove(&sequence) else { return };
        self.let_go(owned);
    }

    /// Returns the sequence's location in each of the model's groups, which the plugin gets as cache tables.
    pub fn cache_locations(&self, sequence: u64) -> impl Iterator<Item = CacheLocation<'_>> {
        let tables = self.sequences.get(&sequence).map_or(&[][..], |owned| &owned.tables);
        tables.iter().take(self.groups).map(|table| table.location())
    }

    /// Number of the sequence's tokens that are already cached and need not be computed.
    pub fn known(&self, sequence: u64) -> usize {
        self.sequences.get(&sequence).map_or(0, |owned| owned.reach * self.layout.block_tokens)
    }

    /// Returns the key of the next block in a sequence's chain, if the text fills it.
    pub fn next_key<'a>(&self, sequence: u64, text: impl Into<SequenceText<'a>>) -> Option<Key> {
        self.sequences.get(&sequence)?.next(&self.chain, text.into().without_last()).map(|link| link.key)
    }

    /// Sets the time that is recorded for evictions from now on.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// The eviction of the block that a sequence's text would go on with, if it was in memory not long ago.
    pub fn eviction_of_next<'a>(&self, sequence: u64, text: impl Into<SequenceText<'a>>) -> Option<Eviction> {
        self.index.evicted.get(self.next_key(sequence, text)?)
    }

    /// Blocks and slots that a sequence still lacks in each group for `tokens` tokens plus one block.
    pub fn lacks(&self, sequence: u64, tokens: usize) -> Vec<usize> {
        let owned = self.sequences.get(&sequence);
        let lacks = |(index, group): (usize, &Group)| {
            let held = owned.map_or(0, |owned| owned.tables[index].held());
            group.wants(tokens + self.layout.block_tokens, self.layout.block_tokens).saturating_sub(held)
        };
        self.layout.groups.iter().enumerate().map(lacks).collect()
    }

    /// True if each group has this many blocks free or cached, so that no sequence needs to be preempted.
    pub fn has_room_for(&self, wanted: &[usize]) -> bool {
        wanted.iter().zip(&self.pools).all(|(wanted, pool)| *wanted <= pool.available())
    }

    /// Number of tokens that fit in memory.
    pub fn room(&self) -> usize {
        self.pools[self.index.primary].limit() * self.layout.block_tokens
    }

    /// The longest range of tokens that one step can compute; `None` for no limit besides [`BlockTable::room`].
    pub fn run_max(&self) -> Option<usize> {
        let windows = self.layout.groups.iter().filter_map(|group| match group.kind {
            Kind::Window(tokens) => Some((group.capacity as usize * self.layout.block_tokens).saturating_sub(tokens)),
            Kind::Tokens | Kind::State => None,
        });
        // The first and the last block may be filled in part.
        windows.min().map(|tokens| tokens.saturating_sub(2 * self.layout.block_tokens))
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

    /// True if in some group fewer than one in `share` blocks or slots is free.
    pub fn is_scarce(&self, share: usize) -> bool {
        self.pools[..self.groups].iter().any(|pool| pool.unused() * share < pool.limit())
    }

    /// Indexes the copies that an earlier run left on disk, coldest first; call it before anything is spilled. Damaged,
    /// unreachable or over-budget records come back from [`BlockTable::take_dropped`].
    pub fn restore(&mut self, records: &[Record]) {
        self.index.restore(&self.chain, records, self.layout.block_tokens);
    }

    /// Returns up to `count` blocks and slots worth copying to disk now, in the order in which to report them as
    /// [`BlockTable::spilled`]. Only the next `window` eviction candidates of each group are considered: a few before a
    /// step, all before an exit.
    pub fn to_spill(&self, window: usize, count: usize) -> Vec<Spill> {
        self.index.to_spill(&self.pools, window, count)
    }

    /// Records that a block or slot from [`BlockTable::to_spill`] has been written and can be read back.
    pub fn spilled(&mut self, key: Key, group: usize) {
        self.index.spilled(key, group);
    }

    /// Records that a copy on disk cannot be read back: writing it failed, or its file is damaged.
    pub fn lost(&mut self, key: Key, group: usize) {
        self.index.lost(key, group);
    }

    /// Returns the copies to delete from disk before anything else is spilled.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = (Key, usize)> + use<> {
        std::mem::take(&mut self.index.disk.dropped).into_iter()
    }

    /// Moves a text's rest, from this block on, down in the eviction order, unless a sequence holds it (`rank`).
    fn supersede(&mut self, key: Key) {
        #[cfg(test)]
        if self.is_plain_lru {
            return;
        }
        let primary = self.index.primary;
        let pool = &mut self.pools[primary];
        let (mut rest, mut next) = (Vec::<(Key, u32, Option<u32>)>::new(), Some(key));
        while let Some((key, entry)) = next.and_then(|key| Some((key, self.index.entries.get(&key)?))) {
            // A child that is gone may have left its key to another text.
            if rest.last().is_some_and(|(parent, depth, _)| (entry.parent, entry.depth) != (*parent, depth + 1)) {
                break;
            }
            let block = entry.location(primary);
            if entry.is_reused || block.is_some_and(|block| pool.blocks[block as usize].refs > 0) {
                break;
            }
            rest.push((key, entry.depth, block));
            next = entry.latest_child;
        }
        // From last to first, so that each ranks below the ones before it.
        for (key, _, block) in rest.into_iter().rev() {
            let used = self.index.supersede(key);
            if let Some(block) = block {
                pool.rank(block, used);
            }
        }
    }

    /// Allocates a private block or slot of a group for a sequence, evicting the coldest cached one if none is free.
    fn allocate(&mut self, group: usize, sequence: u64) -> Option<u32> {
        let (location, key) = self.pools[group].allocate()?;
        let eviction = Eviction { by: sequence, at: self.now };
        for (evicted, location) in key.map(|key| self.index.evict(group, key, eviction)).unwrap_or_default() {
            self.pools[evicted].forget(location);
        }
        Some(location)
    }
}
