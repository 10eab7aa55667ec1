//! Imports blocks from disk that continue a sequence's text: all up to one block boundary, or none. Blocks in memory
//! are referenced at once, so that they are not evicted while the rest is read; each copy on disk is allocated a block
//! or slot, in text order. If a copy cannot be read, the sequence falls back to what it had.

use pensieve_plugin_api::VACANT;

use super::{BlockTable, Import, Key, Published, SequenceText, layout::Kind, secondary::Walk};

impl BlockTable {
    /// Schedules imports that continue the sequence after [`BlockTable::share`], as far as there is room. Returns true
    /// if the sequence now waits for [`BlockTable::import_of`].
    pub fn recall<'a>(&mut self, sequence: u64, text: impl Into<SequenceText<'a>>, computed: usize) -> bool {
        let text = text.into();
        let Some(owned) = self.sequences.get(&sequence) else { return false };
        if !owned.imports.is_empty() {
            return true;
        }
        let (before, reach) = (owned.chain.len(), owned.reach);
        // Secondary groups are restored only at a boundary, so that a failed read leaves the sequence where it was. A text
        // with runs cannot go on from wherever reading fails.
        let at_once = self.pools.len() > 1 || !text.runs.is_empty();
        if at_once && computed != reach * self.layout.block_tokens {
            return false;
        }
        let Some(mut walk) = self.walk(sequence, text.without_last(), true) else { return false };
        if walk.reach <= reach || walk.reach * self.layout.block_tokens <= computed {
            return false;
        }
        let wanted = self.wanted(sequence, &walk, before);
        let lacking = |(group, wanted): (usize, &usize)| wanted.saturating_sub(self.room_beside(group, &walk));
        let lacking: usize = wanted.iter().enumerate().map(lacking).sum();
        // Only what does not count at once can be imported in part.
        walk.reach -= lacking.min(walk.reach);
        if walk.reach <= reach || (lacking > 0 && at_once) {
            return false;
        }
        if let Some(owned) = self.sequences.get_mut(&sequence) {
            owned.at_once = at_once;
        }
        self.hold_or_ask(sequence, &walk, before);
        self.sequences.get(&sequence).is_some_and(|owned| !owned.imports.is_empty())
    }

    /// Returns the next block or slot to copy from disk for a waiting sequence.
    pub fn import_of(&self, sequence: u64) -> Option<Import> {
        self.sequences.get(&sequence)?.imports.front().copied()
    }

    /// Reports the result of the import from [`BlockTable::import_of`]. If it failed, the sequence computes the rest
    /// itself, and the copy and its descendants are dropped from disk. `text` is the sequence's tokens.
    pub fn imported<'a>(&mut self, sequence: u64, text: impl Into<SequenceText<'a>>, done: bool) {
        let text = text.into();
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        let Some(import) = owned.imports.pop_front() else { return };
        let state = self.layout.groups[import.group].kind == Kind::State;
        let there = done && self.arrived(sequence, &import, text);
        if !done {
            self.index.lost(import.key, import.group);
        }
        if !there && state {
            self.pools[import.group].discard(import.location);
        }
        match self.sequences.get_mut(&sequence) {
            Some(owned) if there && !owned.at_once => owned.reach = owned.chain.len(),
            Some(owned) if there && owned.imports.is_empty() => self.settle(sequence),
            Some(_) if there => {}
            _ => self.retreat(sequence),
        }
    }

    /// Completes a sequence's imports.
    fn settle(&mut self, sequence: u64) {
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        owned.reach = owned.awaited;
        let (reach, pending) = (owned.reach, std::mem::take(&mut owned.pending));
        for (group, slot) in pending {
            self.keep(sequence, group, slot, true);
            self.go_on_from_kept(sequence, group);
        }
        self.leave_behind(sequence, reach * self.layout.block_tokens);
    }

    /// Blocks or slots that a sequence needs in each group for the part of a walk that is not in memory.
    fn wanted(&self, sequence: u64, walk: &Walk, before: usize) -> Vec<usize> {
        let mut wanted = vec![0; self.pools.len()];
        let Some(owned) = self.sequences.get(&sequence) else { return wanted };
        for (depth, key) in (before..walk.reach).zip(&walk.keys) {
            let Some(entry) = self.index.entries.get(key) else { break };
            for (group, wanted) in wanted.iter_mut().enumerate() {
                let own = owned.tables[group].blocks.get(depth).is_some_and(|block| *block != VACANT);
                let lacks = entry.location(group).is_none() && !own;
                *wanted += usize::from(lacks && self.concerns(group, depth, walk.reach));
            }
        }
        wanted
    }

    /// Blocks or slots available in a group while the part of a walk that is in memory stays there.
    fn room_beside(&self, group: usize, walk: &Walk) -> usize {
        let entries = walk.keys.iter().filter_map(|key| self.index.entries.get(key)?.location(group));
        let cached = entries.filter(|location| self.pools[group].blocks[*location as usize].refs == 0).count();
        self.pools[group].available().saturating_sub(cached)
    }

    /// True if a group needs the block at this depth to continue at `reach`.
    fn concerns(&self, group: usize, depth: usize, reach: usize) -> bool {
        match self.layout.groups[group].kind {
            Kind::State => depth + 1 == reach,
            Kind::Tokens | Kind::Window(_) => depth >= self.layout.behind(group, reach * self.layout.block_tokens),
        }
    }

    /// The groups, primary first: the others can only be published after it.
    fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let primary = self.index.primary;
        std::iter::once(primary).chain((0..self.pools.len()).filter(move |group| *group != primary))
    }

    /// References what is in memory and schedules imports for the rest.
    fn hold_or_ask(&mut self, sequence: u64, walk: &Walk, before: usize) {
        let primary = self.index.primary;
        let keys: Vec<(usize, Key)> =
            (before..).zip(walk.keys.iter().copied()).take(walk.reach.saturating_sub(before)).collect();
        let (mut waiting, mut chain) = (Vec::new(), Vec::new());
        for &(depth, key) in &keys {
            for group in self.in_order() {
                if !self.concerns(group, depth, walk.reach) {
                    continue;
                }
                let location = self.index.entries.get(&key).and_then(|entry| entry.location(group));
                match (location, self.layout.groups[group].kind) {
                    (None, _) => waiting.push((depth, key, group)),
                    (Some(slot), Kind::State) => {
                        self.pools[group].hold(slot);
                        if let Some(owned) = self.sequences.get_mut(&sequence) {
                            owned.pending.push((group, slot));
                        }
                    }
                    (Some(_), _) => self.hold_known(sequence, group, depth, key),
                }
                if group == primary && location.is_some() {
                    chain.push(key);
                }
            }
        }
        let mut imports = std::collections::VecDeque::new();
        for (depth, key, group) in waiting {
            let state = self.layout.groups[group].kind == Kind::State;
            let own = self.sequences.get(&sequence).and_then(|owned| owned.tables[group].blocks.get(depth).copied());
            let location = match own.filter(|location| *location != VACANT) {
                Some(location) => location,
                None => {
                    let Some(location) = self.allocate(group, sequence) else { break };
                    if !state {
                        self.put(sequence, group, depth, location);
                    }
                    location
                }
            };
            imports.push_back(Import { sequence, key, group, location });
        }
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        owned.chain.extend(&chain);
        owned.imports = imports;
        owned.awaited = walk.reach;
        let reused: Vec<Key> = keys.into_iter().map(|(_, key)| key).collect();
        self.index.reuse(&reused);
    }

    /// Publishes an imported copy in memory. Returns false if its text is no longer indexed.
    fn arrived(&mut self, sequence: u64, import: &Import, text: SequenceText<'_>) -> bool {
        let Import { key, group, location, .. } = *import;
        let primary = self.index.primary;
        let Some(owned) = self.sequences.get_mut(&sequence) else { return false };
        if group == primary {
            let depth = owned.chain.len();
            let Some(link) = owned.next(&self.chain, text).filter(|link| link.key == key) else { return false };
            match self.index.publish(&link, location, false) {
                Published::New => self.pools[group].blocks[location as usize].key = Some(key),
                Published::Twin(block) => {
                    self.pools[group].hold(block);
                    self.put(sequence, group, depth, block);
                }
                Published::Collision => return false,
            }
            if let Some(owned) = self.sequences.get_mut(&sequence) {
                owned.chain.push(key);
            }
            return true;
        }
        let state = self.layout.groups[group].kind == Kind::State;
        let depth = owned.chain.iter().rposition(|known| *known == key);
        let known = match (depth, self.index.publish_secondary(key, group, location)) {
            (Some(_), Published::New) => {
                self.pools[group].blocks[location as usize].key = Some(key);
                location
            }
            (Some(depth), Published::Twin(twin)) => {
                self.pools[group].hold(twin);
                if state {
                    self.pools[group].discard(location);
                } else {
                    self.put(sequence, group, depth, twin);
                }
                twin
            }
            _ => return false,
        };
        if let Some(owned) = self.sequences.get_mut(&sequence).filter(|_| state) {
            owned.pending.push((group, known));
        }
        true
    }

    /// Cancels a sequence's imports and releases what it holds beyond its reach.
    fn retreat(&mut self, sequence: u64) {
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        let (imports, pending) = (std::mem::take(&mut owned.imports), std::mem::take(&mut owned.pending));
        for import in imports.iter().filter(|import| self.layout.groups[import.group].kind == Kind::State) {
            self.pools[import.group].discard(import.location);
        }
        for (group, slot) in pending {
            self.pools[group].release(slot, self.index.clock.live());
        }
        if !owned.at_once {
            return;
        }
        let (reach, primary) = (owned.reach, self.index.primary);
        for (group, table) in owned.tables.iter_mut().enumerate() {
            let beyond = (reach..).zip(table.blocks.drain(reach.min(table.blocks.len())..));
            let beyond: Vec<(usize, u32)> = beyond.filter(|(_, block)| *block != VACANT).collect();
            // From last to first, so that each is colder than the ones before it.
            for (depth, block) in beyond.into_iter().rev() {
                let used = match owned.chain.get(depth).filter(|_| group == primary) {
                    Some(key) => self.index.touch(*key),
                    None => self.index.clock.live(),
                };
                self.pools[group].release(block, used);
            }
            table.freed = table.freed.min(table.blocks.len());
        }
        owned.chain.truncate(reach);
    }
}
