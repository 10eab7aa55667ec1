//! The groups that ride along with the spine: windows that give back what they have passed, and copies of states that are
//! left at borders of blocks. Here is how far a text can be continued out of them, and how a sequence takes them over.
//!
//! A copy is left at the last border that a step reaches, so that a conversation goes on from there; and where the spine of
//! a text was known further than its states, since another sequence had the same beginning and more may come that do. A copy
//! is worth keeping if it ends a prompt or a text or stands where two texts part. The others give way first.

use pensieve_plugin_api::{Checkpoint, VACANT};

use super::{
    BlockTable, Published,
    holding::{At, Holding},
    key::Key,
    layout::Kind,
};

/// How far a text is known.
pub(super) struct Walk {
    /// The keys after the sequence's chain, as far as the spine is known.
    pub(super) keys: Vec<Key>,
    /// The last border at which it can be continued, in blocks from the start of the text; 0 for none.
    pub(super) reach: usize,
}

impl BlockTable {
    /// Walks along a text from the end of a sequence's chain, as far as the spine is in memory, or on disk as well.
    pub(super) fn walk(&self, sequence: u64, text: &[u32], disk: bool) -> Option<Walk> {
        let holding = self.holdings.get(&sequence)?;
        let there = |entry: &super::entry::Entry, group: usize| {
            entry.place(group).is_some() || (disk && entry.is_on_disk(group))
        };
        let spine = self.index.spine;
        let mut walk = Walk { keys: Vec::new(), reach: 0 };
        // For each group, how many blocks up to here follow one another without a gap.
        let mut runs: Vec<usize> = Vec::with_capacity(holding.tables.len());
        for table in &holding.tables {
            let own = table.blocks.len().min(holding.chain.len()).saturating_sub(table.freed);
            runs.push(own);
        }
        let mut next = holding.next(&self.chain, text);
        while let Some(link) = next {
            let Some(entry) = self.index.find(&link).filter(|entry| there(entry, spine)) else { break };
            walk.keys.push(link.key);
            let depth = link.depth as usize + 1;
            let mut whole = true;
            for (group, run) in runs.iter_mut().enumerate() {
                *run = if there(entry, group) { *run + 1 } else { 0 };
                whole &= match self.layout.groups[group].kind {
                    Kind::Tokens if group == spine => true,
                    Kind::Tokens => *run >= depth,
                    Kind::Window(_) => {
                        *run >= depth - self.layout.behind(group, depth * self.layout.block_tokens).min(depth)
                    }
                    Kind::State => *run > 0,
                };
            }
            if whole {
                walk.reach = depth;
            }
            next = self.chain.link(link.key, depth, text);
        }
        Some(walk)
    }

    /// Has a sequence take over all that is in memory up to the reach of a walk.
    pub(super) fn take_over(&mut self, sequence: u64, walk: &Walk, computed: usize) {
        let Some(holding) = self.holdings.get(&sequence) else { return };
        let (before, reach) = (holding.chain.len(), walk.reach);
        let keys = &walk.keys[..reach.saturating_sub(before)];
        for group in 0..self.pools.len() {
            let behind = self.layout.behind(group, reach * self.layout.block_tokens);
            match self.layout.groups[group].kind {
                Kind::State if reach * self.layout.block_tokens > computed => {
                    let slot = keys.last().and_then(|key| self.index.entries.get(key)?.place(group));
                    if let Some(slot) = slot {
                        self.pools[group].hold(slot);
                        self.keep(sequence, group, slot, true);
                        self.go_on_from_kept(sequence, group);
                    }
                }
                Kind::State => {}
                Kind::Tokens | Kind::Window(_) => {
                    for (depth, key) in (before..).zip(keys).skip(behind.saturating_sub(before)) {
                        self.hold_known(sequence, group, depth, *key);
                    }
                    self.free_before(sequence, group, behind);
                }
            }
        }
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        holding.chain.extend(keys);
        holding.reach = reach;
        for key in keys.iter().rev() {
            self.index.touch(*key);
        }
    }

    /// Puts the known block of an entry into a sequence's table, in place of a private one.
    pub(super) fn hold_known(&mut self, sequence: u64, group: usize, depth: usize, key: Key) {
        let block = self.index.entries.get(&key).and_then(|entry| entry.place(group));
        let Some(block) = block else { return };
        self.pools[group].hold(block);
        self.put(sequence, group, depth, block);
    }

    /// Puts a block that is already the sequence's into its table, and gives back what was there.
    pub(super) fn put(&mut self, sequence: u64, group: usize, depth: usize, block: u32) {
        let now = self.index.now(false);
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        let table = &mut holding.tables[group];
        if table.blocks.len() <= depth {
            if table.blocks.is_empty() || table.freed == table.blocks.len() {
                table.freed = depth;
            }
            table.blocks.resize(depth + 1, VACANT);
        }
        let old = std::mem::replace(&mut table.blocks[depth], block);
        if old != VACANT {
            self.pools[group].release(old, now);
        }
    }

    /// Gives back what no token after the first `from` reads.
    pub(super) fn leave_behind(&mut self, sequence: u64, from: usize) {
        for group in 0..self.pools.len() {
            let behind = self.layout.behind(group, from);
            self.free_before(sequence, group, behind);
        }
        self.drop_planned(sequence);
    }

