//! The index of full blocks: a forest in which each block is a child of the previous block of its text. An entry exists
//! as long as its primary block does, in memory, on disk or both. Each tier is closed towards the root: a block in
//! memory has its parent in memory, a block on disk has its parent on disk. So a lookup that walks down from the root
//! misses nothing, and comparing each block's own tokens and parent compares the whole text.
//!
//! For secondary groups, an entry records which window block holds the same tokens, and which slot holds a checkpoint
//! of the state after them. These come and go separately, but never outlive the primary block.

use std::collections::{HashMap, hash_map};

use pensieve_plugin_api::VACANT;

use super::{
    indexed_block::{Disk, IndexedBlock, Published},
    key::{Key, Link},
    pool::WARM,
};

#[derive(Debug)]
pub(super) struct Index {
    pub(super) entries: HashMap<Key, IndexedBlock>,
    pub(super) disk: Disk,
    /// The group that keeps all tokens.
    pub(super) primary: usize,
    groups: usize,
    /// Logical clock of the LRU order: counts uses.
    clock: u64,
}

impl Index {
    pub(super) fn new(primary: usize, disk: Disk) -> Self {
        Self { entries: HashMap::new(), groups: disk.costs.len(), disk, primary, clock: 0 }
    }

    fn entry(&mut self, link: &Link<'_>) -> IndexedBlock {
        let (tokens, used) = (link.tokens.into(), self.tick());
        let locations = vec![VACANT; self.groups].into();
        IndexedBlock { parent: link.parent, depth: link.depth, tokens, used, locations, on_disk: 0, disk_children: 0 }
    }

    /// Returns the entry under the link's key, if its text matches.
    pub(super) fn find(&self, link: &Link<'_>) -> Option<&IndexedBlock> {
        self.entries.get(&link.key).filter(|entry| entry.is(link))
    }

    /// Publishes the primary block of an entry.
    pub(super) fn publish(&mut self, link: &Link<'_>, block: u32) -> Published {
        let new = self.entry(link);
        let primary = self.primary;
        let entry = match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(vacant) => vacant.insert(new),
            hash_map::Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if !entry.is(link) {
            return Published::Collision;
        }
        entry.put(primary, block)
    }

    /// Publishes a secondary group's copy of an entry whose primary block is in memory.
    pub(super) fn publish_secondary(&mut self, key: Key, group: usize, location: u32) -> Published {
        let primary = self.primary;
        match self.entries.get_mut(&key).filter(|entry| entry.location(primary).is_some()) {
            Some(entry) => entry.put(group, location),
            None => Published::Collision,
        }
    }

    /// Adds an entry without a copy in memory or on disk; returns false if its key is taken.
    pub(super) fn insert(&mut self, link: &Link<'_>) -> bool {
        let new = self.entry(link);
        match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(new);
                true
            }
            hash_map::Entry::Occupied(_) => false,
        }
    }

    /// Records that a block or slot is evicted from memory. Returns the copies to evict with it, as (group, location):
    /// a primary block takes its secondary copies along.
    pub(super) fn evict(&mut self, group: usize, key: Key) -> Vec<(usize, u32)> {
        let Some(entry) = self.entries.get_mut(&key) else { return Vec::new() };
        entry.locations[group] = VACANT;
        if group != self.primary {
            return Vec::new();
        }
        let evicted = entry.locations.iter_mut().enumerate();
        let evicted = evicted.map(|(group, location)| (group, std::mem::replace(location, VACANT)));
        let evicted = evicted.filter(|(_, location)| *location != VACANT).collect();
        if entry.on_disk == 0 {
            self.entries.remove(&key);
        }
        evicted
    }

    /// Makes an entry the most recently used one and returns its new time. Its primary block must not be in a pool's
    /// `cached` map, which is ordered by the old time.
    pub(super) fn touch(&mut self, key: Key) -> u64 {
        let used = self.tick();
        let Some(entry) = self.entries.get_mut(&key) else { return used };
        self.disk.moved(key, entry, used, self.primary);
        entry.used = used;
        used
    }

    /// Advances the clock: warm for blocks released at the end of a text, cold for those freed earlier.
    pub(super) fn now(&mut self, warm: bool) -> u64 {
        let used = self.tick();
        if warm { used } else { used & !WARM }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock | WARM
    }
}
