//! Cache of tokenized stretches of text. A conversation comes back one turn longer, and the rest of it, including
//! system text and tools, is the same to the byte.
//!
//! Each client finds only its own entries: otherwise tokenization time would reveal what others have written.

use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

/// Capacity in bytes of text and tokens, for stretches that open a prompt and for all others separately.
const BYTES_MAX: usize = 8 << 20;
/// Shorter stretches tokenize as fast as a lookup.
const STRETCH_BYTES_MIN: usize = 64;

/// Token ids by text, separate for texts that open the prompt.
#[derive(Default)]
pub(super) struct Cache {
    known: Mutex<[Stretches; 2]>,
}

struct Stretches {
    /// By the client's salt plus the text.
    ids: LruCache<Box<[u8]>, Arc<[u32]>>,
    bytes: usize,
}

impl Default for Stretches {
    fn default() -> Self {
        Self { ids: LruCache::unbounded(), bytes: 0 }
    }
}

impl Cache {
    /// Returns the cached tokens of this stretch.
    pub fn get(&self, salt: &[u8], text: &str, opens_text: bool) -> Option<Arc<[u32]>> {
        if text.len() < STRETCH_BYTES_MIN {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known[usize::from(opens_text)].ids.get(&key(salt, text)).cloned()
    }

    /// Adds a stretch and evicts the least recently used ones beyond the capacity.
    pub fn put(&self, salt: &[u8], text: &str, opens_text: bool, ids: Vec<u32>) {
        let key = key(salt, text);
        let bytes = size_of(&key, &ids);
        if text.len() < STRETCH_BYTES_MIN || bytes > BYTES_MAX / 2 {
            return;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stretches = &mut known[usize::from(opens_text)];
        if let Some((text, ids)) = stretches.ids.push(key, ids.into()) {
            stretches.bytes -= size_of(&text, &ids);
        }
        stretches.bytes += bytes;
        while stretches.bytes > BYTES_MAX
            && let Some((text, ids)) = stretches.ids.pop_lru()
        {
            stretches.bytes -= size_of(&text, &ids);
        }
    }
}

/// All salts of a server have one length, so a salt never runs into the text.
fn key(salt: &[u8], text: &str) -> Box<[u8]> {
    [salt, text.as_bytes()].concat().into()
}

fn size_of(text: &[u8], ids: &[u32]) -> usize {
    text.len() + size_of_val(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_what_was_not_used_for_longest() {
        let cache = Cache::default();
        let text = |number: usize| format!("{number:0>1024}");
        let count = 2 * BYTES_MAX / size_of(text(0).as_bytes(), &[0; 256]);
        for number in 0..count {
            cache.put(&[], &text(number), false, vec![number as u32; 256]);
            assert!(cache.get(&[], &text(0), false).is_some(), "{number}");
            assert!(cache.known.lock().unwrap()[0].bytes <= BYTES_MAX);
        }
        assert_eq!(cache.get(&[], &text(count - 1), false).unwrap()[..], vec![count as u32 - 1; 256]);
        assert!(cache.get(&[], &text(1), false).is_none());
        assert!(cache.get(&[], &text(0), true).is_none(), "the beginning of a text is another one");
        assert!(cache.get(&[1; 32], &text(0), false).is_none(), "another client finds it");
    }
}
