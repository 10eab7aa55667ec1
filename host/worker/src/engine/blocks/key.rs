//! Keys of full blocks. A block's key hashes its tokens, the items behind them and its parent's key, so it identifies the
//! whole text up to the block's end. The chain starts at a root that hashes the salt (model, adapter, scale, API key), so nothing is ever
//! shared across salts. The hash is keyed with a secret of the installation: clients cannot search for collisions, and
//! keys on disk reveal nothing without it. 128-bit SipHash-1-3 is enough, as tokens and items are compared on every hit.

use super::text::SequenceText;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// Identifies a full block and all the text before it, or the root of a chain, which is not a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u128);

/// A full block as seen by its sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub(super) key: Key,
    pub(super) parent: Key,
    /// Number of blocks before it in the text.
    pub(super) depth: u32,
    pub(super) tokens: &'a [u32],
    /// A hash of the items that some of the tokens belong to.
    pub(super) media: Option<[u8; 32]>,
}

#[derive(Debug)]
pub(super) struct Chain {
    hasher: SipHasher13,
    block_tokens: usize,
    /// Tests narrow the keys until collisions are common.
    pub(super) mask: u128,
}

impl Chain {
    pub(super) fn new(secret: &[u8; 16], block_tokens: usize) -> Self {
        Self { hasher: SipHasher13::new_with_key(secret), block_tokens, mask: u128::MAX }
    }

    pub(super) fn root(&self, salt: &[u8]) -> Key {
        let mut hasher = self.hasher;
        hasher.write_u8(0);
        hasher.write(salt);
        Key(hasher.finish128().as_u128())
    }

    /// Returns block `depth` of a text whose earlier blocks end in `parent`, if the text fills it.
    pub(super) fn link<'a>(&self, parent: Key, depth: usize, text: SequenceText<'a>) -> Option<Link<'a>> {
        let start = depth * self.block_tokens;
        let range = start..start + self.block_tokens;
        let tokens = text.tokens.get(range.clone())?;
        let media = text.media_of(range);
        let key = self.key(parent, tokens, media.as_ref());
        Some(Link { key, parent, depth: depth as u32, tokens, media })
    }

    pub(super) fn key(&self, parent: Key, tokens: &[u32], media: Option<&[u8; 32]>) -> Key {
        let mut hasher = self.hasher;
        hasher.write_u8(1);
        hasher.write(&parent.0.to_le_bytes());
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        if let Some(media) = media {
            hasher.write(media);
        }
        Key(hasher.finish128().as_u128() & self.mask)
    }
}
