//! How a sequence gets back from disk what continues its text: everything of one border, or nothing. What is in memory is
//! held at once, so that it cannot go while the rest is on its way; what is on disk gets a place of its own, in the order of
//! the text. A copy that cannot be read takes the sequence back to what it had.

use pensieve_plugin_api::VACANT;

use super::{BlockTable, Import, Key, Published, layout::Kind, riders::Walk, without_last};

impl BlockTable {
    /// Asks for what is on disk and continues the sequence after [`BlockTable::share`], as far as there is room; true if
    /// the sequence now waits for [`BlockTable::import_of`].
    pub fn recall(&mut self, sequence: u64, text: &[u32], computed: usize) -> bool {
        let Some(holding) = self.holdings.get(&sequence) else { return false };
        if !holding.imports.is_empty() {
            return true;
        }
        let (before, reach) = (holding.chain.len(), holding.reach);
        // What rides along is brought to a border only, so that a copy that cannot be read leaves a sequence where it was.
        if self.pools.len() > 1 && computed != reach * self.layout.block_tokens {
            return false;
        }
        let Some(mut walk) = self.walk(sequence, without_last(text), true) else { return false };
        if walk.reach <= reach || walk.reach * self.layout.block_tokens <= computed {
            return false;
        }
        let wanted = self.wanted(sequence, &walk, before);
        let lacking = |(group, wanted): (usize, &usize)| wanted.saturating_sub(self.room_beside(group, &walk));
        let lacking: usize = wanted.iter().enumerate().map(lacking).sum();
        // Only a spine alone can be had in part.
        walk.reach -= lacking.min(walk.reach);
        if walk.reach <= reach || (lacking > 0 && self.pools.len() > 1) {
            return false;
        }
        self.hold_or_ask(sequence, &walk, before);
        self.holdings.get(&sequence).is_some_and(|holding| !holding.imports.is_empty())
    }

    /// The next block or slot to copy from disk for a sequence; none when it waits for nothing.
    pub fn import_of(&self, sequence: u64) -> Option<Import> {
        self.holdings.get(&sequence)?.imports.front().copied()
    }

