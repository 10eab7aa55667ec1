//! What must hold of the table between any two calls.

use std::collections::HashMap;

use super::{BlockTable, Key};

impl BlockTable {
    /// Makes keys so short that different texts often get the same one.
    pub(in crate::engine) fn weaken_keys(&mut self, bits: u32) {
        self.chain.mask = (1 << bits) - 1;
    }

    /// Whether exactly one sequence has this block, and may write to it.
    pub(in crate::engine) fn is_private(&self, block: u32) -> bool {
        let block = &self.pool.blocks[block as usize];
        block.refs == 1 && block.key.is_none()
    }

    /// The blocks that are known from disk.
    pub(in crate::engine) fn on_disk(&self) -> impl Iterator<Item = Key> {
        self.index.entries.iter().filter(|(_, entry)| entry.on_disk).map(|(key, _)| *key)
    }

    /// Panics if a block is leaked, freed twice or known for what it does not hold, or if the tiers do not hang
    /// together.
    pub(in crate::engine) fn check_invariants(&self) {
        self.check_blocks();
        self.check_entries();
    }

    fn check_blocks(&self) {
        let mut held = vec![0; self.pool.blocks.len()];
        for (sequence, holding) in &self.holdings {
            assert!(holding.chain.len() + holding.imports.len() <= holding.blocks.len(), "sequence {sequence}");
            for (i, &block) in holding.blocks.iter().enumerate() {
                held[block as usize] += 1;
                let key = self.pool.blocks[block as usize].key;
                assert_eq!(key.as_ref(), holding.chain.get(i), "block {block} of sequence {sequence}");
            }
        }
        let mut free = vec![false; held.len()];
        for &block in &self.pool.free {
            assert!(!std::mem::replace(&mut free[block as usize], true), "block {block} is free twice");
        }
        let mut cached = 0;
        for (i, block) in self.pool.blocks.iter().enumerate() {
            assert_eq!(block.refs, held[i], "block {i} is in as many tables as it is counted");
            assert_eq!(free[i], block.refs == 0 && block.key.is_none(), "block {i} is free if nobody needs it");
            assert!(block.refs <= 1 || block.key.is_some(), "block {i} is private, but in {} tables", block.refs);
            if let Some(key) = block.key {
                let entry = &self.index.entries[&key];
                assert_eq!(entry.block, Some(i as u32), "the index knows where {key:?} lies");
                if block.refs == 0 {
                    cached += 1;
                    assert_eq!(self.pool.cached.get(&entry.used), Some(&(i as u32)), "block {i} is cached");
                }
            }
        }
        assert_eq!(cached, self.pool.cached.len(), "only blocks that nobody uses are cached");
    }

    fn check_entries(&self) {
        let (index, disk) = (&self.index, &self.index.disk);
        let mut children = HashMap::new();
        let (mut in_memory, mut on_disk, mut leaves) = (0, 0, 0);
        for (key, entry) in &index.entries {
            assert!(entry.block.is_some() || entry.on_disk, "{key:?} is somewhere");
            let parent = (entry.depth > 0).then(|| &index.entries[&entry.parent]);
            if let Some(parent) = parent {
                assert_eq!(parent.depth + 1, entry.depth);
            }
            if let Some(block) = entry.block {
                in_memory += 1;
                assert_eq!(self.pool.blocks[block as usize].key, Some(*key));
                assert!(parent.is_none_or(|parent| parent.block.is_some()), "the parent of {key:?} is in memory");
            }
            if entry.on_disk {
                on_disk += 1;
                assert!(parent.is_none_or(|parent| parent.on_disk), "the parent of {key:?} is on disk");
                assert!(!disk.dropped.contains(key), "{key:?} is on disk, so it must not be deleted");
                if entry.depth > 0 {
                    *children.entry(entry.parent).or_insert(0) += 1;
                }
                if entry.disk_children == 0 {
                    leaves += 1;
                    assert_eq!(disk.leaves.get(&entry.used), Some(key), "{key:?} is a leaf");
                }
            }
        }
        for (key, entry) in &index.entries {
            assert_eq!(entry.disk_children, children.get(key).copied().unwrap_or(0), "children of {key:?} on disk");
        }
        assert_eq!(in_memory, self.pool.blocks.iter().filter(|block| block.key.is_some()).count());
        assert_eq!((on_disk, leaves), (disk.len, disk.leaves.len()));
        assert!(disk.len <= disk.budget, "the disk keeps to its budget");
    }
}
