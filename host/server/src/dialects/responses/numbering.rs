//! How the events of an answer were cut and numbered, so that a replay has the same deltas under the same numbers, and
//! `starting_after` means the same event in both.

use std::ops::Range;

use bytes::Bytes;

/// Bytes of text, and number of logprobs.
pub(super) type Cut = (u32, u32);

#[derive(Clone, Debug, Default)]
pub(super) struct Numbering {
    /// Of each item of the output, its deltas in order.
    pub(super) items: Vec<Vec<Cut>>,
    /// Numbers of events that a replay leaves out, ascending: keep-alives, and items that were given up.
    pub(super) skipped: Vec<Range<u64>>,
}

impl Numbering {
    pub(super) fn skip(&mut self, numbers: Range<u64>) {
        self.skipped.retain(|range| range.start < numbers.start);
        match self.skipped.last_mut() {
            Some(last) if last.end == numbers.start => last.end = numbers.end,
            _ => self.skipped.push(numbers),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let cuts = self.items.iter().map(|item| size_of::<Vec<Cut>>() + item.len() * size_of::<Cut>());
        cuts.sum::<usize>() + self.skipped.len() * size_of::<Range<u64>>()
    }
}

/// A response that is being made, as far as it is.
pub(super) struct Progress {
    pub(super) response: Bytes,
    pub(super) numbering: Numbering,
    /// Place of the item that is not done.
    pub(super) open_item: Option<usize>,
}

/// The cut of a delta.
pub(super) fn cut(text: &str, logprobs: usize) -> Cut {
    (u32::try_from(text.len()).unwrap_or(u32::MAX), u32::try_from(logprobs).unwrap_or(u32::MAX))
}
