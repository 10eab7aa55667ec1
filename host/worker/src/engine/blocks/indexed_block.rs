//! The entries of the index, and the accounting of copies on disk.

use std::collections::{BTreeMap, BTreeSet};

use pensieve_plugin_api::VACANT;

use super::{
    key::{Key, Link},
    rank::Rank,
};

#[derive(Debug)]
pub(super) struct IndexedBlock {
    pub(super) parent: Key,
    pub(super) depth: u32,
    pub(super) tokens: Box<[u32]>,
    /// A hash of the items that some of the tokens belong to.
    pub(super) media: Option<[u8; 32]>,
    /// Its place in the eviction order; unique.
    pub(super) used: Rank,
    /// Another sequence than the one that published it has held it.
    pub(super) is_reused: bool,
    /// It gives way to other texts (`rank`).
    pub(super) gives_way: bool,
    /// The child that was published last; it may be gone.
    pub(super) latest_child: Option<Key>,
    /// Block or slot of each group in memory, or vacant.
    pub(super) locations: Box<[u32]>,
    /// A bit for each group with a copy on disk.
    pub(super) on_disk: u32,
    /// Children whose primary block is on disk.
    pub(super) disk_children: u32,
}

/// The result of publishing a block or slot.
pub(super) enum Published {
    /// Published; others can find it.
    New,
    /// Another sequence published the same text first, in this block.
    Twin(u32),
    /// Another text has its key, or its parent is no longer indexed.
    Collision,
}

impl IndexedBlock {
    /// Returns a group's block or slot in memory.
    pub(super) fn location(&self, group: usize) -> Option<u32> {
        Some(self.locations[group]).filter(|location| *location != VACANT)
    }

    pub(super) fn is_on_disk(&self, group: usize) -> bool {
        self.on_disk >> group & 1 == 1
    }

    pub(super) fn is(&self, link: &Link<'_>) -> bool {
        (self.parent, self.depth, self.media) == (link.parent, link.depth, link.media) && *self.tokens == *link.tokens
    }

    pub(super) fn put(&mut self, group: usize, location: u32) -> Published {
        match self.location(group) {
            Some(twin) => Published::Twin(twin),
            None => {
                self.locations[group] = location;
                Published::New
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) budget: u64,
    pub(super) bytes: u64,
    /// Number of copies.
    pub(super) len: usize,
    /// Bytes of a copy in each group.
    pub(super) costs: Vec<u64>,
    /// Copies that may be dropped, coldest first: primary ones without children on disk, and all secondary ones.
    pub(super) droppable: BTreeMap<(Rank, usize), Key>,
    /// Copies that the engine has yet to delete.
    pub(super) dropped: BTreeSet<(Key, usize)>,
}

impl Disk {
    pub(super) fn new(budget: u64, costs: Vec<u64>) -> Self {
        Self { budget, bytes: 0, len: 0, costs, droppable: BTreeMap::new(), dropped: BTreeSet::new() }
    }

    /// Updates `droppable` for a change in an entry's last use.
    pub(super) fn moved(&mut self, key: Key, entry: &IndexedBlock, used: Rank, primary: usize) {
        for group in 0..self.costs.len() {
            if entry.is_on_disk(group) && (group != primary || entry.disk_children == 0) {
                self.droppable.remove(&(entry.used, group));
                self.droppable.insert((used, group), key);
            }
        }
    }
}
