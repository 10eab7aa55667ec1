//! The layout of a block's file; all numbers are little-endian:
//!
//! | bytes              | what                                        |
//! |--------------------|---------------------------------------------|
//! | 8                  | `pnsvkv 3`                                  |
//! | 16, 16, 4, 4, 4, 8 | key, parent, group, depth, tokens, bytes    |
//! | 4 per token        | the tokens                                  |
//! | 32                 | the hash of their items, or zeros           |
//! | 16, 16             | checksums of the block, and of all above    |
//! | the rest           | the block or slot                           |

use std::{
    hash::Hasher,
    io::{self, Read},
};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::engine::blocks::{Key, Record};

const MAGIC: &[u8; 8] = b"pnsvkv 3";
const FIXED_BYTES: usize = 8 + 16 + 16 + 4 + 4 + 4 + 8;
const MEDIA_BYTES: usize = 32;
const SUM_BYTES: usize = 16;

/// Computes keyed checksums, which cannot be forged without the secret.
pub(super) struct Checksums(SipHasher13);

impl Checksums {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(secret))
    }

    pub(super) fn of(&self, bytes: &[u8]) -> u128 {
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}

pub(super) fn header_bytes(block_tokens: usize) -> usize {
    FIXED_BYTES + 4 * block_tokens + MEDIA_BYTES + 2 * SUM_BYTES
}

pub(super) fn name_of(key: Key, group: usize) -> String {
    format!("{:032x}-{group}", key.0)
}

/// Parses a file's name into key and group; `None` if the file is not ours.
pub(super) fn key_of(name: &str) -> Option<(Key, usize)> {
    let (key, group) = name.split_once('-')?;
    let (key, group) = (Key(u128::from_str_radix(key, 16).ok()?), group.parse().ok()?);
    (name_of(key, group) == name).then_some((key, group))
}

/// Appends everything before the block.
pub(super) fn header(checksums: &Checksums, record: &Record, block: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&record.key.0.to_le_bytes());
    out.extend_from_slice(&record.parent.0.to_le_bytes());
    out.extend_from_slice(&(record.group as u32).to_le_bytes());
    out.extend_from_slice(&record.depth.to_le_bytes());
    out.extend_from_slice(&(record.tokens.len() as u32).to_le_bytes());
    out.extend_from_slice(&(block.len() as u64).to_le_bytes());
    record.tokens.iter().for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
    out.extend_from_slice(&record.media.unwrap_or_default());
    out.extend_from_slice(&checksums.of(block).to_le_bytes());
    let sum = checksums.of(&out[begin..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// Reads everything before the block: the record and the block's checksum.
pub(super) fn read_header(
    checksums: &Checksums,
    reader: &mut impl Read,
    block_tokens: usize,
    group_bytes: &[usize],
) -> io::Result<(Record, u128)> {
    let mut bytes = vec![0; header_bytes(block_tokens)];
    reader.read_exact(&mut bytes)?;
    let (content, sum) = bytes.split_at(bytes.len() - SUM_BYTES);
    let mut rest = Fields(content);
    let found = checksums.of(content).to_le_bytes();
    if sum != found || rest.take::<8>()? != *MAGIC {
        return Err(damaged());
    }
    let key = Key(u128::from_le_bytes(rest.take()?));
    let parent = Key(u128::from_le_bytes(rest.take()?));
    let group = u32::from_le_bytes(rest.take()?) as usize;
    let depth = u32::from_le_bytes(rest.take()?);
    let tokens = u32::from_le_bytes(rest.take()?);
    let length = u64::from_le_bytes(rest.take()?);
    // In a model without a group for all tokens, a primary block is just its key and tokens.
    let bytes = group_bytes.get(group).copied().unwrap_or(0) as u64;
    if tokens as usize != block_tokens || length != bytes {
        return Err(damaged());
    }
    let tokens = (0..block_tokens).map(|_| Ok(u32::from_le_bytes(rest.take()?))).collect::<io::Result<_>>()?;
    let media = Some(rest.take::<MEDIA_BYTES>()?).filter(|media| *media != [0; MEDIA_BYTES]);
    Ok((Record { key, group, parent, depth, tokens, media }, u128::from_le_bytes(rest.take()?)))
}

pub(super) fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the block's file is damaged")
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk().ok_or_else(damaged)?;
        self.0 = rest;
        Ok(*field)
    }
}
