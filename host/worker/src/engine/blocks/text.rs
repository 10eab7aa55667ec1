//! A sequence's text as the cache sees it: tokens, and items such as images behind some of them. Tokens stand for items
//! of all contents alike, so a block's identity includes those of the items that it has a part of.

use std::ops::Range;

use sha2::{Digest, Sha256};

/// An item's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemSpan {
    pub tokens: Range<usize>,
    /// A hash of everything that its rows and positions depend on.
    pub identity: [u8; 32],
}

/// A text, or its beginning.
#[derive(Clone, Copy, Debug)]
pub struct SequenceText<'a> {
    pub tokens: &'a [u32],
    /// In order and disjoint; they may lie beyond the tokens.
    pub items: &'a [ItemSpan],
    /// Ranges of tokens that see each other, later ones included; in order and disjoint. A text is not continued inside
    /// of one.
    pub runs: &'a [Range<usize>],
}

impl<'a> SequenceText<'a> {
    /// Its first `len` tokens.
    pub(super) fn first(self, len: usize) -> Self {
        Self { tokens: &self.tokens[..len.min(self.tokens.len())], ..self }
    }

    /// The part of it that may come from the cache. The last token is always computed, as its logits are needed.
    pub(super) fn without_last(self) -> Self {
        self.first(self.tokens.len().saturating_sub(1))
    }

    /// True if a step may end and another begin before this token.
    pub fn may_break_at(self, token: usize) -> bool {
        run_around(self.runs, token).is_none()
    }

    /// A hash of the items that some of these tokens belong to; `None` if no token belongs to one.
    pub(super) fn media_of(self, tokens: Range<usize>) -> Option<[u8; 32]> {
        let first = self.items.partition_point(|item| item.tokens.end <= tokens.start);
        let mut parts = self.items[first..].iter().take_while(|item| item.tokens.start < tokens.end).peekable();
        parts.peek()?;
        let mut hasher = Sha256::new();
        for item in parts {
            // Where the item begins, from the first of these tokens on, and where it ends.
            for at in [item.tokens.start, item.tokens.end] {
                hasher.update((at as i64 - tokens.start as i64).to_le_bytes());
            }
            hasher.update(item.identity);
        }
        Some(hasher.finalize().into())
    }
}

/// The run that a break before this token would divide.
pub fn run_around(runs: &[Range<usize>], token: usize) -> Option<&Range<usize>> {
    let next = runs.partition_point(|run| run.end <= token);
    runs.get(next).filter(|run| run.start < token)
}

impl<'a> From<&'a [u32]> for SequenceText<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, items: &[], runs: &[] }
    }
}

impl<'a> From<&'a Vec<u32>> for SequenceText<'a> {
    fn from(tokens: &'a Vec<u32>) -> Self {
        tokens.as_slice().into()
    }
}
