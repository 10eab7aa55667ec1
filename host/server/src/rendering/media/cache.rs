//! Images and sounds that media processes have read, by the digest of the file, the model and the key.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use sha2::{Digest, Sha256};

use super::{Depth, ReadItem};

/// Limits of the cache: every turn of a conversation shows all of its pictures in the same order, so one that does not fit
/// would find none of them.
const CACHED_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
const CACHED_BYTES_MAX: usize = 1 << 30;

#[derive(Debug)]
pub(super) struct Cache {
    known: LruCache<[u8; 32], Arc<ReadItem>>,
    bytes: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self { known: LruCache::new(CACHED_MAX), bytes: 0 }
    }
}

impl Cache {
    pub fn get(&mut self, key: &[u8; 32], depth: Depth) -> Option<Arc<ReadItem>> {
        let item = self.known.get(key)?;
        (depth == Depth::Measured || item.prepared.is_some()).then(|| item.clone())
    }

    pub fn put(&mut self, key: [u8; 32], item: Arc<ReadItem>) {
        self.bytes += item.bytes();
        if let Some((_, replaced)) = self.known.push(key, item) {
            self.bytes -= replaced.bytes();
        }
        while self.bytes > CACHED_BYTES_MAX
            && let Some((_, dropped)) = self.known.pop_lru()
        {
            self.bytes -= dropped.bytes();
        }
    }
}

pub(super) fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}
