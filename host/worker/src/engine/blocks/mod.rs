//! The block table and the prefix cache: what of the model's memory holds which tokens of which sequence. Memory is dealt
//! out in blocks of a few tokens, and in slots for states, so that sequences grow without a reservation and equal
//! beginnings are computed once: a block that is full and computed becomes known by what it holds (`key`), whichever
//! sequence continues the same text shares it, and when none does it stays cached until its room is needed (`pool`).
//! Blocks can also be known from disk (`disk`); the table says what to copy where, the engine copies.
//!
//! One group of caches keeps all tokens: the *spine*. A sequence's spine starts with shared blocks, its *chain*, followed by
//! private ones that it fills. Only full blocks join the chain and only after the step that computed them, so what is
//! shared is never written again. The other groups ride along (`riders`): a windowed group gives back what lies before its
//! window, and copies of a state are left at borders of blocks. So a text can be continued at the last border up to which
//! the spine is known, the windows are whole, and a copy of the state was left; that border is the sequence's *reach*. A
//! model without a group that keeps all tokens gets a spine that takes no memory.
//!
//! The last token of a text is always computed, as its logits are needed: its block is never taken over.

#[cfg(test)]
mod check;
mod disk;
mod entry;
mod holding;
mod index;
mod key;
mod layout;
mod pool;
mod recall;
mod riders;
#[cfg(test)]
mod tests;

pub use disk::{Import, Record, Spill};
pub use holding::Places;
pub use key::Key;
pub use layout::{Full, Group, Kind, Layout, Usage};

use std::collections::HashMap;

use entry::{Disk, Published};
use holding::Holding;
use index::Index;
use key::Chain;
use pool::Pool;

#[derive(Debug)]
pub struct BlockTable {
    layout: Layout,
    /// How many groups the model has; a spine of the table's own comes after them.
    groups: usize,
    chain: Chain,
    pools: Vec<Pool>,
    index: Index,
    holdings: HashMap<u64, Holding>,
}

impl BlockTable {
    /// A table with nothing in use. The secret keys the hashes: a disk tier that keeps the blocks needs the same one
    /// again.
    pub fn new(layout: Layout, secret: &[u8; 16]) -> Self {
        let groups = layout.groups.len();
        let layout = layout.with_spine();
        let spine = layout.spine();
        let costs = layout.groups.iter().map(|group| group.disk_bytes).collect();
        Self {
            groups,
            chain: Chain::new(secret, layout.block_tokens),
            pools: layout.groups.iter().map(|group| Pool::new(group.places)).collect(),
            index: Index::new(spine, Disk::new(layout.disk_bytes, costs)),
            holdings: HashMap::new(),
            layout,
        }
    }

    /// Where the texts of a salt begin: everything besides tokens that keys and values depend on, or that must not be
    /// shared across (model fingerprint, adapter content and scale, API key).
    pub fn root(&self, salt: &[u8]) -> Key {
        self.chain.root(salt)
    }

    /// Lets a sequence in, with empty tables.
    pub fn open(&mut self, sequence: u64, root: Key) {
        self.close(sequence);
        self.holdings.insert(sequence, Holding::new(root, &self.layout));
    }

    /// Takes over what is in memory and continues the sequence along `text`, its tokens, of which it has computed the first
    /// `computed`. It replaces private blocks in which the same was being computed. Answers how many blocks the sequence
    /// has come further.
    pub fn share(&mut self, sequence: u64, text: &[u32], computed: usize) -> usize {
        let text = without_last(text);
        let Some(walk) = self.walk(sequence, text, false) else { return 0 };
        let Some(holding) = self.holdings.get_mut(&sequence) else { return 0 };
        holding.branch = walk.keys.len() + holding.chain.len();
        let before = holding.reach;
        if walk.reach > before {
            self.take_over(sequence, &walk, computed);
        }
        self.holdings.get(&sequence).map_or(0, |holding| holding.reach - before)
    }

    /// Makes room for the tokens from `from` up to `end` of a sequence that has computed the ones before, all or nothing; what
    /// no later token reads is given back first.
    pub fn extend(&mut self, sequence: u64, from: usize, end: usize) -> Result<(), Full> {
        self.leave_behind(sequence, from);
        let Some(holding) = self.holdings.get(&sequence) else { return Ok(()) };
        let missing: Vec<usize> = self
            .layout
            .groups
            .iter()
            .zip(&holding.tables)
            .map(|(group, table)| table.missing(group, from, end, &self.layout))
            .collect();
        if missing.iter().zip(&self.pools).any(|(missing, pool)| *missing > pool.available()) {
            return Err(Full);
        }
        for (group, missing) in missing.into_iter().enumerate() {
            let behind = self.layout.behind(group, from);
            for _ in 0..missing {
                let place = self.allocate(group).ok_or(Full)?;
                if let Some(holding) = self.holdings.get_mut(&sequence) {
                    holding.tables[group].push(place, behind);
                }
            }
        }
        Ok(())
    }

