//! What must hold of the table between any two calls.

use std::collections::HashMap;

use pensieve_plugin_api::VACANT;

use super::{BlockTable, Key};

impl BlockTable {
    /// Makes keys so short that different texts often get the same one.
    pub(in crate::engine) fn weaken_keys(&mut self, bits: u32) {
        self.chain.mask = (1 << bits) - 1;
    }

    /// Whether exactly one sequence has this block or slot, and may write to it.
    pub(in crate::engine) fn is_private(&self, group: usize, place: u32) -> bool {
        let block = &self.pools[group].blocks[place as usize];
        block.refs == 1 && block.key.is_none()
    }

    /// A sequence's spine.
    pub(in crate::engine) fn blocks(&self, sequence: u64) -> &[u32] {
        self.holdings.get(&sequence).map_or(&[], |holding| &holding.tables[self.index.spine].blocks)
    }

    /// What a sequence has, for messages.
    pub(in crate::engine) fn of(&self, sequence: u64) -> Option<String> {
        self.holdings.get(&sequence).map(|holding| format!("{holding:?}"))
    }

    /// What is known from disk.
    pub(in crate::engine) fn on_disk(&self) -> impl Iterator<Item = (Key, usize)> {
        let groups = 0..self.pools.len();
        self.index.entries.iter().flat_map(move |(key, entry)| {
            groups.clone().filter(|group| entry.is_on_disk(*group)).map(|group| (*key, group))
        })
    }

    /// Panics if a block is leaked, freed twice or known for what it does not hold, or if the tiers do not hang
    /// together.
    pub(in crate::engine) fn check_invariants(&self) {
        for group in 0..self.pools.len() {
            self.check_group(group);
        }
        self.check_entries();
    }

    /// The places of a group that a sequence holds.
    fn held_by(&self, holding: &super::Holding, group: usize) -> Vec<u32> {
        let table = &holding.tables[group];
        let mut held: Vec<u32> = table.blocks.iter().copied().filter(|block| *block != VACANT).collect();
        if let Some(state) = &table.state {
            held.extend(Some(state.live).filter(|slot| *slot != VACANT));
            held.extend(state.kept.map(|(slot, _)| slot));
            held.extend(state.planned.iter().map(|(planned, _)| planned.slot));
            held.extend(holding.imports.iter().filter(|import| import.group == group).map(|import| import.place));
            held.extend(holding.pending.iter().filter(|(at, _)| *at == group).map(|(_, slot)| *slot));
        }
        held
    }

    fn check_group(&self, group: usize) {
        let (pool, spine) = (&self.pools[group], self.index.spine);
        let mut held = vec![0; pool.blocks.len()];
        for (sequence, holding) in &self.holdings {
            assert!(holding.reach <= holding.chain.len(), "sequence {sequence} reaches beyond its chain");
            if holding.imports.is_empty() {
                assert_eq!(holding.reach, holding.chain.len(), "sequence {sequence} holds more than it uses");
            }
            self.held_by(holding, group).into_iter().for_each(|place| held[place as usize] += 1);
            if group == spine {
                for (i, &block) in holding.tables[group].blocks.iter().enumerate() {
                    let key = pool.blocks[block as usize].key;
                    assert_eq!(key.as_ref(), holding.chain.get(i), "block {block} of sequence {sequence}");
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
                assert_eq!(entry.place(group), Some(i as u32), "the index knows where {key:?} lies");
                if block.refs == 0 {
                    cached += 1;
                    assert_eq!(pool.cached.get(&block.used), Some(&(i as u32)), "{i} of group {group} is cached");
                    assert!(group != spine || block.used == entry.used, "a spine is as cold as its entry");
                }
            }
        }
        assert_eq!(cached, pool.cached.len(), "only blocks that no sequence uses are cached");
    }

    fn check_entries(&self) {
        let (index, disk, spine) = (&self.index, &self.index.disk, self.index.spine);
        let mut children = HashMap::new();
        let (mut copies, mut bytes, mut droppable) = (0, 0, 0);
        for (key, entry) in &index.entries {
            assert!(entry.place(spine).is_some() || entry.is_on_disk(spine), "{key:?} is somewhere");
            let parent = (entry.depth > 0).then(|| &index.entries[&entry.parent]);
            if let Some(parent) = parent {
                assert_eq!(parent.depth + 1, entry.depth);
            }
            for group in 0..self.pools.len() {
                if let Some(place) = entry.place(group) {
                    assert_eq!(self.pools[group].blocks[place as usize].key, Some(*key));
                    assert!(entry.place(spine).is_some(), "what rides along with {key:?} stays with its spine");
                }
                if entry.is_on_disk(group) {
                    (copies, bytes) = (copies + 1, bytes + disk.costs[group]);
                    assert!(entry.is_on_disk(spine), "what rides along with {key:?} on disk stays with its spine");
                    assert!(!disk.dropped.contains(&(*key, group)), "{key:?} is on disk, so it must not be deleted");
                    if group != spine || entry.disk_children == 0 {
                        droppable += 1;
                        assert_eq!(disk.droppable.get(&(entry.used, group)), Some(key), "{key:?} may be dropped");
                    }
                }
            }
            if entry.place(spine).is_some() {
                assert!(
                    parent.is_none_or(|parent| parent.place(spine).is_some()),
                    "the parent of {key:?} is in memory"
                );
            }
            if entry.is_on_disk(spine) {
                assert!(parent.is_none_or(|parent| parent.is_on_disk(spine)), "the parent of {key:?} is on disk");
                if entry.depth > 0 {
                    *children.entry(entry.parent).or_insert(0) += 1;
                }
            }
        }
        for (key, entry) in &index.entries {
            assert_eq!(entry.disk_children, children.get(key).copied().unwrap_or(0), "children of {key:?} on disk");
        }
        for (group, pool) in self.pools.iter().enumerate() {
            let known = index.entries.values().filter(|entry| entry.place(group).is_some()).count();
            assert_eq!(known, pool.blocks.iter().filter(|block| block.key.is_some()).count());
        }
        assert_eq!((copies, bytes, droppable), (disk.len, disk.bytes, disk.droppable.len()));
        assert!(disk.bytes <= disk.budget, "the disk keeps to its budget");
    }
}
