//! Invariants of the block table, checked by tests between any two calls.

use std::collections::HashMap;

use pensieve_plugin_api::VACANT;

use super::{BlockTable, Key};

impl BlockTable {
    /// Shortens the keys so that different texts often collide.
    pub(in crate::engine) fn weaken_keys(&mut self, bits: u32) {
        self.chain.mask = (1 << bits) - 1;
    }

    /// True if exactly one sequence holds this block or slot and may write to it.
    pub(in crate::engine) fn is_private(&self, group: usize, location: u32) -> bool {
        let block = &self.pools[group].blocks[location as usize];
        block.refs == 1 && block.key.is_none()
    }

    /// A sequence's primary blocks.
    pub(in crate::engine) fn blocks(&self, sequence: u64) -> &[u32] {
        self.sequences.get(&sequence).map_or(&[], |owned| &owned.tables[self.index.primary].blocks)
    }

    /// A sequence's blocks and slots, for messages.
    pub(in crate::engine) fn of(&self, sequence: u64) -> Option<String> {
        self.sequences.get(&sequence).map(|owned| format!("{owned:?}"))
    }

    /// Keys and groups of all copies on disk.
    pub(in crate::engine) fn on_disk(&self) -> impl Iterator<Item = (Key, usize)> {
        let groups = 0..self.pools.len();
        self.index.entries.iter().flat_map(move |(key, entry)| {
            groups.clone().filter(|group| entry.is_on_disk(*group)).map(|group| (*key, group))
        })
    }

    /// Panics if a block is leaked, freed twice or indexed under the wrong content, or if the tiers are inconsistent.
    pub(in crate::engine) fn check_invariants(&self) {
        for group in 0..self.pools.len() {
            self.check_group(group);
        }
        self.check_entries();
    }

    /// The blocks or slots of a group that a sequence holds.
    fn held_by(&self, owned: &super::SequenceTables, group: usize) -> Vec<u32> {
        let table = &owned.tables[group];
        let mut held: Vec<u32> = table.blocks.iter().copied().filter(|block| *block != VACANT).collect();
        if let Some(state) = &table.state {
            held.extend(Some(state.live).filter(|slot| *slot != VACANT));
            held.extend(state.kept.map(|(slot, _)| slot));
            held.extend(state.planned.iter().map(|(planned, _)| planned.slot));
            held.extend(owned.imports.iter().filter(|import| import.group == group).map(|import| import.location));
            held.extend(owned.pending.iter().filter(|(at, _)| *at == group).map(|(_, slot)| *slot));
        }
        held
    }

    fn check_group(&self, group: usize) {
        let (pool, primary) = (&self.pools[group], self.index.primary);
        let mut held = vec![0; pool.blocks.len()];
        for (sequence, owned) in &self.sequences {
            assert!(owned.reach <= owned.chain.len(), "sequence {sequence} reaches beyond its chain");
            if owned.imports.is_empty() {
                assert_eq!(owned.reach, owned.chain.len(), "sequence {sequence} holds more than it uses");
            }
            self.held_by(owned, group).into_iter().for_each(|location| held[location as usize] += 1);
            if group == primary {
                for (i, &block) in owned.tables[group].blocks.iter().enumerate() {
                    let key = pool.blocks[block as usize].key;
                    assert_eq!(key.as_ref(), owned.chain.get(i), "block {block} of sequence {sequence}");
                }
            }
        }
        let mut free = vec![false; held.len()];
        for &block in &pool.free {
            assert!(!std::mem::replace(&mut free[block as usize], true), "block {block} is free twice");
        }
        let mut cached = 0;
        for (i, block) in pool.blocks.iter().enumerate() {
            assert_eq!(block.refs, held[i], "{i} of group {group} is in as many tables as it is counted");
            assert_eq!(free[i], block.refs == 0 && block.key.is_none(), "{i} of group {group} is free if unused");
            assert!(block.refs <= 1 || block.key.is_some(), "{i} is private, but in {} tables", block.refs);
            if let Some(key) = block.key {
                let entry = &self.index.entries[&key];
                assert_eq!(entry.location(group), Some(i as u32), "the index knows where {key:?} lies");
                if block.refs == 0 {
                    cached += 1;
                    assert_eq!(pool.cached.get(&block.used), Some(&(i as u32)), "{i} of group {group} is cached");
                    assert!(group != primary || block.used == entry.used, "a primary is as cold as its entry");
                }
            }
        }
        assert_eq!(cached, pool.cached.len(), "only blocks that no sequence uses are cached");
    }

    fn check_entries(&self) {
        let (index, disk, primary) = (&self.index, &self.index.disk, self.index.primary);
        let mut children = HashMap::new();
        let (mut copies, mut bytes, mut droppable) = (0, 0, 0);
        for (key, entry) in &index.entries {
            assert!(entry.location(primary).is_some() || entry.is_on_disk(primary), "{key:?} is somewhere");
            let parent = (entry.depth > 0).then(|| &index.entries[&entry.parent]);
            if let Some(parent) = parent {
                assert_eq!(parent.depth + 1, entry.depth);
                assert!(parent.is_reused || !entry.is_reused, "{key:?} is reused only with its parent");
                assert!(
                    entry.gives_way || !parent.gives_way || entry.location(primary).is_none(),
                    "{key:?} gives way with its parent"
                );
            }
            for group in 0..self.pools.len() {
                if let Some(location) = entry.location(group) {
                    assert_eq!(self.pools[group].blocks[location as usize].key, Some(*key));
                    assert!(entry.location(primary).is_some(), "secondary copies of {key:?} stay with the primary one");
                }
                if entry.is_on_disk(group) {
                    (copies, bytes) = (copies + 1, bytes + disk.costs[group]);
                    assert!(entry.is_on_disk(primary), "secondary copies of {key:?} on disk stay with the primary one");
                    assert!(!disk.dropped.contains(&(*key, group)), "{key:?} is on disk, so it must not be deleted");
                    if group != primary || entry.disk_children == 0 {
                        droppable += 1;
                        assert_eq!(disk.droppable.get(&(entry.used, group)), Some(key), "{key:?} may be dropped");
                    }
                }
            }
            if entry.location(primary).is_some() {
                assert!(
                    parent.is_none_or(|parent| parent.location(primary).is_some()),
                    "the parent of {key:?} is in memory"
                );
            }
            if entry.is_on_disk(primary) {
                assert!(parent.is_none_or(|parent| parent.is_on_disk(primary)), "the parent of {key:?} is on disk");
                if entry.depth > 0 {
                    *children.entry(entry.parent).or_insert(0) += 1;
                }
            }
        }
        for (key, entry) in &index.entries {
            assert_eq!(entry.disk_children, children.get(key).copied().unwrap_or(0), "children of {key:?} on disk");
        }
        for (group, pool) in self.pools.iter().enumerate() {
            let known = index.entries.values().filter(|entry| entry.location(group).is_some()).count();
            assert_eq!(known, pool.blocks.iter().filter(|block| block.key.is_some()).count());
        }
        assert_eq!((copies, bytes, droppable), (disk.len, disk.bytes, disk.droppable.len()));
        assert!(disk.bytes <= disk.budget, "the disk keeps to its budget");
    }
}
