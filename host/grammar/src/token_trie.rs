//! The vocabulary as a trie, so that one walk checks all tokens with a common prefix against a grammar at once.
//!
//! Special tokens sit behind a byte that never occurs in UTF-8, where no text grammar can reach them. Feeding half a
//! token to a grammar takes single-byte tokens, which a vocabulary may lack; the trie then adds them with ids beyond
//! the model's, where there are no logits.

use std::{
    ops::Deref,
    panic,
    sync::{Arc, OnceLock},
};

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use pensieve_protocol::vocabulary::{Vocabulary, VocabularyError};

/// First byte of special tokens in the trie.
const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Limits on nodes and depth: the trie packs both into one word.
const NODES_MAX: usize = (1 << 22) - 1;
const DEPTH_MAX: usize = 1000;

/// A vocabulary and its trie. The trie is built on first use, so that a model that never sees a grammar need not wait.
pub(crate) struct TokenTrie {
    vocabulary: Arc<Vocabulary>,
    env: OnceLock<Result<TokEnv, VocabularyError>>,
    /// A single-byte token for each byte; ids beyond the vocabulary exist only in the trie.
    byte_tokens: [u32; 256],
}

impl TokenTrie {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let byte_tokens = byte_tokens(&vocabulary);
        Self { vocabulary, env: OnceLock::new(), byte_tokens }
    }

    /// Returns the trie of all tokens that are text.
    pub(crate) fn env(&self) -> Result<&TokEnv, VocabularyError> {
        self.env.get_or_init(|| build(self)).as_ref().map_err(Clone::clone)
    }

    /// Number of words in a mask over the vocabulary, one bit per token.
    pub(crate) fn mask_words(&self) -> usize {
        self.vocabulary.size().div_ceil(u32::BITS) as usize
    }

    /// Returns the trie's token for this single byte; `None` for the non-UTF-8 byte that marks special tokens.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        (byte != MARK).then(|| self.byte_tokens[usize::from(byte)])
    }
}

impl Deref for TokenTrie {
    type Target = Vocabulary;

    fn deref(&self) -> &Vocabulary {
        &self.vocabulary
    }
}

/// Picks a token for each byte: the first in the vocabulary, or a new one beyond its end.
fn byte_tokens(vocabulary: &Vocabulary) -> [u32; 256] {
    let mut found = [INVALID_TOKEN; 256];
    for id in 0..vocabulary.size() {
        if let ([byte], false) = (vocabulary.bytes(id), vocabulary.is_special(id))
            && found[usize::from(*byte)] == INVALID_TOKEN
        {
            found[usize::from(*byte)] = id;
        }
    }
    let mut next = vocabulary.size();
    for (byte, token) in (0u8..=255).zip(&mut found) {
        if *token == INVALID_TOKEN && byte != MARK {
            *token = next;
            next += 1;
        }
    }
    found
}

fn build(vocabulary: &TokenTrie) -> Result<TokEnv, VocabularyError> {
    let mut words: Vec<Vec<u8>> = (0..vocabulary.size()).map(|token| word(vocabulary, token)).collect();
    let mut own: Vec<(u32, u8)> = (0u8..=255).filter_map(|byte| Some((vocabulary.byte_token(byte)?, byte))).collect();
    own.retain(|(token, _)| *token >= vocabulary.size());
    own.sort_unstable();
    words.extend(own.iter().map(|(_, byte)| vec![*byte]));

    let nodes: usize = words.iter().map(Vec::len).sum();
    if nodes > NODES_MAX {
        return Err(VocabularyError::new(format!(
            "has {nodes} bytes of tokens, more than the {NODES_MAX} that grammars can use"
        )));
    }
    // Known failures are checked above; a panic here is an unknown one.
    let ends = vocabulary.end_of_turn();
    panic::catch_unwind(|| {
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let trie = TokTrie::from(&info, &words);
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
        Arc::new(ApproximateTokEnv::new(trie)) as TokEnv
    })
    .map_err(|_| VocabularyError::new("has tokens that cannot be made into a tree for grammars"))
}

/// Returns the bytes of a token in the trie; empty if no grammar may use it.
fn word(vocabulary: &Vocabulary, token: u32) -> Vec<u8> {
    let bytes = vocabulary.bytes(token);
    if bytes.is_empty() || bytes.len() > DEPTH_MAX {
        Vec::new()
    } else if vocabulary.is_special(token) {
        [&[MARK], bytes].concat()
    } else if bytes.contains(&MARK) {
        Vec::new()
    } else {
        bytes.to_vec()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn byte_level() -> Value {
        let vocab: serde_json::Map<_, _> = ('!'..='~').zip(33..).map(|(c, id)| (c.to_string(), json!(id))).collect();
        json!({
            "added_tokens": [
                { "id": 258, "content": "<|end|>", "special": true },
                { "id": 259, "content": "<tool_call>", "special": false },
            ],
            "decoder": { "type": "ByteLevel" },
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        })
    }

    fn read(document: &Value, size: u32, ends: &[u32]) -> TokenTrie {
        TokenTrie::new(Arc::new(Vocabulary::new(&document.to_string(), size, ends).unwrap()))
    }

    #[test]
    fn keeps_special_tokens_padding_and_invalid_bytes_out_of_the_tree_of_text() {
        let vocabulary = read(&byte_level(), 300, &[258]);
        let trie = vocabulary.env().unwrap().tok_trie();
        assert_eq!(trie.token_id(b"<tool_call>"), Some(259));
        assert_eq!(trie.token_id(b"<|end|>"), None);
        assert_eq!((trie.token(255), trie.token(299)), (b"".as_slice(), b"".as_slice()));
        assert_eq!((vocabulary.byte_token(b'a'), vocabulary.byte_token(0xff)), (Some(97), None));
    }

    #[test]
    fn lends_the_tree_the_single_bytes_that_the_vocabulary_lacks() {
        let document = json!({
            "decoder": { "type": "Metaspace" },
            "model": { "type": "Unigram", "vocab": [["ab", 0], ["a", 0], ["a", 0]] },
        });
        let vocabulary = read(&document, 3, &[]);
        assert_eq!(vocabulary.byte_token(b'a'), Some(1));
        let lent = vocabulary.byte_token(b'b').unwrap();
        assert!(lent >= 3);
        assert_eq!(vocabulary.env().unwrap().tok_trie().token(lent), b"b");
        assert_eq!(vocabulary.bytes(lent), b"");
    }
}
