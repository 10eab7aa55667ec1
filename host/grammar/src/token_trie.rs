//! The vocabulary as the tree that grammars are checked against: one walk over it asks about all tokens that begin alike
//! at once.
//!
//! Special tokens stand in it behind a byte that no UTF-8 text has, where no grammar of text can reach them. A vocabulary
//! may lack tokens for single bytes, which are needed to take a grammar through half a token; the tree then has such
//! tokens of its own, beyond the model's ids, where no logits are.

use std::{
    ops::Deref,
    panic,
    sync::{Arc, OnceLock},
};

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use pensieve_protocol::vocabulary::{Vocabulary, VocabularyError};

/// The first byte of special tokens in the tree.
const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// How many nodes the tree may have, and how deep it may be: it keeps both in one word.
const NODES_MAX: usize = (1 << 22) - 1;
const DEPTH_MAX: usize = 1000;

/// A vocabulary with its tree. The tree is made when first asked for: a model that never meets a grammar need not wait.
pub(crate) struct TokenTrie {
    vocabulary: Arc<Vocabulary>,
    env: OnceLock<Result<TokEnv, VocabularyError>>,
    /// For each byte a token of the tree with just this byte; ids beyond the vocabulary are the tree's own.
    byte_tokens: [u32; 256],
}

impl TokenTrie {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let byte_tokens = byte_tokens(&vocabulary);
        Self { vocabulary, env: OnceLock::new(), byte_tokens }
    }

    /// All tokens that are part of the text, as a tree.
    pub(crate) fn env(&self) -> Result<&TokEnv, VocabularyError> {
        self.env.get_or_init(|| build(self)).as_ref().map_err(Clone::clone)
    }

    /// How many words a mask over the vocabulary has, a bit for each token.
    pub(crate) fn mask_words(&self) -> usize {
        self.vocabulary.size().div_ceil(u32::BITS) as usize
    }

    /// A token of the tree that is this one byte; none for the byte that no UTF-8 has and that marks special tokens here.
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

/// A token for each byte: the first of the vocabulary's, or one beyond its end.
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
    // What is known to go wrong is checked above; a panic here is one that is not known yet.
    let ends = vocabulary.end_of_turn();
    panic::catch_unwind(|| {
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let trie = TokTrie::from(&info, &words);
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
        Arc::new(ApproximateTokEnv::new(trie)) as TokEnv
    })
    .map_err(|_| VocabularyError::new("has tokens that cannot be made into a tree for grammars"))
}

/// The bytes of a token in the tree; empty if no grammar may have it.
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
