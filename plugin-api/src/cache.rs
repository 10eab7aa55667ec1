//! Cache groups. A model's layers fall into groups whose caches work alike, which its [`crate::Card`] lists. The host
//! owns every id in all of them: it allocates blocks and slots, shares them, frees them and spills them to disk, by one
//! mechanism for full-attention, windowed and recurrent layers.
//!
//! All groups share a grid of [`crate::Card::block_tokens`] tokens. Another sequence can resume a prefix at any border
//! of the grid up to which its blocks are cached and at which a checkpoint of its state was left.

use abi_stable::{StableAbi, std_types::RSlice};

/// No block or slot.
pub const VACANT: u32 = u32::MAX;

/// How the layers of a group cache their past.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKind(pub u32);

impl CacheKind {
    /// Blocks of tokens, all of which are read: full attention.
    pub const TOKENS: Self = Self(0);
    /// Blocks of tokens, of which a token reads the last [`CacheGroup::window`] tokens, itself included; the host frees
    /// earlier blocks.
    pub const WINDOW: Self = Self(1);
    /// Slots, each of which holds the whole past up to one token: recurrent layers, convolutions.
    pub const STATE: Self = Self(2);
    /// The model keeps the cache under the sequence's id: wrapped code. An opaque group is its model's only one, and
    /// the model refuses a span whose `past` differs from its own count. `sequence-state/1`, if offered, copies its
    /// state.
    pub const OPAQUE: Self = Self(3);
}

/// A group of layers with caches of one kind. A model has one opaque group, or any number of the other kinds.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// Blocks, slots, or opaque.
    pub kind: CacheKind,
    /// For [`CacheKind::WINDOW`], the tokens that a token reads, itself included; else 0.
    pub window: u32,
    /// Bytes of a block or slot over all layers of the group, or of an opaque sequence at the card's context.
    pub bytes: u64,
}

/// One sequence's blocks or slots in one group, for one step.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct CacheTable<'a> {
    /// For tokens and windows: the block of each run of `block_tokens` tokens, at least enough for `past + len`. Token
    /// `i` of the sequence is in `blocks[i / block_tokens]`. Blocks that hold only past tokens may be shared with other
    /// sequences; the model writes only where the new tokens go. In a window, a block whose tokens are all before `past
    /// + 1 - window` may be [`VACANT`]. Empty for states and opaque groups.
    pub blocks: RSlice<'a, u32>,
    /// For states: the slot with the state after `past` tokens, or [`VACANT`] if `past` is 0, for an initial state.
    /// Read-only, unless it equals `write`. [`VACANT`] for all other kinds.
    pub read: u32,
    /// For states: the slot for the state after `past + len` tokens; no other span reads or writes it. A host that may
    /// roll back to `past`, as with drafted tokens, uses different slots. [`VACANT`] for all other kinds.
    pub write: u32,
    /// For states: copies to leave, by ascending `after`. Empty for all other kinds.
    pub checkpoints: RSlice<'a, Checkpoint>,
}

/// A copy of the state to leave in another slot while a span is computed.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of tokens of the sequence before the copy: above `past`, at most `past + len`.
    pub after: u32,
    /// No other span reads or writes it, and it is neither `read` nor `write`.
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

    /// Number of a sequence's first blocks that a step after `past` tokens no longer reads.
    pub fn blocks_behind(&self, past: u64, block_tokens: u32) -> u64 {
        match self.kind {
            CacheKind::WINDOW => (past + 1).saturating_sub(u64::from(self.window)) / u64::from(block_tokens.max(1)),
            _ => 0,
        }
    }
}
