//! Secondary cache groups: sliding windows, which free blocks behind them, and recurrent states, which leave
//! checkpoints at block boundaries. This module determines how far a text can be continued from them, and reuses them.
//!
//! A step leaves a checkpoint at the last boundary that it reaches, so that a conversation can continue from there. It
//! leaves another where a text's primary blocks were indexed further than its states, since another sequence had the
//! same prefix and more may follow. Checkpoints at the end of a prompt or text, or where two texts diverge, are evicted
//! last.

use std::ops::Range;

use pensieve_plugin_api::{Checkpoint, VACANT};

use super::{
    BlockTable, Published,
    key::Key,
    layout::Kind,
    sequence_tables::{SequenceTables, StateLocation},
    text::{SequenceText, run_around},
};

/// How much of a text is cached.
pub(super) struct Walk {
    /// Keys after the sequence's chain, as far as primary blocks are indexed.
    pub(super) keys: Vec<Key>,
    /// Last boundary at which all groups can continue, in blocks from the start of the text; 0 for none.
    pub(super) reach: usize,
}

impl BlockTable {
    /// Walks along a text from the end of a sequence's chain, as far as primary blocks are in memory or, with `disk`,
    /// on disk.
    pub(super) fn walk(&self, sequence: u64, text: SequenceText<'_>, disk: bool) -> Option<Walk> {
        let owned = self.sequences.get(&sequence)?;
        let there = |entry: &super::indexed_block::IndexedBlock, group: usize| {
            entry.location(group).is_some() || (disk && entry.is_on_disk(group))
        };
        let primary = self.index.primary;
        let mut walk = Walk { keys: Vec::new(), reach: 0 };
        // For each group, the number of consecutive blocks that end here.
        let mut runs: Vec<usize> = Vec::with_capacity(owned.tables.len());
        for table in &owned.tables {
            let own = table.blocks.len().min(owned.chain.len()).saturating_sub(table.freed);
            runs.push(own);
        }
        let mut next = owned.next(&self.chain, text);
        while let Some(link) = next {
            let Some(entry) = self.index.find(&link).filter(|entry| there(entry, primary)) else { break };
            walk.keys.push(link.key);
            let depth = link.depth as usize + 1;
            let mut whole = true;
            for (group, run) in runs.iter_mut().enumerate() {
                *run = if there(entry, group) { *run + 1 } else { 0 };
                whole &= match self.layout.groups[group].kind {
                    Kind::Tokens if group == primary => true,
                    Kind::Tokens => *run >= depth,
                    Kind::Window(_) => {
                        *run >= depth - self.layout.behind(group, depth * self.layout.block_tokens).min(depth)
                    }
                    Kind::State => *run > 0,
                };
            }
            if whole && text.may_break_at(depth * self.layout.block_tokens) {
                walk.reach = depth;
            }
            next = self.chain.link(link.key, depth, text);
        }
        Some(walk)
    }

