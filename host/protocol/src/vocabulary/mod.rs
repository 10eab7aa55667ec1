//! The bytes of each token.
//!
//! Stop strings, grammars and their triggers work on bytes, while the worker that checks them has token ids. The bytes come
//! from the `tokenizer.json` of the model's card, by applying its decoder to single tokens. Steps that apply to a whole text,
//! such as SentencePiece's removal of the first space, are left to the detokenizer. A tokenizer with an unknown decoder is
//! refused, as wrong bytes would make stop strings fail.
//!
//! The document comes from a checkpoint and is untrusted: ids beyond the model's vocabulary are ignored, and ids without a
//! token have no bytes and are never allowed by a grammar.

mod document;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use document::{Decoding, Document};

pub const TOKENS_MAX: u32 = 1 << 22;
pub const DOCUMENT_BYTES_MAX: usize = 256 << 20;
/// Texts up to this length are never refused by their byte count alone: some tokenizers turn a whole run of unknown characters
/// into one token.
const TEXT_BYTES_MIN: usize = 256 << 10;
/// The most by which a normalizer is assumed to shorten text.
const NORMALIZED_FACTOR: usize = 4;

/// The bytes of every token, the special tokens and the end-of-turn tokens.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Table")]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// End offset of each token in `bytes`; it starts at the end of the previous one.
    ends: Vec<u32>,
    special: Vec<bool>,
    end_of_turn: Vec<u32>,
    /// Limit on the bytes of text that one token can cover.
    token_bytes_max: usize,
}

/// A subset of a vocabulary, with the original ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alphabet {
    size: u32,
    /// Id, bytes and special flag, in ascending order of ids.
    tokens: Vec<(u32, Vec<u8>, bool)>,
    end_of_turn: Vec<u32>,
}

/// A vocabulary received from another process, not yet validated.
#[derive(Deserialize)]
struct Table {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    special: Vec<bool>,
    end_of_turn: Vec<u32>,
    token_bytes_max: usize,
}

/// The reason why a tokenizer's token bytes cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabularyError {
    message: String,
}

impl Vocabulary {
    /// Reads a `tokenizer.json` for a model with `size` tokens, of which `end_of_turn` end a turn.
    pub fn new(tokenizer: &str, size: u32, end_of_turn: &[u32]) -> Result<Self, VocabularyError> {
        if size == 0 || size > TOKENS_MAX {
            return Err(VocabularyError::new(format!("a vocabulary of {size} tokens is not within 1 to {TOKENS_MAX}")));
        }
        if tokenizer.len() > DOCUMENT_BYTES_MAX {
            let bytes = tokenizer.len();
            return Err(VocabularyError::new(format!(
                "has {bytes} bytes, more than the limit of {DOCUMENT_BYTES_MAX}"
            )));
        }
        if let Some(id) = end_of_turn.iter().find(|id| **id >= size) {
            return Err(VocabularyError::new(format!(
                "token {id} cannot end a turn: the vocabulary has {size} tokens"
            )));
        }
        let document: Document = serde_json::from_str(tokenizer)
            .map_err(|error| VocabularyError::new(format!("is not a valid tokenizer.json: {error}")))?;
        let decoding = Decoding::of(&document)?;

        let mut tokens = vec![Vec::new(); size as usize];
        let mut special = vec![false; size as usize];
        for (text, id) in &document.model.vocab.0 {
            if let Some(bytes) = tokens.get_mut(*id as usize) {
                *bytes = decoding.bytes(text);
            }
        }
        for added in &document.added_tokens {
            if let Some(bytes) = tokens.get_mut(added.id as usize) {
                *bytes = added.content.clone().into_bytes();
                special[added.id as usize] = added.special;
            }
        }
        // Whatever the document says, an end-of-turn token is never part of the text.
        for id in end_of_turn {
            special[*id as usize] = true;
        }
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let token_bytes_max = if document.has_normalizer() { longest * NORMALIZED_FACTOR } else { longest };
        Self::from_tokens(&tokens, special, end_of_turn.to_vec(), token_bytes_max)
    }

