//! Bytes of an answer that are held back until it is known what they are. White space is held for as long as a model writes
//! nothing else, so it must not be scanned again with each new chunk.

use std::ops::Deref;

use super::pieces::{find, leading};

#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// The length of the prefix that is known to be white space.
    white: usize,
}

impl Held {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The length of the leading white space.
    pub fn white(&mut self) -> usize {
        self.white += leading(&self.bytes[self.white..], u8::is_ascii_whitespace);
        self.white
    }

    /// The position of a marker, which is not white space alone.
    pub fn find(&self, marker: &[u8]) -> Option<usize> {
        let from = self.white.saturating_sub(marker.len());
        find(&self.bytes[from..], marker).map(|place| from + place)
    }

    /// The length of the first `upto` bytes without trailing white space.
    pub fn trimmed(&mut self, upto: usize) -> usize {
        let white = self.white().min(upto);
        let text = self.bytes[white..upto].trim_ascii_end().len();
        if text > 0 { white + text } else { 0 }
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        self.white = self.white.saturating_sub(count);
        self.bytes.drain(..count).collect()
    }

    /// Replaces the first bytes.
    pub fn replace(&mut self, count: usize, others: &[u8]) {
        self.white = 0;
        self.bytes.splice(..count, others.iter().copied());
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
