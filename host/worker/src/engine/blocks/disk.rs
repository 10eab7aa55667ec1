//! The disk tier's part of the index. No I/O happens here: the engine copies blocks and slots out and in, and reports
//! the result. A block on disk is only reachable through its parent, so parents are written before their children, and
//! leaves are dropped first, the least recently used first. Copies of secondary groups are dropped separately, in the
//! LRU order of their entries. A copy only displaces colder ones, so that the contents of memory and disk settle
//! instead of being copied back and forth.

use std::collections::BTreeSet;

use super::{
    index::Index,
    indexed_block::IndexedBlock,
    key::{Chain, Key, Link},
    pool::Pool,
    rank::Rank,
};

/// Header of a block or slot on disk, from which it is indexed after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Identifies the block and all text before it.
    pub key: Key,
    pub group: usize,
    /// The previous block, or the root of the chain.
    pub parent: Key,
    pub depth: u32,
    pub tokens: Box<[u32]>,
    /// A hash of the items that some of the tokens belong to.
    pub media: Option<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    pub location: u32,
    /// Header to write with its bytes.
    pub record: Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Import {
    pub sequence: u64,
    pub key: Key,
    pub group: usize,
    pub location: u32,
}

impl Index {
    /// Indexes the copies that an earlier run left on disk, coldest first; some of them may be in memory by now.
    /// Damaged, unreachable or over-budget copies are dropped.
    pub(super) fn restore(&mut self, chain: &Chain, records: &[Record], block_tokens: usize) {
        let primary = self.primary;
        let mut order: Vec<&Record> = records.iter().collect();
        order.sort_by_key(|record| (record.depth, record.group != primary));
        for record in order {
            let Record { key, group, parent, depth, ref tokens, media } = *record;
            let link = Link { key, parent, depth, tokens, media };
            let whole = group < self.disk.costs.len()
                && tokens.len() == block_tokens
                && chain.key(parent, tokens, media.as_ref()) == key;
            let below = |entry: &IndexedBlock| entry.is_on_disk(primary) && entry.depth + 1 == depth;
            let above = depth == 0 || self.entries.get(&parent).is_some_and(below);
            let known = self.entries.get(&key).map(|entry| entry.is_on_disk(group));
            let has_primary = || self.find(&link).is_some_and(|entry| entry.is_on_disk(primary));
            match known {
                Some(true) => {}
                _ if !(whole && above) => drop(self.disk.dropped.insert((key, group))),
                _ if group != primary && !has_primary() => drop(self.disk.dropped.insert((key, group))),
                Some(false) => self.attach(key, group),
                None => {
                    self.insert(&link);
                    self.attach(key, group);
                }
            }
        }
        for record in records {
            // Those in memory already have their place in the pool's LRU order.
            if self.entries.get(&record.key).is_some_and(|entry| entry.location(primary).is_none()) {
                self.touch(record.key);
            }
        }
        self.shrink();
    }

    /// Returns up to `count` blocks and slots to write to disk, parents first: the coldest cached ones, considering
    /// only the `window` coldest of each group. What is superseded or was freed while its sequence was running is skipped.
    pub(super) fn to_spill(&self, pools: &[Pool], window: usize, count: usize) -> Vec<Spill> {
        let mut plan = Plan {
            index: self,
            chosen: Vec::new(),
            picked: BTreeSet::new(),
            room: self.disk.budget.saturating_sub(self.disk.bytes),
            colder: self.disk.droppable.iter().map(|((used, group), _)| (*used, self.disk.costs[*group])).peekable(),
        };
        for (group, pool) in pools.iter().enumerate() {
            for (_, &location) in pool.cached.range(Rank::LIVE..).take(window) {
                let Some(key) = pool.blocks[location as usize].key else { continue };
                if plan.chosen.len() < count {
                    plan.choose(key, group, count);
                }
            }
        }
        plan.chosen
    }

    pub(super) fn spilled(&mut self, key: Key, group: usize) {
        let primary = self.primary;
        let entry = self.entries.get(&key);
        if entry.is_some_and(|entry| entry.is_on_disk(group)) {
            return;
        }
        let on_disk = |entry: &IndexedBlock| entry.is_on_disk(primary);
        let hangs = entry.is_some_and(|entry| match group == primary {
            true => entry.depth == 0 || self.entries.get(&entry.parent).is_some_and(on_disk),
            false => on_disk(entry),
        });
        if hangs {
            self.attach(key, group);
            self.shrink();
        } else {
            // Its parent or primary copy has been displaced in the meantime.
            self.disk.dropped.insert((key, group));
        }
    }