    /// Gives a sequence everything in memory up to a walk's reach.
    pub(super) fn take_over(&mut self, sequence: u64, walk: &Walk, computed: usize) {
        let Some(owned) = self.sequences.get(&sequence) else { return };
        let (before, reach) = (owned.chain.len(), walk.reach);
        let keys = &walk.keys[..reach.saturating_sub(before)];
        for group in 0..self.pools.len() {
            let behind = self.layout.behind(group, reach * self.layout.block_tokens);
            match self.layout.groups[group].kind {
                Kind::State if reach * self.layout.block_tokens > computed => {
                    let slot = keys.last().and_then(|key| self.index.entries.get(key)?.location(group));
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
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        owned.chain.extend(keys);
        owned.reach = reach;
        self.index.reuse(keys);
    }

    /// Puts the published block of an entry into a sequence's table in place of a private one.
    pub(super) fn hold_known(&mut self, sequence: u64, group: usize, depth: usize, key: Key) {
        let block = self.index.entries.get(&key).and_then(|entry| entry.location(group));
        let Some(block) = block else { return };
        self.pools[group].hold(block);
        self.put(sequence, group, depth, block);
    }

    /// Puts a block, for which the caller holds a reference, into a sequence's table and releases the previous one.
    pub(super) fn put(&mut self, sequence: u64, group: usize, depth: usize, block: u32) {
        let now = self.index.clock.left();
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        let table = &mut owned.tables[group];
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

    /// Releases blocks that no token from position `from` on reads.
    pub(super) fn leave_behind(&mut self, sequence: u64, from: usize) {
        for group in 0..self.pools.len() {
            let behind = self.layout.behind(group, from);
            self.free_before(sequence, group, behind);
        }
        self.drop_planned(sequence);
    }

    fn free_before(&mut self, sequence: u64, group: usize, behind: usize) {
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        let table = &mut owned.tables[group];
        let behind = behind.min(table.blocks.len());
        for depth in table.freed..behind {
            let block = std::mem::replace(&mut table.blocks[depth], VACANT);
            if block != VACANT {
                self.pools[group].release(block, self.index.clock.left());
            }
        }
        table.freed = table.freed.max(behind);
    }

    /// Plans checkpoints of a sequence's state for a step that computes tokens `from..end`; `ends` means that a prompt
    /// ends there. Without a free slot a checkpoint is skipped, as are positions inside of runs.
    pub fn plan_checkpoints(&mut self, sequence: u64, from: usize, end: usize, ends: bool, runs: &[Range<usize>]) {
        let tokens = self.layout.block_tokens;
        let divides = |border: usize| run_around(runs, border).is_some();
        let Some(owned) = self.sequences.get(&sequence) else { return };
        let branch = owned.branch * tokens;
        let mut last = end / tokens * tokens;
        while last > from && divides(last) {
            last -= tokens;
        }
        let mut borders = Vec::new();
        if owned.branch > owned.reach && (from + 1..=end).contains(&branch) && !divides(branch) {
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
                let Some(slot) = self.allocate(group, sequence) else { break };
                let Some(owned) = self.sequences.get_mut(&sequence) else { return };
                if let Some(state) = &mut owned.tables[group].state {
                    let checkpoint = Checkpoint { after: after as u32, slot };
                    state.planned.push((checkpoint, warm));
                    state.checkpoints.push(checkpoint);
                }
            }
        }
    }

    /// Frees the slots of planned checkpoints that were not published.
    pub(super) fn drop_planned(&mut self, sequence: u64) {
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        for (group, table) in owned.tables.iter_mut().enumerate() {
            let Some(state) = &mut table.state else { continue };
            state.checkpoints.clear();
            for (checkpoint, _) in state.planned.drain(..) {
                self.pools[group].discard(checkpoint.slot);
            }
        }
    }

    /// Publishes the secondary blocks and checkpoints that belong to a primary block just published.
    pub(super) fn publish_secondary(&mut self, sequence: u64, key: Key, depth: usize) {
        let after = ((depth + 1) * self.layout.block_tokens) as u32;
        let primary = self.index.primary;
        for group in (0..self.pools.len()).filter(|group| *group != primary) {
            let Some(owned) = self.sequences.get_mut(&sequence) else { return };
            let table = &mut owned.tables[group];
            let (location, warm) = match &mut table.state {
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
            let known = match self.index.publish_secondary(key, group, location) {
                Published::New => {
                    self.pools[group].blocks[location as usize].key = Some(key);
                    location
                }
                Published::Twin(twin) if twin != location => {
                    self.pools[group].hold(twin);
                    if is_state {
                        self.pools[group].discard(location);
                    } else {
                        self.put(sequence, group, depth, twin);
                    }
                    twin
                }
                Published::Twin(_) => continue,
                Published::Collision if is_state => {
                    self.pools[group].discard(location);
                    continue;
                }
                Published::Collision => continue,
            };
            if is_state {
                self.keep(sequence, group, known, warm);
            }
        }
    }

    /// Records that the sequence's own slot holds the state after `computed` tokens.
    pub(super) fn arrive(&mut self, sequence: u64, computed: usize) {
        self.drop_planned(sequence);
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        for state in owned.tables.iter_mut().filter_map(|table| table.state.as_mut()) {
            if computed > 0 && state.live != VACANT {
                state.at = StateLocation::Live;
            }
        }
    }

    /// Makes a checkpoint, for which the caller holds a reference, the sequence's latest and releases the previous one.
    pub(super) fn keep(&mut self, sequence: u64, group: usize, slot: u32, warm: bool) {
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        let Some(state) = &mut owned.tables[group].state else { return };
        if let Some((old, warm)) = state.kept.replace((slot, warm)) {
            let used = if warm { self.index.clock.live() } else { self.index.clock.left() };
            self.pools[group].release(old, used);
        }
    }

    /// Makes the next step read the checkpoint that the sequence keeps.
    pub(super) fn go_on_from_kept(&mut self, sequence: u64, group: usize) {
        let Some(owned) = self.sequences.get_mut(&sequence) else { return };
        if let Some(state) = &mut owned.tables[group].state {
            state.at = StateLocation::Kept;
        }
    }

    /// Releases everything that a finished or preempted sequence held.
    pub(super) fn let_go(&mut self, mut owned: SequenceTables) {
        // A block that is being imported is already in its table, but a slot is not.
        for import in owned.imports.drain(..).filter(|import| self.layout.groups[import.group].kind == Kind::State) {
            self.pools[import.group].discard(import.location);
        }
        for (group, slot) in owned.pending.drain(..) {
            self.pools[group].release(slot, self.index.clock.live());
        }
        let primary = self.index.primary;
        for (group, table) in owned.tables.iter_mut().enumerate() {
            if let Some(state) = &mut table.state {
                for slot in state.planned.drain(..).map(|(planned, _)| planned.slot) {
                    self.pools[group].discard(slot);
                }
                if state.live != VACANT {
                    self.pools[group].discard(state.live);
                }
                if let Some((slot, _)) = state.kept.take() {
                    self.pools[group].release(slot, self.index.clock.live());
                }
            } else if group != primary {
                for block in table.blocks.drain(..).rev().filter(|block| *block != VACANT) {
                    self.pools[group].release(block, self.index.clock.live());
                }
            }
        }
        for (depth, block) in owned.tables[primary].blocks.drain(..).enumerate().rev() {
            match owned.chain.get(depth) {
                Some(&key) => self.pools[primary].release(block, self.index.touch(key)),
                None => self.pools[primary].discard(block),
            }
        }
    }
}