    fn free_before(&mut self, sequence: u64, group: usize, behind: usize) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        let table = &mut holding.tables[group];
        let behind = behind.min(table.blocks.len());
        for place in table.freed..behind {
            let block = std::mem::replace(&mut table.blocks[place], VACANT);
            if block != VACANT {
                self.pools[group].release(block, self.index.now(false));
            }
        }
        table.freed = table.freed.max(behind);
    }

    /// Plans copies of a sequence's state for a step that computes its tokens from `from` up to `end`; `ends` says whether
    /// a prompt ends there. Where there is no slot for one, none is left.
    pub fn plan_checkpoints(&mut self, sequence: u64, from: usize, end: usize, ends: bool) {
        let tokens = self.layout.block_tokens;
        let Some(holding) = self.holdings.get(&sequence) else { return };
        let branch = holding.branch * tokens;
        let last = end / tokens * tokens;
        let mut borders = Vec::new();
        if holding.branch > holding.reach && (from + 1..=end).contains(&branch) {
            borders.push((branch, true));
        }
        if last > from && last != branch {
            borders.push((last, ends));
            borders.sort_unstable();
        }
        for group in 0..self.pools.len() {
            if self.layout.groups[group].kind != Kind::State {
                continue;
            }
            for &(after, warm) in &borders {
                let Some(slot) = self.allocate(group) else { break };
                let Some(holding) = self.holdings.get_mut(&sequence) else { return };
                if let Some(state) = &mut holding.tables[group].state {
                    let checkpoint = Checkpoint { after: after as u32, slot };
                    state.planned.push((checkpoint, warm));
                    state.checkpoints.push(checkpoint);
                }
            }
        }
    }

    /// Gives back the slots of copies that were planned and have not become known.
    pub(super) fn drop_planned(&mut self, sequence: u64) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        for (group, table) in holding.tables.iter_mut().enumerate() {
            let Some(state) = &mut table.state else { continue };
            state.checkpoints.clear();
            for (checkpoint, _) in state.planned.drain(..) {
                self.pools[group].discard(checkpoint.slot);
            }
        }
    }

    /// What rides along with a block of the spine that has become known.
    pub(super) fn publish_riders(&mut self, sequence: u64, key: Key, depth: usize) {
        let after = ((depth + 1) * self.layout.block_tokens) as u32;
        let spine = self.index.spine;
        for group in (0..self.pools.len()).filter(|group| *group != spine) {
            let Some(holding) = self.holdings.get_mut(&sequence) else { return };
            let table = &mut holding.tables[group];
            let (place, warm) = match &mut table.state {
                Some(state) => {
                    let Some(at) = state.planned.iter().position(|(planned, _)| planned.after == after) else {
                        continue;
                    };
                    let (checkpoint, warm) = state.planned.remove(at);
                    (checkpoint.slot, warm)
                }
                None => match table.blocks.get(depth) {
                    Some(&block) if block != VACANT => (block, false),
                    _ => continue,
                },
            };
            let is_state = table.state.is_some();
            let known = match self.index.ride(key, group, place) {
                Published::New => {
                    self.pools[group].blocks[place as usize].key = Some(key);
                    place
                }
                Published::Twin(twin) if twin != place => {
                    self.pools[group].hold(twin);
                    if is_state {
                        self.pools[group].discard(place);
                    } else {
                        self.put(sequence, group, depth, twin);
                    }
                    twin
                }
                Published::Twin(_) => continue,
                Published::Collision if is_state => {
                    self.pools[group].discard(place);
                    continue;
                }
                Published::Collision => continue,
            };
            if is_state {
                self.keep(sequence, group, known, warm);
            }
        }
    }

    /// The state after `computed` tokens lies in the sequence's own slot.
    pub(super) fn arrive(&mut self, sequence: u64, computed: usize) {
        self.drop_planned(sequence);
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        for state in holding.tables.iter_mut().filter_map(|table| table.state.as_mut()) {
            if computed > 0 && state.live != VACANT {
                state.at = At::Live;
            }
        }
    }

    /// Remembers a copy that is already the sequence's as the last one, and lets the one before go.
    pub(super) fn keep(&mut self, sequence: u64, group: usize, slot: u32, warm: bool) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        let Some(state) = &mut holding.tables[group].state else { return };
        if let Some((old, warm)) = state.kept.replace((slot, warm)) {
            self.pools[group].release(old, self.index.now(warm));
        }
    }

    /// Has a sequence go on from the copy that it keeps.
    pub(super) fn go_on_from_kept(&mut self, sequence: u64, group: usize) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        if let Some(state) = &mut holding.tables[group].state {
            state.at = At::Kept;
        }
    }

    /// Takes everything back from a sequence that ends or that gives up its place.
    pub(super) fn let_go(&mut self, mut holding: Holding) {
        // A block that is on its way stands in its table already, a slot does not.
        for import in holding.imports.drain(..).filter(|import| self.layout.groups[import.group].kind == Kind::State) {
            self.pools[import.group].discard(import.place);
        }
        for (group, slot) in holding.pending.drain(..) {
            self.pools[group].release(slot, self.index.now(true));
        }
        let spine = self.index.spine;
        for (group, table) in holding.tables.iter_mut().enumerate() {
            if let Some(state) = &mut table.state {
                for slot in state.planned.drain(..).map(|(planned, _)| planned.slot) {
                    self.pools[group].discard(slot);
                }
                if state.live != VACANT {
                    self.pools[group].discard(state.live);
                }
                if let Some((slot, _)) = state.kept.take() {
                    self.pools[group].release(slot, self.index.now(true));
                }
            } else if group != spine {
                for block in table.blocks.drain(..).rev().filter(|block| *block != VACANT) {
                    self.pools[group].release(block, self.index.now(true));
                }
            }
        }
        for (place, block) in holding.tables[spine].blocks.drain(..).enumerate().rev() {
            match holding.chain.get(place) {
                Some(&key) => self.pools[spine].release(block, self.index.touch(key)),
                None => self.pools[spine].discard(block),
            }
        }
    }
}