    /// Drops an unreadable copy; a primary one with all its descendants on disk.
    pub(super) fn lost(&mut self, key: Key, group: usize) {
        let primary = self.primary;
        let Some(top) = self.entries.get(&key).filter(|entry| entry.is_on_disk(group)) else { return };
        if group != primary {
            return self.detach(key, group);
        }
        let deeper = |(_, entry): &(&Key, &IndexedBlock)| entry.is_on_disk(primary) && entry.depth > top.depth;
        let mut below: Vec<(u32, Key, Key)> =
            self.entries.iter().filter(deeper).map(|(key, entry)| (entry.depth, *key, entry.parent)).collect();
        below.sort_unstable();
        let mut lost = BTreeSet::from([key]);
        below.retain(|(_, key, parent)| lost.contains(parent) && lost.insert(*key));
        for (_, key, _) in below.into_iter().rev() {
            self.detach(key, primary);
        }
        self.detach(key, primary);
    }

    fn shrink(&mut self) {
        while self.disk.bytes > self.disk.budget {
            let Some((&(_, group), &key)) = self.disk.droppable.first_key_value() else { return };
            self.detach(key, group);
        }
    }

    /// Records that a group's copy of an entry is on disk. A primary copy becomes a leaf.
    fn attach(&mut self, key: Key, group: usize) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.on_disk |= 1 << group;
        let (used, parent, depth) = (entry.used, entry.parent, entry.depth);
        self.disk.droppable.insert((used, group), key);
        self.disk.dropped.remove(&(key, group));
        self.disk.bytes += self.disk.costs[group];
        self.disk.len += 1;
        if group == self.primary
            && depth > 0
            && let Some(parent) = self.entries.get_mut(&parent)
        {
            parent.disk_children += 1;
            self.disk.droppable.remove(&(parent.used, group));
        }
    }

    /// Removes from disk a leaf with its secondary copies, or one secondary copy.
    fn detach(&mut self, key: Key, group: usize) {
        let primary = self.primary;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let (used, parent, depth, mine) = (entry.used, entry.parent, entry.depth, entry.on_disk);
        let gone = if group == primary { mine } else { mine & 1 << group };
        entry.on_disk &= !gone;
        if entry.on_disk == 0 && entry.location(primary).is_none() {
            self.entries.remove(&key);
        }
        for group in (0..self.disk.costs.len()).filter(|group| gone >> group & 1 == 1) {
            self.disk.droppable.remove(&(used, group));
            self.disk.dropped.insert((key, group));
            self.disk.bytes -= self.disk.costs[group];
            self.disk.len -= 1;
        }
        if group == primary
            && depth > 0
            && let Some(entry) = self.entries.get_mut(&parent)
        {
            entry.disk_children -= 1;
            if entry.disk_children == 0 {
                self.disk.droppable.insert((entry.used, primary), parent);
            }
        }
    }
}

/// Selection of copies to write.
struct Plan<'a, I: Iterator<Item = (Rank, u64)>> {
    index: &'a Index,
    chosen: Vec<Spill>,
    picked: BTreeSet<(Key, usize)>,
    room: u64,
    /// Copies that may be displaced: rank and size in bytes.
    colder: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = (Rank, u64)>> Plan<'_, I> {
    /// Selects a group's copy of an entry, after the primary blocks that it depends on, as far as there is room.
    fn choose(&mut self, key: Key, group: usize, count: usize) {
        let primary = self.index.primary;
        let mut missing = vec![(key, group)];
        let mut next = Some(key);
        while let Some(key) = next {
            let Some(entry) = self.index.entries.get(&key) else { break };
            if entry.is_on_disk(primary) || self.picked.contains(&(key, primary)) {
                break;
            }
            if (key, primary) != missing[0] {
                missing.push((key, primary));
            }
            next = (entry.depth > 0).then_some(entry.parent);
        }
        while let Some((key, group)) = missing.pop() {
            let Some(entry) = self.index.entries.get(&key) else { return };
            if self.picked.contains(&(key, group)) || entry.is_on_disk(group) {
                continue;
            }
            if self.chosen.len() == count {
                return;
            }
            let cost = self.index.disk.costs[group];
            while self.room < cost
                && let Some((_, bytes)) = self.colder.next_if(|(used, _)| *used < entry.used)
            {
                self.room += bytes;
            }
            let Some(location) = entry.location(group).filter(|_| self.room >= cost) else { return };
            self.room -= cost;
            self.picked.insert((key, group));
            let (parent, depth, tokens) = (entry.parent, entry.depth, entry.tokens.clone());
            let record = Record { key, group, parent, depth, tokens, media: entry.media };
            self.chosen.push(Spill { location, record });
        }
    }
}