    /// Makes known what a sequence has computed: `text` is its tokens up to there. Where another sequence was first
    /// with the same text, its block takes the place of this one's, so that known blocks always hang from known blocks.
    pub fn publish(&mut self, sequence: u64, text: &[u32]) {
        let spine = self.index.spine;
        while let Some(holding) = self.holdings.get_mut(&sequence) {
            let depth = holding.chain.len();
            let Some(link) = holding.next(&self.chain, text) else { break };
            let Some(slot) = holding.tables[spine].blocks.get_mut(depth) else { break };
            match self.index.publish(&link, *slot) {
                Published::New => self.pools[spine].blocks[*slot as usize].key = Some(link.key),
                Published::Twin(block) => {
                    self.pools[spine].hold(block);
                    self.pools[spine].discard(std::mem::replace(slot, block));
                }
                Published::Collision => break,
            }
            holding.chain.push(link.key);
            holding.reach = holding.reach.max(depth + 1);
            self.publish_riders(sequence, link.key, depth);
        }
        self.arrive(sequence, text.len());
    }

    /// Takes a sequence's blocks and slots back. Those that are known stay cached.
    pub fn close(&mut self, sequence: u64) {
        let Some(holding) = self.holdings.remove(&sequence) else { return };
        self.let_go(holding);
    }

    /// Where each of the model's groups keeps a sequence, for the model.
    pub fn places(&self, sequence: u64) -> impl Iterator<Item = Places<'_>> {
        let tables = self.holdings.get(&sequence).map_or(&[][..], |holding| &holding.tables);
        tables.iter().take(self.groups).map(|table| table.places())
    }

    /// How many tokens of a sequence need not be computed, as they lie in known blocks.
    pub fn known(&self, sequence: u64) -> usize {
        self.holdings.get(&sequence).map_or(0, |holding| holding.reach * self.layout.block_tokens)
    }

    /// What the next block of a sequence's chain will be called; none if the text ends before.
    pub fn next_key(&self, sequence: u64, text: &[u32]) -> Option<Key> {
        self.holdings.get(&sequence)?.next(&self.chain, without_last(text)).map(|link| link.key)
    }

    /// How many blocks and slots of each group a sequence lacks for `tokens` tokens and one block more.
    pub fn lacks(&self, sequence: u64, tokens: usize) -> Vec<usize> {
        let holding = self.holdings.get(&sequence);
        let lacks = |(place, group): (usize, &Group)| {
            let held = holding.map_or(0, |holding| holding.tables[place].held());
            group.wants(tokens + self.layout.block_tokens, self.layout.block_tokens).saturating_sub(held)
        };
        self.layout.groups.iter().enumerate().map(lacks).collect()
    }

    /// Whether the wanted number of each group can be had without taking any from a sequence.
    pub fn has_room_for(&self, wanted: &[usize]) -> bool {
        wanted.iter().zip(&self.pools).all(|(wanted, pool)| *wanted <= pool.available())
    }

    /// How many tokens there is memory for.
    pub fn room(&self) -> usize {
        self.pools[self.index.spine].limit() * self.layout.block_tokens
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

    /// Whether fewer than one in `share` blocks or slots of a group is free.
    pub fn is_scarce(&self, share: usize) -> bool {
        self.pools[..self.groups].iter().any(|pool| pool.unused() * share < pool.limit())
    }

    /// Takes in what an earlier run left on disk, coldest first, before anything is spilled. What is damaged, out of
    /// reach or too much comes back from [`BlockTable::take_dropped`].
    pub fn restore(&mut self, records: &[Record]) {
        self.index.restore(&self.chain, records, self.layout.block_tokens);
    }

    /// Up to `count` blocks and slots worth copying to disk now, in the order in which to report them as
    /// [`BlockTable::spilled`]. Only the `window` cached ones of each group that would be given away first are considered: a
    /// few before steps, all before an exit.
    pub fn to_spill(&self, window: usize, count: usize) -> Vec<Spill> {
        self.index.to_spill(&self.pools, window, count)
    }

    /// What [`BlockTable::to_spill`] named was copied out of the model's memory, and its bytes can be read back from
    /// now on.
    pub fn spilled(&mut self, key: Key, group: usize) {
        self.index.spilled(key, group);
    }

    /// A copy on disk cannot be read back: it could not be written, or its file is damaged.
    pub fn lost(&mut self, key: Key, group: usize) {
        self.index.lost(key, group);
    }

    /// What the disk need not keep any longer; to be deleted before anything else is spilled.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = (Key, usize)> + use<> {
        std::mem::take(&mut self.index.disk.dropped).into_iter()
    }

    /// A private block or slot of a group, at the expense of the coldest cached one.
    fn allocate(&mut self, group: usize) -> Option<u32> {
        let (place, key) = self.pools[group].allocate()?;
        for (rider, place) in key.map(|key| self.index.evict(group, key)).unwrap_or_default() {
            self.pools[rider].forget(place);
        }
        Some(place)
    }
}

/// What of a text may be taken over: its last token's logits are needed.
fn without_last(text: &[u32]) -> &[u32] {
    &text[..text.len().saturating_sub(1)]
}
