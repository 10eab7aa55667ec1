//! The disk tier's part of the index. Nothing here reads or writes: the engine copies blocks out and in, and tells.
//! What is on disk hangs together down from the roots, as a block without its parent could never be reached, so blocks
//! are written parents first and dropped leaves first, the least recently used leaf before others. A block displaces
//! colder ones only, so that what memory and disk hold settles instead of being copied in circles.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    index::{Entry, Index},
    key::{Chain, Key, Link},
    pool::Pool,
};

/// What the engine keeps in its index on disk of one block, to know it again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Names the block and all text before it.
    pub key: Key,
    /// The block before it, or the root of its chain.
    pub parent: Key,
    /// How many blocks come before it.
    pub depth: u32,
    /// Its tokens.
    pub tokens: Box<[u32]>,
}

/// A block to copy to disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// Where it lies in memory.
    pub block: u32,
    /// What to write beside its bytes.
    pub record: Record,
}

/// A block to copy from disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Import {
    /// The sequence that waits for it.
    pub sequence: u64,
    /// Which one to read.
    pub key: Key,
    /// Where to put it.
    pub block: u32,
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) budget: usize,
    pub(super) len: usize,
    /// Those on disk without children on disk, by their last use.
    pub(super) leaves: BTreeMap<u64, Key>,
    /// What the engine has yet to delete.
    pub(super) dropped: BTreeSet<Key>,
}

impl Disk {
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, len: 0, leaves: BTreeMap::new(), dropped: BTreeSet::new() }
    }

    /// Keeps the leaves in order when an entry's last use changes.
    pub(super) fn moved(&mut self, key: Key, entry: &Entry, used: u64) {
        if entry.on_disk && entry.disk_children == 0 {
            self.leaves.remove(&entry.used);
            self.leaves.insert(used, key);
        }
    }
}

impl Index {
    /// Takes in what an earlier run left on disk, coldest first; some of it may be in memory by now. What is damaged,
    /// unreachable or over the budget is dropped.
    pub(super) fn restore(&mut self, chain: &Chain, records: &[Record], block_tokens: usize) {
        let mut order: Vec<&Record> = records.iter().collect();
        order.sort_by_key(|record| record.depth);
        for record in order {
            let Record { key, parent, depth, ref tokens } = *record;
            let whole = tokens.len() == block_tokens && chain.key(parent, tokens) == key;
            let above = depth == 0 || self.entries.get(&parent).is_some_and(|p| p.on_disk && p.depth + 1 == depth);
            let known = self.entries.get(&key).map(|entry| entry.on_disk);
            match known {
                Some(true) => {}
                _ if !(whole && above) => drop(self.disk.dropped.insert(key)),
                Some(false) => self.attach(key),
                None => {
                    self.insert(&Link { key, parent, depth, tokens });
                    self.attach(key);
                }
            }
        }
        for record in records {
            // Those in memory have their place in the pool's order already.
            if self.entries.get(&record.key).is_some_and(|entry| entry.block.is_none()) {
                self.touch(record.key);
            }
        }
        self.shrink();
    }

    /// Up to `count` blocks that the disk should have, each after its parent: the coldest of the cached ones, of which
    /// only the `window` coldest are looked at, and what they hang from.
    pub(super) fn to_spill(&self, pool: &Pool, window: usize, count: usize) -> Vec<Spill> {
        let mut chosen: Vec<Spill> = Vec::new();
        let mut picked: BTreeSet<Key> = BTreeSet::new();
        let mut room = self.disk.budget - self.disk.len;
        let mut colder = self.disk.leaves.keys().peekable();
        for &block in pool.cached.values().take(window) {
            let mut missing = Vec::new();
            let mut next = pool.blocks[block as usize].key;
            while let Some(key) = next {
                let Some(entry) = self.entries.get(&key) else { break };
                if entry.on_disk || picked.contains(&key) {
                    break;
                }
                missing.push((key, entry));
                next = (entry.depth > 0).then_some(entry.parent);
            }
            while let Some((key, entry)) = missing.pop() {
                if chosen.len() == count {
                    return chosen;
                }
                let fits = room > 0 || colder.next_if(|used| **used < entry.used).is_some();
                let Some(block) = entry.block.filter(|_| fits) else { break };
                room = room.saturating_sub(1);
                picked.insert(key);
                let (parent, depth, tokens) = (entry.parent, entry.depth, entry.tokens.clone());
                chosen.push(Spill { block, record: Record { key, parent, depth, tokens } });
            }
        }
        chosen
    }

    /// A block's bytes were copied out.
    pub(super) fn spilled(&mut self, key: Key) {
        let Some(entry) = self.entries.get(&key).filter(|entry| !entry.on_disk) else { return };
        if entry.depth == 0 || self.entries.get(&entry.parent).is_some_and(|parent| parent.on_disk) {
            self.attach(key);
            self.shrink();
        }
    }

    /// A block cannot be read back: it is dropped, with all that hangs below it on disk.
    pub(super) fn lost(&mut self, key: Key) {
        let Some(top) = self.entries.get(&key).filter(|entry| entry.on_disk) else { return };
        let deeper = |(_, entry): &(&Key, &Entry)| entry.on_disk && entry.depth > top.depth;
        let mut below: Vec<(u32, Key, Key)> =
            self.entries.iter().filter(deeper).map(|(key, entry)| (entry.depth, *key, entry.parent)).collect();
        below.sort_unstable();
        let mut lost = BTreeSet::from([key]);
        below.retain(|(_, key, parent)| lost.contains(parent) && lost.insert(*key));
        for (_, key, _) in below.into_iter().rev() {
            self.detach(key);
        }
        self.detach(key);
    }

    fn shrink(&mut self) {
        while self.disk.len > self.disk.budget {
            let Some((_, &key)) = self.disk.leaves.first_key_value() else { return };
            self.detach(key);
        }
    }

    /// Puts an entry on disk, as a leaf.
    fn attach(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.on_disk = true;
        self.disk.leaves.insert(entry.used, key);
        self.disk.dropped.remove(&key);
        self.disk.len += 1;
        let parent = entry.parent;
        if entry.depth > 0
            && let Some(parent) = self.entries.get_mut(&parent)
        {
            parent.disk_children += 1;
            self.disk.leaves.remove(&parent.used);
        }
    }

    /// Takes a leaf off the disk.
    fn detach(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.on_disk = false;
        self.disk.leaves.remove(&entry.used);
        self.disk.dropped.insert(key);
        self.disk.len -= 1;
        let (parent, depth) = (entry.parent, entry.depth);
        if entry.block.is_none() {
            self.entries.remove(&key);
        }
        if depth > 0
            && let Some(entry) = self.entries.get_mut(&parent)
        {
            entry.disk_children -= 1;
            if entry.disk_children == 0 {
                self.disk.leaves.insert(entry.used, parent);
            }
        }
    }
}
