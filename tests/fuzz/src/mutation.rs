//! Damage: bits, numbers, lengths, order, words. Some of it is blind, and some knows that inputs have little-endian numbers or the
//! punctuation of JSON in them.

use fastrand::Rng;

/// Damage is done here more often than elsewhere: formats begin with what describes the rest.
const HEAD_BYTES: usize = 4096;

/// Words that readers of JSON, of numbers and of templates treat in a way of their own.
const WORDS: [&str; 44] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "1e308",
    "-1e999",
    "1e-400",
    "0.1",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "4294967296",
    "2147483648",
    "65536",
    "\"\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"\u{1f600}\"",
    "[]",
    "{}",
    "[null]",
    "{\"\":null}",
    "[[[[[[[[",
    "]]]]]]]]",
    "{\"a\":",
    "}",
    ",",
    ":",
    "\\",
    "\"",
    "NaN",
    "Infinity",
    "../",
    "/",
    "%s",
    "{{",
    "}}",
    "{%",
    "%}",
    "<|im_end|>",
    "<tool_call>",
    "</think>",
];

const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x10000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Makes one damaged input.
pub struct Mutator {
    rng: Rng,
    input_max: usize,
}

impl Mutator {
    /// The one of this seed, whose inputs have at most so many bytes.
    pub fn new(seed: u64, input_max: usize) -> Self {
        Self { rng: Rng::with_seed(seed), input_max }
    }

    /// One of these, damaged.
    pub fn mutate(&mut self, pool: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.rng.choice(pool).cloned().unwrap_or_default();
        let times = 1 << self.rng.u32(0..4);
        for _ in 0..self.rng.u32(1..=times) {
            self.damage(&mut input, pool);
            input.truncate(self.input_max);
        }
        input
    }

    fn damage(&mut self, input: &mut Vec<u8>, pool: &[Vec<u8>]) {
        let place = self.place(input.len());
        match self.rng.u32(0..14) {
            0 if !input.is_empty() => {
                let place = place.min(input.len() - 1);
                input[place] ^= 1 << self.rng.u32(0..8);
            }
            1 if !input.is_empty() => {
                let place = place.min(input.len() - 1);
                input[place] = self.rng.u8(..);
            }
            2 | 3 => self.overwrite_number(input, place),
            4 => drop(input.drain(self.range(input.len(), 64))),
            5 => {
                let piece = input[self.range(input.len(), 256)].to_vec();
                insert(input, place, &piece);
            }
            6 => {
                let bytes: Vec<u8> = (0..self.rng.usize(1..16)).map(|_| self.rng.u8(..)).collect();
                insert(input, place, &bytes);
            }
            7 => {
                let other = self.rng.choice(pool).cloned().unwrap_or_default();
                let from = self.place(other.len());
                input.truncate(place);
                input.extend_from_slice(&other[from..]);
            }
            8 => input.truncate(place),
            9 => {
                let word = self.word();
                insert(input, place, word);
            }
            10 | 11 => self.replace_token(input, place),
            12 => {
                let piece = input[self.range(input.len(), 8)].to_vec();
                let times = 1 << self.rng.u32(1..12);
                insert(input, place, &piece.repeat(times));
            }
            _ => {
                let other = self.range(input.len(), 64);
                let piece: Vec<u8> = input.drain(other).collect();
                insert(input, place, &piece);
            }
        }
    }

    fn word(&mut self) -> &'static [u8] {
        self.rng.choice(WORDS).unwrap_or_default().as_bytes()
    }

    fn place(&mut self, length: usize) -> usize {
        let length = if self.rng.bool() { length.min(HEAD_BYTES) } else { length };
        self.rng.usize(0..=length)
    }

    /// A part of at most so many bytes; more of it, seldom.
    fn range(&mut self, length: usize, bytes_max: usize) -> std::ops::Range<usize> {
        let start = self.place(length);
        let bytes_max = if self.rng.u32(0..8) == 0 { length } else { bytes_max };
        let end = start + self.rng.usize(0..=bytes_max.min(length - start));
        start..end
    }

    fn overwrite_number(&mut self, input: &mut [u8], place: usize) {
        let width = 1 << self.rng.u32(0..4);
        let length = input.len() as u64;
        let Some(bytes) = input.get_mut(place..).and_then(|rest| rest.get_mut(..width)) else { return };
        let mut old = [0; 8];
        old[..width].copy_from_slice(bytes);
        let old = u64::from_le_bytes(old);
        let new = match self.rng.u32(0..4) {
            0 => self.rng.choice(NUMBERS).unwrap_or_default(),
            1 => old.wrapping_add(self.rng.u64(0..4)).wrapping_sub(2),
            2 => old.wrapping_mul(self.rng.u64(2..9)),
            _ => length.wrapping_add(self.rng.u64(0..8)).wrapping_sub(4),
        };
        bytes.copy_from_slice(&new.to_le_bytes()[..width]);
    }

    /// Puts a word in the place of what stands between two marks of punctuation, as a value of JSON does.
    fn replace_token(&mut self, input: &mut Vec<u8>, place: usize) {
        let is_mark =
            |byte: &u8| matches!(byte, b',' | b':' | b'[' | b']' | b'{' | b'}' | b'\n' | b' ' | b'(' | b')' | b'|');
        let start = input[..place].iter().rposition(is_mark).map_or(0, |mark| mark + 1);
        let end = input[place..].iter().position(is_mark).map_or(input.len(), |mark| place + mark);
        if end - start <= 256 {
            let word = self.word();
            input.splice(start..end, word.iter().copied());
        }
    }
}

fn insert(input: &mut Vec<u8>, place: usize, bytes: &[u8]) {
    let place = place.min(input.len());
    input.splice(place..place, bytes.iter().copied());
}
