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
    rank::{Clock, Evicted, Eviction, Rank},
};

#[derive(Debug)]
pub(super) struct Index {
    pub(super) entries: HashMap<Key, IndexedBlock>,
    pub(super) disk: Disk,
    /// The group that keeps all tokens.
    pub(super) primary: usize,
    groups: usize,
    pub(super) clock: Clock,
    pub(super) evicted: Evicted,
}

impl Index {
    pub(super) fn new(primary: usize, capacity: u32, disk: Disk) -> Self {
        Self {
            entries: HashMap::new(),
            groups: disk.costs.len(),
            disk,
            primary,
            clock: Clock::default(),
            evicted: Evicted::new(capacity),
        }
    }

    fn entry(&mut self, link: &Link<'_>) -> IndexedBlock {
        let (tokens, used) = (link.tokens.into(), self.clock.live());
        let locations = vec![VACANT; self.groups].into();
        let (parent, depth) = (link.parent, link.depth);
        IndexedBlock {
            parent,
            depth,
            tokens,
            media: link.media,
            used,
            is_reused: false,
            gives_way: false,
            latest_child: None,
            locations,
            on_disk: 0,
            disk_children: 0,
        }
    }

    /// Returns the entry under the link's key, if its text matches.
    pub(super) fn find(&self, link: &Link<'_>) -> Option<&IndexedBlock> {
        self.entries.get(&link.key).filter(|entry| entry.is(link))
    }

    /// Publishes the primary block of an entry. `yields` if it gives way to other texts in case it was evicted before.
    pub(super) fn publish(&mut self, link: &Link<'_>, block: u32, yields: bool) -> Published {
        let new = self.entry(link);
        let primary = self.primary;
        // What gives way does so with all that follows it.
        let gives_way = (self.evicted.remove(link.key) && yields)
            || self.entries.get(&link.parent).is_some_and(|parent| parent.gives_way);
        let entry = match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(vacant) => vacant.insert(new),
            hash_map::Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if !entry.is(link) {
            return Published::Collision;
        }
        let published = entry.put(primary, block);
        if matches!(published, Published::New) {
            entry.gives_way = gives_way;
        }
        published
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
    pub(super) fn evict(&mut self, group: usize, key: Key, eviction: Eviction) -> Vec<(usize, u32)> {
        let Some(entry) = self.entries.get_mut(&key) else { return Vec::new() };
        entry.locations[group] = VACANT;
        if group != self.primary {
            return Vec::new();
        }
        self.evicted.add(key, eviction);
        let evicted = entry.locations.iter_mut().enumerate();
        let evicted = evicted.map(|(group, location)| (group, std::mem::replace(location, VACANT)));
        let evicted = evicted.filter(|(_, location)| *location != VACANT).collect();
        if entry.on_disk == 0 {
            self.entries.remove(&key);
        }
        evicted
    }

    /// Uses an entry now and returns its new rank. Its primary block must not be in a pool's `cached` map, which is
    /// ordered by the old one.
    pub(super) fn touch(&mut self, key: Key) -> Rank {
        let gives_way = self.entries.get(&key).is_some_and(|entry| entry.gives_way);
        let used = if gives_way { self.clock.low() } else { self.clock.live() };
        self.move_to(key, used);
        used
    }

    /// Records that a sequence holds these consecutive blocks of a text, which another has published.
    pub(super) fn reuse(&mut self, keys: &[Key]) {
        // It holds the blocks before them, too.
        let mut next = keys.last().copied();
        while let Some(key) = next.take()
            && let Some(entry) = self.entries.get_mut(&key)
        {
            let is_known = std::mem::replace(&mut entry.is_reused, true) && !entry.gives_way;
            entry.gives_way = false;
            next = (entry.depth > 0 && !is_known).then_some(entry.parent);
        }
        for key in keys.iter().rev() {
            self.touch(*key);
        }
    }

    /// Records a block's newest child. Returns the one before it, if it is another one that was never reused.
    pub(super) fn branch(&mut self, link: &Link<'_>) -> Option<Key> {
        let parent = self.entries.get_mut(&link.parent).filter(|_| link.depth > 0)?;
        let before = parent.latest_child.replace(link.key).filter(|before| *before != link.key)?;
        self.entries.get(&before).filter(|before| !before.is_reused && before.parent == link.parent).map(|_| before)
    }

    /// Moves an entry down in the eviction order, and returns its new rank, as [`Self::touch`] does.
    pub(super) fn supersede(&mut self, key: Key) -> Rank {
        let used = self.clock.low();
        self.move_to(key, used);
        used
    }

    fn move_to(&mut self, key: Key, used: Rank) {
        if let Some(entry) = self.entries.get_mut(&key) {
            self.disk.moved(key, entry, used, self.primary);
            entry.used = used;
        }
    }
}
