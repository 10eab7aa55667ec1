//! One step's work: the new tokens of many sequences in one flat batch, prompt chunks and single decodes alike.

use abi_stable::{
    StableAbi,
    std_types::{RSlice, RSliceMut},
};

use crate::CacheTable;

/// The value of [`Span::adapter`] for no adapter.
pub const NO_ADAPTER: u32 = 0;

/// The tokens of a span for which the host wants a row of output.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want(pub u32);

impl Want {
    /// None: a prompt chunk that is not the last.
    pub const NONE: Self = Self(0);
    /// The last token.
    pub const LAST: Self = Self(1);
    /// Every token.
    pub const ALL: Self = Self(2);

    /// Number of rows that a span of `len` tokens yields; `None` for an unknown value.
    pub const fn rows(self, len: u32) -> Option<u32> {
        match self {
            Self::NONE => Some(0),
            Self::LAST => Some(if len == 0 { 0 } else { 1 }),
            Self::ALL => Some(len),
            _ => None,
        }
    }
}

/// The contents of a wanted row.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output(pub u32);

impl Output {
    /// Logits over the whole vocabulary. Every model supports them.
    pub const LOGITS: Self = Self(0);
    /// The tokens with the highest logits, chosen where the logits are, so that only a fraction of the vocabulary crosses.
    /// Supported if [`crate::Card::candidates`] is above 0.
    pub const CANDIDATES: Self = Self(1);
    /// The last hidden state after the final norm, for embeddings, scores and draft heads. Supported if
    /// [`crate::Card::hidden`] is above 0.
    pub const HIDDEN: Self = Self(2);
}

/// One step. Spans tile `tokens` in order without gap or overlap, and no sequence appears twice.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// All new tokens, each below the vocabulary size.
    pub tokens: RSlice<'a, u32>,
    /// Their positions for the position encoding, each below the context that the model was loaded with.
    pub positions: RSlice<'a, u32>,
    /// The sequences that the tokens belong to.
    pub spans: RSlice<'a, Span<'a>>,
    /// Candidates in a row of [`Output::CANDIDATES`]: at least 1 if a span wants such rows, at most
    /// [`crate::Card::candidates`] and the vocabulary size.
    pub top: u32,
}

/// The new tokens of one sequence.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Identifies the sequence from its first batch until [`crate::Model::release`].
    pub sequence: u64,
    /// The index of its first new token in the batch.
    pub start: u32,
    /// The number of new tokens, at least one.
    pub len: u32,
    /// The number of tokens before them in the caches. It may be lower than the sequence's previous span left it:
    /// tokens beyond it, such as rejected drafts, are overwritten. An opaque model refuses a count that differs from
    /// its own.
    pub past: u32,
    /// Tokens for which rows are wanted.
    pub want: Want,
    /// Contents of those rows: one kind for all rows of a span. A host that wants two kinds of one token computes it in
    /// two steps.
    pub output: Output,
    /// For candidates: the allowed tokens, one bit per token, lowest first in words of 32 bits, one mask per wanted
    /// row; empty to allow all. Empty for all other outputs.
    pub mask: RSlice<'a, u32>,
    /// An id from [`crate::Model::attach`], or [`NO_ADAPTER`].
    pub adapter: u32,
    /// Multiplies the adapter's own scale; 1 is as trained.
    pub adapter_scale: f32,
    /// The sequence's blocks and slots in each cache group, in the card's order.
    pub caches: RSlice<'a, CacheTable<'a>>,
}

/// Buffers for the wanted rows of a step, one for each kind, each with room for exactly its rows.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Outputs<'a> {
    /// Rows of `vocabulary` logits.
    pub logits: RSliceMut<'a, f32>,
    /// Rows of [`Batch::top`] candidates: their ids, by descending logit, ties by ascending id. If the mask allows
    /// fewer tokens, the rest are [`crate::VACANT`].
    pub ids: RSliceMut<'a, u32>,
    /// The candidates' logits, in the same order; −∞ where there is no candidate.
    pub scores: RSliceMut<'a, f32>,
    /// Two values for each row of candidates: the log-sum-exp of the logits over the whole vocabulary, and over the
    /// tokens that the mask allows.
    pub totals: RSliceMut<'a, f32>,
    /// Rows of [`crate::Card::hidden`] values.
    pub hidden: RSliceMut<'a, f32>,
}
