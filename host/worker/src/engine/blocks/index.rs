//! What is known of full blocks: a forest in which a block hangs below the one before it in its text. An entry is known by
//! its *spine*, the block of the group that keeps all tokens, from memory, from disk or from both. Each tier is closed
//! towards the root: what is in memory has its parent in memory, what is on disk has its parent on disk. So a lookup that
//! walks down from the root misses nothing, and comparing each block's own tokens and parent compares the whole text.
//!
//! The other groups ride along: the entry says where the same tokens lie in a windowed group, and in which slot a copy of
//! the state after them was left. They come and go by themselves, but never stay where the spine has gone.

use std::collections::{HashMap, hash_map};

use pensieve_plugin_api::VACANT;

use super::{
    entry::{Disk, Entry, Published},
    key::{Key, Link},
    pool::WARM,
};

#[derive(Debug)]
pub(super) struct Index {
    pub(super) entries: HashMap<Key, Entry>,
    pub(super) disk: Disk,
    /// The group that keeps all tokens.
    pub(super) spine: usize,
    groups: usize,
    /// Counts uses; orders blocks by the last one.
    clock: u64,
}

impl Index {
    pub(super) fn new(spine: usize, disk: Disk) -> Self {
        Self { entries: HashMap::new(), groups: disk.costs.len(), disk, spine, clock: 0 }
    }

    fn entry(&mut self, link: &Link<'_>) -> Entry {
        let (tokens, used) = (link.tokens.into(), self.tick());
        let places = vec![VACANT; self.groups].into();
        Entry { parent: link.parent, depth: link.depth, tokens, used, places, on_disk: 0, disk_children: 0 }
    }

    /// The entry with the link's key, if it has the same text.
    pub(super) fn find(&self, link: &Link<'_>) -> Option<&Entry> {
        self.entries.get(&link.key).filter(|entry| entry.is(link))
    }

    /// Makes known where the spine of an entry lies.
    pub(super) fn publish(&mut self, link: &Link<'_>, block: u32) -> Published {
        let new = self.entry(link);
        let spine = self.spine;
        let entry = match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(place) => place.insert(new),
            hash_map::Entry::Occupied(place) => place.into_mut(),
        };
        if !entry.is(link) {
            return Published::Collision;
        }
        entry.put(spine, block)
    }

    /// Makes known where a group that rides along has a known entry.
    pub(super) fn ride(&mut self, key: Key, group: usize, place: u32) -> Published {
        let spine = self.spine;
        match self.entries.get_mut(&key).filter(|entry| entry.place(spine).is_some()) {
            Some(entry) => entry.put(group, place),
            None => Published::Collision,
        }
    }

    /// Adds an entry that is nowhere yet; false if its key is taken.
    pub(super) fn insert(&mut self, link: &Link<'_>) -> bool {
        let new = self.entry(link);
        match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(place) => {
                place.insert(new);
                true
            }
            hash_map::Entry::Occupied(_) => false,
        }
    }

    /// A place in memory is given away. Answers what has to go with it: where the spine goes, all groups' places go.
    pub(super) fn evict(&mut self, group: usize, key: Key) -> Vec<(usize, u32)> {
        let Some(entry) = self.entries.get_mut(&key) else { return Vec::new() };
        entry.places[group] = VACANT;
        if group != self.spine {
            return Vec::new();
        }
        let riders = entry.places.iter_mut().enumerate();
        let riders = riders.map(|(group, place)| (group, std::mem::replace(place, VACANT)));
        let riders = riders.filter(|(_, place)| *place != VACANT).collect();
        if entry.on_disk == 0 {
            self.entries.remove(&key);
        }
        riders
    }

    /// Makes it the most recently used, and answers when that is. Its spine must not be among the cached blocks.
    pub(super) fn touch(&mut self, key: Key) -> u64 {
        let used = self.tick();
        let Some(entry) = self.entries.get_mut(&key) else { return used };
        self.disk.moved(key, entry, used, self.spine);
        entry.used = used;
        used
    }

    /// The next time, of something that ends a text or that was left on the way.
    pub(super) fn now(&mut self, warm: bool) -> u64 {
        let used = self.tick();
        if warm { used } else { used & !WARM }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock | WARM
    }
}
