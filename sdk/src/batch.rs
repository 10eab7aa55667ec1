//! One step as an author sees it: the new tokens of many sequences, what is wanted of them, and where each group of caches
//! keeps them. It has been checked against the model's own [`Resident`](crate::Resident).

use std::{borrow::Cow, ops::Range};

/// What stands where there is no block, slot or token.
pub const VACANT: u32 = u32::MAX;

/// Of which tokens of a span the host wants rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// For none.
    None,
    /// For the last.
    Last,
    /// For all.
    All,
}

impl Want {
    /// How many rows a span of `len` tokens yields.
    pub fn rows(self, len: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => len.min(1),
            Self::All => len,
        }
    }
}

/// What a wanted row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The logits of the whole vocabulary.
    Logits,
    /// The tokens with the highest logits.
    Candidates,
    /// What the last layer makes of the token, after the final norm.
    Hidden,
}

/// One step: the new tokens of many sequences, checked.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// All new tokens.
    pub tokens: &'a [u32],
    /// Their positions.
    pub positions: &'a [u32],
    /// The sequences that they belong to; they tile `tokens` in order.
    pub spans: Vec<Span<'a>>,
    /// How many candidates a row of them has.
    pub top: usize,
}

/// The new tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// The sequence's name.
    pub sequence: u64,
    /// The index of its first new token in the batch.
    pub start: usize,
    /// How many new tokens; at least one.
    pub len: usize,
    /// How many tokens lie before them in the caches; it may be lower than after the span before. An opaque model compares it
    /// with its own count and refuses what does not follow, with [`crate::Error::invalid`].
    pub past: usize,
    /// Of which tokens rows are wanted.
    pub want: Want,
    /// What those rows are.
    pub output: Output,
    /// Which tokens may be candidates: one bit each, lowest first in words of 32 bits, for each wanted row; empty for all.
    pub mask: &'a [u32],
    /// The adapter's id; 0 for none.
    pub adapter: u32,
    /// Its strength.
    pub adapter_scale: f32,
    /// Where each group of caches keeps it.
    pub caches: Vec<Table<'a>>,
}

/// Where a group keeps one sequence.
#[derive(Clone, Debug)]
pub enum Table<'a> {
    /// In these blocks: token `i` in `blocks[i / block_tokens]`. There are enough for `past + len` tokens. Of a window, those
    /// that no token reads any more are not the sequence's, and name another block of its own.
    Blocks(Cow<'a, [u32]>),
    /// In slots.
    Slots {
        /// The slot with the state after `past` tokens; none for a blank state.
        read: Option<u32>,
        /// Where the state after `past + len` tokens goes; may be the same slot.
        write: u32,
        /// The copies to leave on the way, in ascending order.
        copies: Vec<StateCopy>,
    },
    /// Under its id.
    Opaque,
}

/// A copy of a state, to leave in another slot while a span is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// After how many tokens of the sequence.
    pub after: usize,
    /// In which slot.
    pub slot: u32,
}

impl Span<'_> {
    /// Its blocks in a group; empty where that is no group of blocks.
    pub fn blocks(&self, group: usize) -> &[u32] {
        match self.caches.get(group) {
            Some(Table::Blocks(blocks)) => blocks,
            _ => &[],
        }
    }

    /// How many rows it yields.
    pub fn rows(&self) -> usize {
        self.want.rows(self.len)
    }

    /// The indices of its tokens whose rows are wanted. Token counts of a batch arrived as u32.
    pub fn wanted(&self) -> Range<u32> {
        let end = self.start + self.len;
        (end - self.rows()) as u32..end as u32
    }
}

impl Batch<'_> {
    /// The indices of the tokens whose rows are wanted, in order.
    pub fn wanted(&self) -> Vec<u32> {
        self.spans.iter().flat_map(Span::wanted).collect()
    }
}
