//! Cache of compiled grammars: a client sends the same tools with every turn.
//!
//! An entry is a slot, inserted as soon as compilation starts, so a second request for the same grammar waits for the
//! first one's result. Errors are cached too, so that a grammar that takes long to reject is rejected once.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use llguidance::{Matcher, TokenParser};
use lru::LruCache;

use crate::{error::GrammarError, source::Source};

const ENTRIES_MAX: usize = 64;
const SOURCE_BYTES_MAX: usize = 8 << 20;
/// Lexer state that the shared parser may accumulate before it is reset.
const LEARNT_BYTES_MAX: usize = 24 << 20;

/// A compiled grammar. Sequences share the lexer states they discover, so that the next request need not rebuild them.
pub(crate) struct Template {
    pristine: Mutex<TokenParser>,
    warm: Mutex<Warm>,
    spoiled: AtomicBool,
}

struct Warm {
    parser: TokenParser,
    uses: usize,
}

#[derive(Default)]
pub(crate) struct Slot {
    result: Mutex<Option<Result<Arc<Template>, GrammarError>>>,
    changed: Condvar,
}

/// Slots by source, evicted least recently used first.
pub(crate) struct Cache {
    slots: LruCache<Source, Arc<Slot>>,
    bytes: usize,
}

impl Template {
    pub(crate) fn new(parser: TokenParser) -> Self {
        let warm = Warm { parser: parser.deep_clone(), uses: 0 };
        Self { pristine: Mutex::new(parser), warm: Mutex::new(warm), spoiled: AtomicBool::new(false) }
    }

    /// Returns a matcher at the start of the grammar, for one sequence.
    pub(crate) fn start(&self) -> Matcher {
        let mut warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner);
        warm.uses += 1;
        if self.spoiled.swap(false, Ordering::Relaxed) || (warm.uses.is_multiple_of(64) && warm.has_learnt_too_much()) {
            warm.parser = self.pristine.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        }
        Matcher::new(Ok(warm.parser.clone()))
    }

    /// Marks the shared lexer state as untrusted after a sequence has failed.
    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }
}

impl Warm {
    fn has_learnt_too_much(&self) -> bool {
        // A sequence that panicked leaves a poisoned lock behind, and locking it panics too.
        panic::catch_unwind(AssertUnwindSafe(|| self.parser.parser.lexer_stats().num_bytes))
            .map_or(true, |bytes| bytes > LEARNT_BYTES_MAX)
    }
}

impl Slot {
    pub(crate) fn fill(&self, result: Result<Template, GrammarError>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result.map(Arc::new));
        self.changed.notify_all();
    }

    /// Waits for the result; `None` once the deadline has passed.
    pub(crate) fn wait(&self, deadline: Instant) -> Option<Result<Arc<Template>, GrammarError>> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        while result.is_none() {
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            result = self.changed.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        result.clone()
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self { slots: LruCache::unbounded(), bytes: 0 }
    }
}

impl Cache {
    pub(crate) fn find(&mut self, source: &Source) -> Option<Arc<Slot>> {
        self.slots.get(source).cloned()
    }

    pub(crate) fn insert(&mut self, source: Source, slot: Arc<Slot>) {
        self.bytes += source.bytes();
        self.slots.put(source, slot);
        while (self.slots.len() > ENTRIES_MAX || self.bytes > SOURCE_BYTES_MAX)
            && let Some((oldest, _)) = self.slots.pop_lru()
        {
            self.bytes -= oldest.bytes();
        }
    }

    pub(crate) fn remove(&mut self, source: &Source) {
        if self.slots.pop(source).is_some() {
            self.bytes -= source.bytes();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}
