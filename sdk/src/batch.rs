//! One step in the SDK's types: the new tokens of many sequences, the wanted outputs, and the block tables. It has been
//! checked against the model's own [`Resident`](crate::Resident).

use std::{borrow::Cow, ops::Range};

/// No block, slot or token.
pub const VACANT: u32 = u32::MAX;

/// The tokens of a span for which the host wants rows of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// No rows.
    None,
    /// A row for the last token.
    Last,
    /// A row for each token.
    All,
}

impl Want {
    /// Rows of a span of `len` tokens.
    pub fn rows(self, len: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => len.min(1),
            Self::All => len,
        }
    }
}

/// The content of a wanted row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The logits of the whole vocabulary.
    Logits,
    /// The tokens with the highest logits.
    Candidates,
    /// The token's hidden state, after the final norm.
    Hidden,
}

/// One step: the new tokens of many sequences, checked.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// The new tokens of all sequences.
    pub tokens: &'a [u32],
    /// The position of each token in its sequence.
    pub positions: &'a [u32],
    /// One per sequence; together they cover `tokens` in order.
    pub spans: Vec<Span<'a>>,
    /// Candidates in a row of [`Output::Candidates`].
    pub top: usize,
}

/// The new tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// The host's id of the sequence.
    pub sequence: u64,
    /// The index of its first new token in the batch.
    pub start: usize,
    /// Number of new tokens, at least one.
    pub len: usize,
    /// Number of the sequence's tokens before these. It may be lower than at the end of the sequence's previous span.
    /// An opaque model compares it with its own count and refuses a mismatch with [`crate::Error::invalid`].
    pub past: usize,
    /// The tokens for which rows are wanted.
    pub want: Want,
    /// The content of those rows.
    pub output: Output,
    /// Allowed candidates for each wanted row, as a bit mask over the vocabulary, in words of 32 bits, lowest bit
    /// first. Empty if all are allowed.
    pub mask: &'a [u32],
    /// The adapter's id; 0 for none.
    pub adapter: u32,
    /// The adapter's strength; 1 applies it as trained.
    pub adapter_scale: f32,
    /// The sequence's blocks or slots in each group of caches.
    pub caches: Vec<Table<'a>>,
}

/// A sequence's entry in a cache group.
#[derive(Clone, Debug)]
pub enum Table<'a> {
    /// Token `i` is in block `blocks[i / block_tokens]`; there are enough blocks for `past + len` tokens. In a group
    /// with a window, entries that are no longer read repeat another block of the sequence.
    Blocks(Cow<'a, [u32]>),
    /// Slots of a recurrent state.
    Slots {
        /// The slot with the state after `past` tokens; `None` for a new sequence.
        read: Option<u32>,
        /// The slot for the state after `past + len` tokens; may be the same.
        write: u32,
        /// Intermediate states to store, in ascending order.
        copies: Vec<StateCopy>,
    },
    /// The model keeps the state itself, by the sequence's id.
    Opaque,
}

/// An intermediate state to store in a slot while a span is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Number of the sequence's tokens that the state includes.
    pub after: usize,
    /// The slot to store it in.
    pub slot: u32,
}

impl Span<'_> {
    /// The sequence's blocks in a group; empty if the group has no blocks.
    pub fn blocks(&self, group: usize) -> &[u32] {
        match self.caches.get(group) {
            Some(Table::Blocks(blocks)) => blocks,
            _ => &[],
        }
    }

    /// Number of wanted rows.
    pub fn rows(&self) -> usize {
        self.want.rows(self.len)
    }

    /// Indices in the batch of the tokens whose rows are wanted. They fit `u32`, as token counts do in the contract.
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
