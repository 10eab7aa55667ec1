//! The vocabulary as the tree that grammars are checked against: one walk over it asks about all tokens that begin alike
//! at once.
//!
//! Special tokens stand in it behind a byte that no UTF-8 text has, where no grammar of text can reach them. A vocabulary
//! may lack tokens for single bytes, which are needed to take a grammar through half a token; the tree then has such
//! tokens of its own, beyond the model's ids, where no logits are.

use std::{panic, sync::Arc};

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use super::{Vocabulary, VocabularyError};

/// What special tokens begin with in the tree.
pub(super) const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// How many nodes the tree may have, and how deep it may be: it keeps both in one word.
const NODES_MAX: usize = (1 << 22) - 1;
const DEPTH_MAX: usize = 1000;

/// A token for each byte: the first of the vocabulary's, or one beyond its end.
pub(super) fn byte_tokens(tokens: &[Vec<u8>], special: &[bool]) -> [u32; 256] {
    let mut found = [INVALID_TOKEN; 256];
    for (id, (token, special)) in (0u32..).zip(tokens.iter().zip(special)) {
        if let ([byte], false) = (token.as_slice(), special)
            && found[usize::from(*byte)] == INVALID_TOKEN
        {
            found[usize::from(*byte)] = id;
        }
    }
    let mut next = tokens.len() as u32;
    for (byte, token) in (0u8..=255).zip(&mut found) {
        if *token == INVALID_TOKEN && byte != MARK {
            *token = next;
            next += 1;
        }
    }
    found
}

pub(super) fn build(vocabulary: &Vocabulary) -> Result<TokEnv, VocabularyError> {
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

/// What a token is in the tree: nothing, if no grammar may have it.
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