    pub fn size(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The bytes of a token; for a special token its name. Empty for an id without a token.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let Some(end) = self.ends.get(token as usize) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |previous| self.ends[previous as usize]);
        &self.bytes[start as usize..*end as usize]
    }

    /// True for control tokens, which are not part of the text.
    pub fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }

    pub fn ends_turn(&self, token: u32) -> bool {
        self.end_of_turn.contains(&token)
    }

    pub fn end_of_turn(&self) -> &[u32] {
        &self.end_of_turn
    }

    /// The text of these tokens, special ones by name.
    pub fn text_of(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.bytes(*token)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Spells a text of this program's with the longest tokens that fit, special ones by name. A tokenizer may choose
    /// others. Empty if there is no token for some byte of it.
    pub fn spell(&self, text: &str) -> Vec<u32> {
        let mut rest = text.as_bytes();
        let occurs = |token: &u32| {
            let bytes = self.bytes(*token);
            !bytes.is_empty() && bytes.len() <= rest.len() && rest.windows(bytes.len()).any(|window| window == bytes)
        };
        let words: Vec<u32> = (0..self.size()).filter(occurs).collect();
        let mut tokens = Vec::new();
        while !rest.is_empty() {
            let fitting = words.iter().filter(|token| rest.starts_with(self.bytes(**token)));
            let Some(token) = fitting.max_by_key(|token| (self.bytes(**token).len(), self.is_special(**token))) else {
                return Vec::new();
            };
            rest = &rest[self.bytes(*token).len()..];
            tokens.push(*token);
        }
        tokens
    }

    /// Special tokens, single-byte tokens and those in `extra`, which is all that compiling a grammar needs.
    pub fn alphabet(&self, extra: &[u32]) -> Alphabet {
        let keep = |token: &u32| {
            let bytes = self.bytes(*token);
            bytes.len() == 1 || (!bytes.is_empty() && extra.contains(token)) || self.is_special(*token)
        };
        let tokens = (0..self.size()).filter(keep);
        let tokens = tokens.map(|token| (token, self.bytes(token).to_vec(), self.is_special(token)));
        Alphabet { size: self.size(), tokens: tokens.collect(), end_of_turn: self.end_of_turn.clone() }
    }

    /// A lower bound for the number of tokens in a text of `text_bytes` bytes.
    pub fn tokens_min(&self, text_bytes: usize) -> usize {
        if text_bytes <= TEXT_BYTES_MIN { 0 } else { text_bytes.div_ceil(self.token_bytes_max) }
    }

    fn from_tokens(
        tokens: &[Vec<u8>],
        special: Vec<bool>,
        end_of_turn: Vec<u32>,
        token_bytes_max: usize,
    ) -> Result<Self, VocabularyError> {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for token in tokens {
            bytes.extend_from_slice(token);
            let end = u32::try_from(bytes.len()).map_err(|_| VocabularyError::new("has more than 4 GiB of tokens"))?;
            ends.push(end);
        }
        Ok(Self { bytes, ends, special, end_of_turn, token_bytes_max })
    }
}

impl Alphabet {
    /// Memory of its tokens, for limits.
    pub fn bytes(&self) -> usize {
        self.tokens.iter().map(|(_, bytes, _)| bytes.len() + size_of::<u32>()).sum()
    }
}

/// A vocabulary in which all other ids have no bytes.
impl TryFrom<Alphabet> for Vocabulary {
    type Error = VocabularyError;

    fn try_from(alphabet: Alphabet) -> Result<Self, VocabularyError> {
        let Alphabet { size, tokens, end_of_turn } = alphabet;
        let in_order = tokens.is_sorted_by(|(one, ..), (next, ..)| one < next);
        let last = tokens.last().map_or(0, |(token, ..)| *token);
        if !in_order || last >= size || size > TOKENS_MAX {
            return Err(VocabularyError::new("has an inconsistent token table"));
        }
        let token_bytes_max = tokens.iter().map(|(_, bytes, _)| bytes.len()).max().unwrap_or(0).max(1);
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size as usize));
        let mut special = vec![false; size as usize];
        for (token, word, is_special) in tokens {
            ends.resize(token as usize, bytes.len() as u32);
            bytes.extend(word);
            ends.push(bytes.len() as u32);
            special[token as usize] = is_special;
        }
        ends.resize(size as usize, bytes.len() as u32);
        let end_of_turn = end_of_turn.into_iter().filter(|token| *token < size).collect();
        Ok(Self { bytes, ends, special, end_of_turn, token_bytes_max })
    }
}

impl TryFrom<Table> for Vocabulary {
    type Error = VocabularyError;

    fn try_from(table: Table) -> Result<Self, VocabularyError> {
        let Table { bytes, ends, special, end_of_turn, token_bytes_max } = table;
        let in_order = ends.is_sorted() && ends.last().is_some_and(|end| *end as usize == bytes.len());
        let size = ends.len();
        let known = end_of_turn.iter().all(|token| (*token as usize) < size);
        if in_order && known && special.len() == size && size <= TOKENS_MAX as usize && token_bytes_max > 0 {
            Ok(Self { bytes, ends, special, end_of_turn, token_bytes_max })
        } else {
            Err(VocabularyError::new("has an inconsistent token table"))
        }
    }
}

impl VocabularyError {
    /// `message` completes a sentence that begins with "tokenizer".
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.size())
            .field("end_of_turn", &self.end_of_turn)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for VocabularyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tokenizer {}", self.message)
    }
}

impl std::error::Error for VocabularyError {}
