//! Tokens that would complete a trigger and continue in a way its grammar forbids.
//!
//! Before a trigger everything is allowed. A token may start before the trigger's end and extend past it, and then the
//! bytes past the end have to match the grammar. Such tokens are found by walking the token trie and the marker
//! automaton together. The result depends only on the automaton's state, so it is cached per state. Usually there are
//! none.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use llguidance::{
    Matcher,
    toktrie::{TokTrie, TrieNode},
};

use crate::patterns::{Patterns, ROOT, StateId};
use crate::token_trie::TokenTrie;

/// Masks of barred tokens per automaton state, computed on demand.
#[derive(Default)]
pub(crate) struct Barred {
    anywhere: OnceLock<Vec<u32>>,
    masks: Mutex<HashMap<StateId, Option<Arc<[u32]>>>>,
}

impl Barred {
    /// Returns the mask of all tokens except the barred ones, or `None` if no token is barred. `targets` maps patterns
    /// to rules, and `start` returns a matcher at the start of a rule's grammar.
    pub(crate) fn mask(
        &self,
        vocabulary: &TokenTrie,
        start: &dyn Fn(usize) -> Matcher,
        patterns: &Patterns,
        targets: &[Option<usize>],
        at: StateId,
    ) -> Option<Arc<[u32]>> {
        if targets.iter().all(Option::is_none) {
            return None;
        }
        if let Some(mask) = self.masks.lock().unwrap_or_else(PoisonError::into_inner).get(&at) {
            return mask.clone();
        }
        let mut search = Search { vocabulary, start, patterns, targets, matchers: HashMap::new(), found: Vec::new() };
        let anywhere = self.anywhere.get_or_init(|| search.within_tokens()).clone();
        search.found = anywhere;
        if let Ok(env) = vocabulary.env() {
            let trie = env.tok_trie();
            search.across_tokens(trie, trie.root(), at, 0);
        }
        let mask = (!search.found.is_empty()).then(|| {
            let mut bits = vec![u32::MAX; vocabulary.mask_words()];
            for token in search.found.iter().filter(|token| **token < vocabulary.size()) {
                bits[(token / u32::BITS) as usize] &= !(1 << (token % u32::BITS));
            }
            bits.into()
        });
        self.masks.lock().unwrap_or_else(PoisonError::into_inner).insert(at, mask.clone());
        mask
    }
}

struct Search<'a> {
    vocabulary: &'a TokenTrie,
    start: &'a dyn Fn(usize) -> Matcher,
    patterns: &'a Patterns,
    targets: &'a [Option<usize>],
    matchers: HashMap<usize, Matcher>,
    found: Vec<u32>,
}

impl Search<'_> {
    /// Finds the tokens that contain a whole marker.
    fn within_tokens(&mut self) -> Vec<u32> {
        let shortest = (0..self.targets.len()).map(|pattern| self.patterns.length(pattern)).min().unwrap_or_default();
        let vocabulary = self.vocabulary;
        let candidates = (0..vocabulary.size())
            .filter(|token| vocabulary.bytes(*token).len() > shortest && !vocabulary.is_special(*token));
        candidates
            .filter(|token| {
                let bytes = vocabulary.bytes(*token);
                let mut at = ROOT;
                for (index, byte) in bytes.iter().enumerate() {
                    at = self.patterns.step(at, *byte);
                    if let Some(pattern) = self.patterns.found(at) {
                        return !self.is_allowed(pattern, &bytes[index + 1..]);
                    }
                }
                false
            })
            .collect()
    }

    /// Finds the tokens that complete a marker begun before them, below the node reached by their first `length` bytes.
    fn across_tokens(&mut self, trie: &TokTrie, node: &TrieNode, at: StateId, length: usize) {
        for child in trie.node_children(node) {
            let next = self.patterns.step(at, child.byte());
            if let Some(pattern) = self.patterns.found(next) {
                self.beyond(trie, child, pattern, &mut Vec::new());
            } else if self.patterns.depth(next) > length + 1 {
                self.across_tokens(trie, child, next, length + 1);
            }
        }
    }

    /// Finds the tokens that continue past a marker, below the node reached by `tail`.
    fn beyond(&mut self, trie: &TokTrie, node: &TrieNode, pattern: usize, tail: &mut Vec<u8>) {
        for child in trie.node_children(node) {
            tail.push(child.byte());
            if let Some(token) = child.token_id()
                && !self.is_allowed(pattern, tail)
            {
                self.found.push(token);
            }
            self.beyond(trie, child, pattern, tail);
            tail.pop();
        }
    }

    fn is_allowed(&mut self, pattern: usize, tail: &[u8]) -> bool {
        let Some(rule) = self.targets[pattern] else { return true };
        let matcher = self.matchers.entry(rule).or_insert_with(|| (self.start)(rule));
        let bytes: Option<Vec<u32>> = tail.iter().map(|byte| self.vocabulary.byte_token(*byte)).collect();
        bytes.is_some_and(|bytes| matcher.validate_tokens(&bytes).is_ok_and(|valid| valid == bytes.len()))
    }
}
