//! Remembers the tokens of stretches of text. A conversation comes back longer by a turn, and all the others, system
//! text and tools among them, are the same to the byte.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// What is remembered, in bytes of text and tokens.
const BYTES_MAX: usize = 16 << 20;
/// Shorter stretches are tokenized as quickly as they are found.
const STRETCH_BYTES_MIN: usize = 64;

/// Tokens by text, and whether the text opens the prompt.
#[derive(Default)]
pub(super) struct Cache {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    stretches: [HashMap<Box<str>, Stretch>; 2],
    bytes: usize,
    clock: u64,
}

struct Stretch {
    ids: Arc<[u32]>,
    used: u64,
}

impl Cache {
    /// The tokens of this stretch, if it was seen lately.
    pub fn get(&self, text: &str, opens_text: bool) -> Option<Arc<[u32]>> {
        if text.len() < STRETCH_BYTES_MIN {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.clock += 1;
        let now = known.clock;
        let stretch = known.stretches[usize::from(opens_text)].get_mut(text)?;
        stretch.used = now;
        Some(stretch.ids.clone())
    }

    /// Remembers one, and forgets the half that was not used for longest when there are too many.
    pub fn put(&self, text: &str, opens_text: bool, ids: Vec<u32>) {
        let bytes = size_of(text, &ids);
        if text.len() < STRETCH_BYTES_MIN || bytes > BYTES_MAX / 2 {
            return;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.bytes + bytes > BYTES_MAX {
            known.forget_half();
        }
        known.clock += 1;
        let stretch = Stretch { ids: ids.into(), used: known.clock };
        if known.stretches[usize::from(opens_text)].insert(text.into(), stretch).is_none() {
            known.bytes += bytes;
        }
    }
}

impl Known {
    fn forget_half(&mut self) {
        let all = || self.stretches.iter().flatten();
        let mut ages: Vec<_> = all().map(|(text, stretch)| (stretch.used, size_of(text, &stretch.ids))).collect();
        ages.sort_unstable_by(|one, other| other.cmp(one));
        let mut kept = 0;
        let fits = |(_, bytes): &&(u64, usize)| {
            kept += bytes;
            kept <= BYTES_MAX / 2
        };
        let oldest = ages.iter().take_while(fits).last().map_or(u64::MAX, |(used, _)| *used);
        self.stretches.iter_mut().for_each(|stretches| stretches.retain(|_, stretch| stretch.used >= oldest));
        self.bytes = self.stretches.iter().flatten().map(|(text, stretch)| size_of(text, &stretch.ids)).sum();
    }
}

fn size_of(text: &str, ids: &[u32]) -> usize {
    text.len() + size_of_val(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_what_was_not_used_for_longest() {
        let cache = Cache::default();
        let text = |number: usize| format!("{number:0>1024}");
        let count = 2 * BYTES_MAX / size_of(&text(0), &[0; 256]);
        for number in 0..count {
            cache.put(&text(number), false, vec![number as u32; 256]);
            assert!(cache.get(&text(0), false).is_some(), "{number}");
            assert!(cache.known.lock().unwrap().bytes <= BYTES_MAX);
        }
        assert_eq!(cache.get(&text(count - 1), false).unwrap()[..], vec![count as u32 - 1; 256]);
        assert!(cache.get(&text(1), false).is_none());
        assert!(cache.get(&text(0), true).is_none(), "the beginning of a text is another one");
    }
}
