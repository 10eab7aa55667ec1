//! Bytes of an answer that are held back until it is clear what they are. White space is held for as long as the model
//! writes nothing else, so new chunks must not cause it to be scanned again.

use std::ops::Deref;

use super::pieces::{find, leading};

#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// Length of the prefix known to be white space.
    white: usize,
}

impl Held {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the length of the leading white space.
    pub fn white(&mut self) -> usize {
        self.white += leading(&self.bytes[self.white..], u8::is_ascii_whitespace);
        self.white
    }

    /// Finds a marker. Markers must contain more than white space.
    pub fn find(&self, marker: &[u8]) -> Option<usize> {
        let from = self.white.saturating_sub(marker.len());
        find(&self.bytes[from..], marker).map(|place| from + place)
    }

    /// Returns the length of the first `upto` bytes without trailing white space.
    pub fn trimmed(&mut self, upto: usize) -> usize {
        let white = self.white().min(upto);
        let text = self.bytes[white..upto].trim_ascii_end().len();
        if text > 0 { white + text } else { 0 }
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        self.white = self.white.saturating_sub(count);
        self.bytes.drain(..count).collect()
    }

    /// Replaces the first `count` bytes.
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
