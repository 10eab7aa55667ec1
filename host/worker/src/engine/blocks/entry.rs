//! What the index holds: the entry of a block, and the account of the copies on disk.

use std::collections::{BTreeMap, BTreeSet};

use pensieve_plugin_api::VACANT;

use super::key::{Key, Link};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) parent: Key,
    pub(super) depth: u32,
    pub(super) tokens: Box<[u32]>,
    /// When it was last used; no two entries have the same.
    pub(super) used: u64,
    /// Where each group has it in memory.
    pub(super) places: Box<[u32]>,
    /// Which groups have it on disk.
    pub(super) on_disk: u32,
    /// How many of its children have their spine on disk.
    pub(super) disk_children: u32,
}

/// What became of a block that a sequence has filled.
pub(super) enum Published {
    /// Others can find it now.
    New,
    /// Another sequence was first: the same text lies in this block.
    Twin(u32),
    /// Another text has its key, or the text before it is not known any more.
    Collision,
}

impl Entry {
    /// Where a group has it in memory.
    pub(super) fn place(&self, group: usize) -> Option<u32> {
        Some(self.places[group]).filter(|place| *place != VACANT)
    }

    pub(super) fn is_on_disk(&self, group: usize) -> bool {
        self.on_disk >> group & 1 == 1
    }

    pub(super) fn is(&self, link: &Link<'_>) -> bool {
        self.parent == link.parent && self.depth == link.depth && *self.tokens == *link.tokens
    }

    pub(super) fn put(&mut self, group: usize, place: u32) -> Published {
        match self.place(group) {
            Some(twin) => Published::Twin(twin),
            None => {
                self.places[group] = place;
                Published::New
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) budget: u64,
    pub(super) bytes: u64,
    /// How many copies there are.
    pub(super) len: usize,
    /// What a copy of each group takes.
    pub(super) costs: Vec<u64>,
    /// What may be dropped, coldest first: spines without children on disk, and all that rides along.
    pub(super) droppable: BTreeMap<(u64, usize), Key>,
    /// What the engine has yet to delete.
    pub(super) dropped: BTreeSet<(Key, usize)>,
}

impl Disk {
    pub(super) fn new(budget: u64, costs: Vec<u64>) -> Self {
        Self { budget, bytes: 0, len: 0, costs, droppable: BTreeMap::new(), dropped: BTreeSet::new() }
    }

    /// Keeps what may be dropped in order when an entry's last use changes.
    pub(super) fn moved(&mut self, key: Key, entry: &Entry, used: u64, spine: usize) {
        for group in 0..self.costs.len() {
            if entry.is_on_disk(group) && (group != spine || entry.disk_children == 0) {
                self.droppable.remove(&(entry.used, group));
                self.droppable.insert((used, group), key);
            }
        }
    }
}
