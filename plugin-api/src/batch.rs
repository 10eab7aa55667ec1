//! What one step computes: the new tokens of many sequences in one flat batch, prompt chunks and single decodes alike.

use abi_stable::{
    StableAbi,
    std_types::{RSlice, RSliceMut},
};

use crate::CacheTable;

/// The value of [`Span::adapter`] for "none".
pub const NO_ADAPTER: u32 = 0;

/// Of which of a span's tokens the host wants a row of output.
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

    /// How many rows a span of `len` tokens yields; none for an unknown value.
    pub const fn rows(self, len: u32) -> Option<u32> {
        match self {
            Self::NONE => Some(0),
            Self::LAST => Some(if len == 0 { 0 } else { 1 }),
            Self::ALL => Some(len),
            _ => None,
        }
    }
}

/// What a wanted row is.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output(pub u32);

impl Output {
    /// The logits of the whole vocabulary. Every model gives them.
    pub const LOGITS: Self = Self(0);
    /// The tokens with the highest logits, chosen where the model computes: of a vocabulary of 250,000 tokens, a thousandth
    /// crosses. Of models whose card says how many.
    pub const CANDIDATES: Self = Self(1);
    /// What the last layer makes of the token, after the final norm: embeddings, scores, the input of draft heads. Of models
    /// whose card says how wide it is.
    pub const HIDDEN: Self = Self(2);
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
    /// How many candidates a row of [`Output::CANDIDATES`] has: at least 1 where a span asks for such rows, and at most what the
    /// card says and the vocabulary.
    pub top: u32,
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
    /// How many tokens lie before them in the caches. It may be lower than after the span before: what was computed beyond it,
    /// as drafted tokens that were not taken, is overwritten. An opaque model refuses a count that is not its own.
    pub past: u32,
    /// Of which of its tokens rows are wanted.
    pub want: Want,
    /// What those rows are.
    pub output: Output,
    /// Of candidates: which tokens may be among them, one bit for each token, lowest first in words of 32 bits, a mask for each
    /// wanted row; or empty for all. Empty for all other outputs.
    pub mask: RSlice<'a, u32>,
    /// An id from [`crate::Model::attach`], or [`NO_ADAPTER`].
    pub adapter: u32,
    /// The strength of the adapter on top of its own scale; 1 is as trained.
    pub adapter_scale: f32,
    /// Where each group of the card keeps the sequence, in the card's order.
    pub caches: RSlice<'a, CacheTable<'a>>,
}

/// Where the wanted rows of a step go, each kind for itself, and each with room for exactly its rows.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Outputs<'a> {
    /// Rows of `vocabulary` logits.
    pub logits: RSliceMut<'a, f32>,
    /// Rows of [`Batch::top`] candidates: their ids, the highest logit first and the lower id first where two are equal. A mask
    /// that allows fewer tokens leaves the last ones [`crate::VACANT`].
    pub ids: RSliceMut<'a, u32>,
    /// Their logits, in the same order; −∞ where there is no candidate.
    pub scores: RSliceMut<'a, f32>,
    /// Two values for each row of candidates: the logarithm of the sum of `exp(logit)` over the whole vocabulary, and over the
    /// tokens that the mask allows.
    pub totals: RSliceMut<'a, f32>,
    /// Rows of [`crate::Card::hidden`] values.
    pub hidden: RSliceMut<'a, f32>,
}
