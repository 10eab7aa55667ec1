//! What one sequence has: its chain of known blocks, and a table for each group.

use std::collections::VecDeque;

use pensieve_plugin_api::{Checkpoint, VACANT};

use super::{
    disk::Import,
    key::{Chain, Key, Link},
    layout::{Group, Kind, Layout},
};

/// Where a group keeps a sequence in the next step, for the model.
#[derive(Clone, Copy, Debug)]
pub enum Places<'a> {
    /// In these blocks, vacant where a window has passed.
    Blocks(&'a [u32]),
    Slots {
        /// The slot with the state so far; vacant where there is none.
        read: u32,
        /// Where the next state goes.
        write: u32,
        /// Copies to leave.
        checkpoints: &'a [Checkpoint],
    },
}

#[derive(Debug)]
pub(super) struct Holding {
    pub(super) root: Key,
    /// The keys of its first spine blocks, which are known and may be shared.
    pub(super) chain: Vec<Key>,
    /// How many blocks of its text are in place in every group, or are computed by itself.
    pub(super) reach: usize,
    /// How many blocks of its text the spine was last known of: where it may be worth to leave a copy of the state.
    pub(super) branch: usize,
    /// For each group: the chain and then private blocks; what a window holds; slots.
    pub(super) tables: Vec<Table>,
    /// What it waits for from disk.
    pub(super) imports: VecDeque<Import>,
    /// Copies of states that it goes on from once all of that has come: groups and slots.
    pub(super) pending: Vec<(usize, u32)>,
    /// How many blocks will be in place once that has come.
    pub(super) awaited: usize,
}

/// What one sequence has in one group.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Of tokens and windows, in order; vacant where the window has passed.
    pub(super) blocks: Vec<u32>,
    /// How many of the first blocks were given back.
    pub(super) freed: usize,
    pub(super) state: Option<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// The slot that it alone writes to; vacant before its first step.
    pub(super) live: u32,
    /// The copy that it goes on from or has left last, and whether that is worth to be kept when the next is left.
    pub(super) kept: Option<(u32, bool)>,
    /// Where the state after what is computed lies.
    pub(super) at: At,
    /// Copies to leave in this step, and whether they are worth to be kept.
    pub(super) planned: Vec<(Checkpoint, bool)>,
    pub(super) checkpoints: Vec<Checkpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// There is none before its first token.
    Blank,
    /// In its own slot.
    Live,
    /// In the copy that it goes on from.
    Kept,
}

impl Holding {
    pub(super) fn new(root: Key, layout: &Layout) -> Self {
        let tables = layout.groups.iter().map(|group| {
            let none = State { live: VACANT, kept: None, at: At::Blank, planned: Vec::new(), checkpoints: Vec::new() };
            Table { state: (group.kind == Kind::State).then_some(none), ..Table::default() }
        });
        let tables = tables.collect();
        let (chain, imports, pending) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { root, chain, reach: 0, branch: 0, tables, imports, pending, awaited: 0 }
    }

    /// The block after its chain, if the text fills it.
    pub(super) fn next<'a>(&self, chain: &Chain, text: &'a [u32]) -> Option<Link<'a>> {
        chain.link(self.chain.last().copied().unwrap_or(self.root), self.chain.len(), text)
    }
}

impl Table {
    /// How many more blocks or slots the tokens from `from` up to `end` take.
    pub(super) fn missing(&self, group: &Group, from: usize, end: usize, layout: &Layout) -> usize {
        match (&self.state, group.kind) {
            (Some(state), _) => usize::from(state.live == VACANT),
            (None, Kind::Window(tokens)) => {
                let behind = (from + 1).saturating_sub(tokens) / layout.block_tokens;
                end.div_ceil(layout.block_tokens).saturating_sub(self.blocks.len().max(behind))
            }
            (None, _) => end.div_ceil(layout.block_tokens).saturating_sub(self.blocks.len()),
        }
    }

    /// Takes in a further block, none of the first `behind`; or the slot to write to.
    pub(super) fn push(&mut self, place: u32, behind: usize) {
        match &mut self.state {
            Some(state) => state.live = place,
            None => {
                if self.blocks.len() < behind {
                    self.blocks.resize(behind, VACANT);
                    self.freed = behind;
                }
                self.blocks.push(place);
            }
        }
    }

    /// How many blocks or slots it has.
    pub(super) fn held(&self) -> usize {
        match &self.state {
            Some(state) => usize::from(state.live != VACANT),
            None => self.blocks.len() - self.freed,
        }
    }

    pub(super) fn places(&self) -> Places<'_> {
        let Some(state) = &self.state else { return Places::Blocks(&self.blocks) };
        let read = match state.at {
            At::Blank => VACANT,
            At::Live => state.live,
            At::Kept => state.kept.map_or(VACANT, |(slot, _)| slot),
        };
        Places::Slots { read, write: state.live, checkpoints: &state.checkpoints }
    }
}