    /// The import that [`BlockTable::import_of`] named was done, or failed: then the sequence computes the rest itself,
    /// and the disk is rid of the copy and what hangs from it. `text` is the sequence's tokens.
    pub fn imported(&mut self, sequence: u64, text: &[u32], done: bool) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        let Some(import) = holding.imports.pop_front() else { return };
        let state = self.layout.groups[import.group].kind == Kind::State;
        let there = done && self.arrived(sequence, &import, text);
        if !done {
            self.index.lost(import.key, import.group);
        }
        if !there && state {
            self.pools[import.group].discard(import.place);
        }
        match self.holdings.get_mut(&sequence) {
            Some(holding) if there && self.pools.len() == 1 => holding.reach = holding.chain.len(),
            Some(holding) if there && holding.imports.is_empty() => self.settle(sequence),
            Some(_) if there => {}
            _ => self.retreat(sequence),
        }
    }

    /// All that a sequence waited for has come.
    fn settle(&mut self, sequence: u64) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        holding.reach = holding.awaited;
        let (reach, pending) = (holding.reach, std::mem::take(&mut holding.pending));
        for (group, slot) in pending {
            self.keep(sequence, group, slot, true);
            self.go_on_from_kept(sequence, group);
        }
        self.leave_behind(sequence, reach * self.layout.block_tokens);
    }

    /// How many places of each group a sequence needs for what of the walk is not in memory.
    fn wanted(&self, sequence: u64, walk: &Walk, before: usize) -> Vec<usize> {
        let mut wanted = vec![0; self.pools.len()];
        let Some(holding) = self.holdings.get(&sequence) else { return wanted };
        for (depth, key) in (before..walk.reach).zip(&walk.keys) {
            let Some(entry) = self.index.entries.get(key) else { break };
            for (group, wanted) in wanted.iter_mut().enumerate() {
                let own = holding.tables[group].blocks.get(depth).is_some_and(|block| *block != VACANT);
                let lacks = entry.place(group).is_none() && !own;
                *wanted += usize::from(lacks && self.concerns(group, depth, walk.reach));
            }
        }
        wanted
    }

    /// How many places of a group can be had while everything of the walk that is in memory stays there.
    fn room_beside(&self, group: usize, walk: &Walk) -> usize {
        let entries = walk.keys.iter().filter_map(|key| self.index.entries.get(key)?.place(group));
        let cached = entries.filter(|place| self.pools[group].blocks[*place as usize].refs == 0).count();
        self.pools[group].available().saturating_sub(cached)
    }

    /// Whether a block at this depth is needed to go on at the reach.
    fn concerns(&self, group: usize, depth: usize, reach: usize) -> bool {
        match self.layout.groups[group].kind {
            Kind::State => depth + 1 == reach,
            Kind::Tokens | Kind::Window(_) => depth >= self.layout.behind(group, reach * self.layout.block_tokens),
        }
    }

    /// The spine first, as the others ride along with it.
    fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let spine = self.index.spine;
        std::iter::once(spine).chain((0..self.pools.len()).filter(move |group| *group != spine))
    }

    /// Holds what is in memory and asks for the rest.
    fn hold_or_ask(&mut self, sequence: u64, walk: &Walk, before: usize) {
        let spine = self.index.spine;
        let keys: Vec<(usize, Key)> =
            (before..).zip(walk.keys.iter().copied()).take(walk.reach.saturating_sub(before)).collect();
        let (mut waiting, mut chain) = (Vec::new(), Vec::new());
        for &(depth, key) in &keys {
            for group in self.in_order() {
                if !self.concerns(group, depth, walk.reach) {
                    continue;
                }
                let place = self.index.entries.get(&key).and_then(|entry| entry.place(group));
                match (place, self.layout.groups[group].kind) {
                    (None, _) => waiting.push((depth, key, group)),
                    (Some(slot), Kind::State) => {
                        self.pools[group].hold(slot);
                        if let Some(holding) = self.holdings.get_mut(&sequence) {
                            holding.pending.push((group, slot));
                        }
                    }
                    (Some(_), _) => self.hold_known(sequence, group, depth, key),
                }
                if group == spine && place.is_some() {
                    chain.push(key);
                }
            }
        }
        let mut imports = std::collections::VecDeque::new();
        for (depth, key, group) in waiting {
            let state = self.layout.groups[group].kind == Kind::State;
            let own = self.holdings.get(&sequence).and_then(|holding| holding.tables[group].blocks.get(depth).copied());
            let place = match own.filter(|place| *place != VACANT) {
                Some(place) => place,
                None => {
                    let Some(place) = self.allocate(group) else { break };
                    if !state {
                        self.put(sequence, group, depth, place);
                    }
                    place
                }
            };
            imports.push_back(Import { sequence, key, group, place });
        }
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        holding.chain.extend(&chain);
        holding.imports = imports;
        holding.awaited = walk.reach;
        for (_, key) in keys.iter().rev() {
            self.index.touch(*key);
        }
    }

    /// What has come from disk is known from memory too. False if the text that it belongs to is not known any more.
    fn arrived(&mut self, sequence: u64, import: &Import, text: &[u32]) -> bool {
        let Import { key, group, place, .. } = *import;
        let spine = self.index.spine;
        let Some(holding) = self.holdings.get_mut(&sequence) else { return false };
        if group == spine {
            let depth = holding.chain.len();
            let Some(link) = holding.next(&self.chain, text).filter(|link| link.key == key) else { return false };
            match self.index.publish(&link, place) {
                Published::New => self.pools[group].blocks[place as usize].key = Some(key),
                Published::Twin(block) => {
                    self.pools[group].hold(block);
                    self.put(sequence, group, depth, block);
                }
                Published::Collision => return false,
            }
            if let Some(holding) = self.holdings.get_mut(&sequence) {
                holding.chain.push(key);
            }
            return true;
        }
        let state = self.layout.groups[group].kind == Kind::State;
        let depth = holding.chain.iter().rposition(|known| *known == key);
        let known = match (depth, self.index.ride(key, group, place)) {
            (Some(_), Published::New) => {
                self.pools[group].blocks[place as usize].key = Some(key);
                place
            }
            (Some(depth), Published::Twin(twin)) => {
                self.pools[group].hold(twin);
                if state {
                    self.pools[group].discard(place);
                } else {
                    self.put(sequence, group, depth, twin);
                }
                twin
            }
            _ => return false,
        };
        if let Some(holding) = self.holdings.get_mut(&sequence).filter(|_| state) {
            holding.pending.push((group, known));
        }
        true
    }

    /// Gives up what a sequence waits for, and what it holds beyond its reach.
    fn retreat(&mut self, sequence: u64) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        let (imports, pending) = (std::mem::take(&mut holding.imports), std::mem::take(&mut holding.pending));
        for import in imports.iter().filter(|import| self.layout.groups[import.group].kind == Kind::State) {
            self.pools[import.group].discard(import.place);
        }
        for (group, slot) in pending {
            self.pools[group].release(slot, self.index.now(true));
        }
        if self.pools.len() == 1 {
            return;
        }
        let (reach, spine) = (holding.reach, self.index.spine);
        for (group, table) in holding.tables.iter_mut().enumerate() {
            let beyond = (reach..).zip(table.blocks.drain(reach.min(table.blocks.len())..));
            let beyond: Vec<(usize, u32)> = beyond.filter(|(_, block)| *block != VACANT).collect();
            // From the last to the first, so that each is colder than the ones before it.
            for (place, block) in beyond.into_iter().rev() {
                let used = match holding.chain.get(place).filter(|_| group == spine) {
                    Some(key) => self.index.touch(*key),
                    None => self.index.now(true),
                };
                self.pools[group].release(block, used);
            }
            table.freed = table.freed.min(table.blocks.len());
        }
        holding.chain.truncate(reach);
    }
}
