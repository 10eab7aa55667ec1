//! What is known of full blocks: a forest in which a block hangs below the one before it in its text. A block is known
//! from memory, from disk or from both. Each tier is closed towards the root: what is in memory has its parent in
//! memory, what is on disk has its parent on disk. So a lookup that walks down from the root misses nothing, and
//! comparing each block's own tokens and parent compares the whole text.

use std::collections::{HashMap, hash_map};

use super::{
    disk::Disk,
    key::{Key, Link},
};

#[derive(Debug)]
pub(super) struct Index {
    pub(super) entries: HashMap<Key, Entry>,
    pub(super) disk: Disk,
    /// Counts uses; orders blocks by the last one.
    clock: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) parent: Key,
    pub(super) depth: u32,
    pub(super) tokens: Box<[u32]>,
    /// When it was last used; no two entries have the same.
    pub(super) used: u64,
    /// Where it lies in memory.
    pub(super) block: Option<u32>,
    pub(super) on_disk: bool,
    /// How many of its children are on disk.
    pub(super) disk_children: u32,
}

/// What became of a block that a sequence has filled.
pub(super) enum Published {
    /// Others can find it now.
    New,
    /// Another sequence was first: the same text lies in this block, which was last used then.
    Twin { block: u32, used: u64 },
    /// Another text has its key.
    Collision,
}

impl Entry {
    fn new(link: &Link<'_>, used: u64) -> Self {
        let tokens = link.tokens.into();
        Self { parent: link.parent, depth: link.depth, tokens, used, block: None, on_disk: false, disk_children: 0 }
    }

    fn is(&self, link: &Link<'_>) -> bool {
        self.parent == link.parent && self.depth == link.depth && *self.tokens == *link.tokens
    }
}

impl Index {
    pub(super) fn new(disk_blocks: usize) -> Self {
        Self { entries: HashMap::new(), disk: Disk::new(disk_blocks), clock: 0 }
    }

    /// The entry with the link's key, if it has the same text.
    pub(super) fn find(&self, link: &Link<'_>) -> Option<&Entry> {
        self.entries.get(&link.key).filter(|entry| entry.is(link))
    }

    pub(super) fn publish(&mut self, link: &Link<'_>, block: u32) -> Published {
        let used = self.tick();
        let entry = match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(place) => place.insert(Entry::new(link, used)),
            hash_map::Entry::Occupied(place) => place.into_mut(),
        };
        if !entry.is(link) {
            return Published::Collision;
        }
        match entry.block {
            Some(twin) => Published::Twin { block: twin, used: entry.used },
            None => {
                entry.block = Some(block);
                Published::New
            }
        }
    }

    /// Adds an entry that is nowhere yet; false if its key is taken.
    pub(super) fn insert(&mut self, link: &Link<'_>) -> bool {
        let used = self.tick();
        match self.entries.entry(link.key) {
            hash_map::Entry::Vacant(place) => {
                place.insert(Entry::new(link, used));
                true
            }
            hash_map::Entry::Occupied(_) => false,
        }
    }

    /// Its block in memory is given to someone else.
    pub(super) fn evict(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.block = None;
        if !entry.on_disk {
            self.entries.remove(&key);
        }
    }

    /// Makes it the most recently used, and answers when that is. Its block must not be among the cached ones.
    pub(super) fn touch(&mut self, key: Key) -> u64 {
        let used = self.tick();
        let Some(entry) = self.entries.get_mut(&key) else { return used };
        self.disk.moved(key, entry, used);
        entry.used = used;
        used
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
