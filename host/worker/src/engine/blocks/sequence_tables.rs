//! The tables of one sequence: its chain of published blocks, and the blocks or slots that it holds in each cache
//! group.

use std::collections::VecDeque;

use pensieve_plugin_api::{Checkpoint, VACANT};

use super::{
    disk::Import,
    key::{Chain, Key, Link},
    layout::{Group, Kind, Layout},
    text::SequenceText,
};

/// A group's storage for a sequence in the next step, as passed to the model.
#[derive(Clone, Copy, Debug)]
pub enum CacheLocation<'a> {
    /// Block ids; vacant behind a window.
    Blocks(&'a [u32]),
    Slots {
        /// Slot with the state so far, or vacant.
        read: u32,
        /// Slot for the next state.
        write: u32,
        /// Copies to leave.
        checkpoints: &'a [Checkpoint],
    },
}

#[derive(Debug)]
pub(super) struct SequenceTables {
    pub(super) root: Key,
    /// Keys of its leading primary blocks, which are published and may be shared.
    pub(super) chain: Vec<Key>,
    /// Leading blocks that every group has, or that it computed itself.
    pub(super) reach: usize,
    /// Leading blocks whose primary copies were indexed at the last lookup: a good position for a checkpoint.
    pub(super) branch: usize,
    /// One table for each group.
    pub(super) tables: Vec<Table>,
    /// Copies that are being read from disk, in order.
    pub(super) imports: VecDeque<Import>,
    /// Checkpoints to continue from once the imports are done, as (group, slot).
    pub(super) pending: Vec<(usize, u32)>,
    /// The reach once the imports are done.
    pub(super) awaited: usize,
    /// The imports count when all of them are done, and none does if one fails.
    pub(super) at_once: bool,
}

/// The blocks or slots of one sequence in one group.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Blocks of a token or window group, in order; vacant behind the window.
    pub(super) blocks: Vec<u32>,
    /// Number of leading blocks that were freed.
    pub(super) freed: usize,
    pub(super) state: Option<RecurrentState>,
}

#[derive(Debug)]
pub(super) struct RecurrentState {
    /// The slot that only this sequence writes to; vacant before its first step.
    pub(super) live: u32,
    /// The checkpoint that it continues from or left last, and whether that stays warm when replaced.
    pub(super) kept: Option<(u32, bool)>,
    /// Location of the state after the computed tokens.
    pub(super) at: StateLocation,
    /// Checkpoints that this step leaves, and whether they are warm.
    pub(super) planned: Vec<(Checkpoint, bool)>,
    pub(super) checkpoints: Vec<Checkpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateLocation {
    /// No token has been computed yet.
    Blank,
    /// In its own slot.
    Live,
    /// In the checkpoint that it continues from.
    Kept,
}

impl SequenceTables {
    pub(super) fn new(root: Key, layout: &Layout) -> Self {
        let tables = layout.groups.iter().map(|group| {
            let none = RecurrentState {
                live: VACANT,
                kept: None,
                at: StateLocation::Blank,
                planned: Vec::new(),
                checkpoints: Vec::new(),
            };
            Table { state: (group.kind == Kind::State).then_some(none), ..Table::default() }
        });
        let tables = tables.collect();
        let (chain, imports, pending) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { root, chain, reach: 0, branch: 0, tables, imports, pending, awaited: 0, at_once: false }
    }

    /// Returns the block after its chain, if the text fills it.
    pub(super) fn next<'a>(&self, chain: &Chain, text: SequenceText<'a>) -> Option<Link<'a>> {
        chain.link(self.chain.last().copied().unwrap_or(self.root), self.chain.len(), text)
    }
}

impl Table {
    /// Blocks or slots to allocate for tokens `from..end`.
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

    /// Appends a block, which lies after the first `behind`, or sets the slot to write to.
    pub(super) fn push(&mut self, location: u32, behind: usize) {
        match &mut self.state {
            Some(state) => state.live = location,
            None => {
                if self.blocks.len() < behind {
                    self.blocks.resize(behind, VACANT);
                    self.freed = behind;
                }
                self.blocks.push(location);
            }
        }
    }

    /// Number of blocks or slots in use.
    pub(super) fn held(&self) -> usize {
        match &self.state {
            Some(state) => usize::from(state.live != VACANT),
            None => self.blocks.len() - self.freed,
        }
    }

    pub(super) fn location(&self) -> CacheLocation<'_> {
        let Some(state) = &self.state else { return CacheLocation::Blocks(&self.blocks) };
        let read = match state.at {
            StateLocation::Blank => VACANT,
            StateLocation::Live => state.live,
            StateLocation::Kept => state.kept.map_or(VACANT, |(slot, _)| slot),
        };
        CacheLocation::Slots { read, write: state.live, checkpoints: &state.checkpoints }
    }
}
