//! What a model remembers of its sequences, and where. A model's layers fall into groups that remember alike; its
//! [`crate::Card`] lists them, and the host owns every id in all of them: it deals blocks and slots out, shares them, takes
//! them back and keeps copies on disk, for plain, windowed and recurrent layers by one table.
//!
//! All groups lie on one grid of [`crate::Card::block_tokens`] tokens. A sequence can be continued by another one at any
//! border of the grid up to which its blocks are known and at which a copy of its state was left.

use abi_stable::{StableAbi, std_types::RSlice};

/// The id of no block and no slot.
pub const VACANT: u32 = u32::MAX;

/// How the layers of a group remember.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKind(pub u32);

impl CacheKind {
    /// In blocks of tokens, all of which are read: full attention.
    pub const TOKENS: Self = Self(0);
    /// In blocks of tokens, of which a token reads the last [`CacheGroup::window`], its own included: the host frees the
    /// blocks before them.
    pub const WINDOW: Self = Self(1);
    /// In slots; one slot holds the whole past up to one token: recurrent layers, convolutions.
    pub const STATE: Self = Self(2);
    /// By itself, under the sequence's id: wrapped code. It is the only group of its model, which refuses a span whose `past`
    /// is not its own count. `sequence-state/1` copies what it holds, where it is offered.
    pub const OPAQUE: Self = Self(3);
}

/// A group of layers that remember alike. A model has one group that is opaque, or any number of the other kinds.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// How it remembers.
    pub kind: CacheKind,
    /// Tokens that a token reads, itself included, in a group of kind [`CacheKind::WINDOW`]; 0 in all others.
    pub window: u32,
    /// Bytes of a block over all layers of the group, of a slot, or of an opaque sequence at the card's context.
    pub bytes: u64,
}

/// Where a group keeps one sequence during one step.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct CacheTable<'a> {
    /// Of tokens and windows: the block of each run of `block_tokens` tokens, at least enough for `past + len`. Token `i` of
    /// the sequence lies in `blocks[i / block_tokens]`. Blocks that hold only past tokens may be shared with other sequences;
    /// the model writes to the new tokens' places alone. In a window, a block whose tokens all lie before
    /// `past + 1 - window` may be [`VACANT`]. Empty for states and opaque groups.
    pub blocks: RSlice<'a, u32>,
    /// Of states: the slot that holds the state after `past` tokens; [`VACANT`] where `past` is 0, which is a blank state. Only
    /// read, unless it is `write` too. [`VACANT`] for all other kinds.
    pub read: u32,
    /// Of states: where the state after `past + len` tokens goes; no other span reads or writes it. A host that may go back to
    /// `past`, as after drafted tokens, writes elsewhere than it reads. [`VACANT`] for all other kinds.
    pub write: u32,
    /// Of states: copies to leave, in ascending order of `after`. Empty for all other kinds.
    pub checkpoints: RSlice<'a, Checkpoint>,
}

/// A copy of a state to leave in another slot, while a span is computed.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// After how many tokens of the sequence: above `past`, at most `past + len`.
    pub after: u32,
    /// Where; no other span reads or writes it, and it is neither `read` nor `write`.
    pub slot: u32,
}

impl CacheTable<'_> {
    /// The table of an opaque group.
    pub const fn opaque() -> Self {
        Self { blocks: RSlice::EMPTY, read: VACANT, write: VACANT, checkpoints: RSlice::EMPTY }
    }
}

impl CacheGroup {
    /// Whether its layers keep blocks of tokens.
    pub fn has_blocks(&self) -> bool {
        self.kind == CacheKind::TOKENS || self.kind == CacheKind::WINDOW
    }

    /// Whether its layers keep states in slots.
    pub fn has_slots(&self) -> bool {
        self.kind == CacheKind::STATE
    }

    /// How many of a sequence's first blocks a step after `past` tokens does not read.
    pub fn blocks_behind(&self, past: u64, block_tokens: u32) -> u64 {
        match self.kind {
            CacheKind::WINDOW => (past + 1).saturating_sub(u64::from(self.window)) / u64::from(block_tokens.max(1)),
            _ => 0,
        }
    }
}
