//! Bytes of an answer that are held back until it is known what they are. White space may be held for as long as a model
//! writes nothing else, so each piece that comes must not have all of it looked at again.

use std::ops::Deref;

use super::pieces::{find, leading};

#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// How many of the first bytes are known to be white space.
    white: usize,
}

impl Held {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// How much white space stands at the front.
    pub fn white(&mut self) -> usize {
        self.white += leading(&self.bytes[self.white..], u8::is_ascii_whitespace);
        self.white
    }

    /// Where a marker begins, which is not white space alone.
    pub fn find(&self, marker: &[u8]) -> Option<usize> {
        let from = self.white.saturating_sub(marker.len());
        find(&self.bytes[from..], marker).map(|place| from + place)
    }

    /// How long the first `upto` bytes are without white space at their end.
    pub fn trimmed(&mut self, upto: usize) -> usize {
        let white = self.white().min(upto);
        let text = self.bytes[white..upto].trim_ascii_end().len();
        if text > 0 { white + text } else { 0 }
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        self.white = self.white.saturating_sub(count);
        self.bytes.drain(..count).collect()
    }

    /// Puts others in the place of the first ones.
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
