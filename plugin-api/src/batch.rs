//! What one step computes: the new tokens of many sequences in one flat batch, prompt chunks and single decodes alike.

use abi_stable::{StableAbi, std_types::RSlice};

/// The value of [`Span::adapter`] for "none".
pub const NO_ADAPTER: u32 = 0;

/// Which of a span's tokens the host wants logits for.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want(pub u32);

impl Want {
    /// None: a prompt chunk that is not the last.
    pub const NONE: Self = Self(0);
    /// Those of the last token.
    pub const LAST: Self = Self(1);
    /// Those of every token.
    pub const ALL: Self = Self(2);

    /// How many rows of logits a span of `len` tokens yields; none for an unknown value.
    pub const fn rows(self, len: u32) -> Option<u32> {
        match self {
            Self::NONE => Some(0),
            Self::LAST => Some(if len == 0 { 0 } else { 1 }),
            Self::ALL => Some(len),
            _ => None,
        }
    }
}

/// One step. Spans tile `tokens` in order without gap or overlap, and no sequence appears twice.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// All new tokens, each below the vocabulary size.
    pub tokens: RSlice<'a, u32>,
    /// Their positions for the position encoding, each below the context length that the model was loaded with.
    pub positions: RSlice<'a, u32>,
    /// The sequences that they belong to.
    pub spans: RSlice<'a, Span<'a>>,
}

/// The new tokens of one sequence.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Names the sequence from its first batch until [`crate::Model::release`]; never reused while alive.
    pub sequence: u64,
    /// The index of its first new token in the batch.
    pub start: u32,
    /// How many new tokens; at least one.
    pub len: u32,
    /// How many tokens of it the model has already seen. A per-sequence model refuses a count that is not its own.
    pub past: u32,
    /// For which of its tokens logits are wanted.
    pub want: Want,
    /// An id from [`crate::Model::attach`], or [`NO_ADAPTER`].
    pub adapter: u32,
    /// The strength of the adapter on top of its own scale; 1 is as trained.
    pub adapter_scale: f32,
    /// Paged models: the block of each run of `block_tokens` tokens, at least enough for `past + len`. Token `i` of the
    /// sequence lies in `blocks[i / block_tokens]`. Blocks that hold only past tokens may be shared with other
    /// sequences; the model writes to the new tokens' places alone. Empty for per-sequence models.
    pub blocks: RSlice<'a, u32>,
}
