//! Which bytes each token of a model stands for.
//!
//! Stop strings, grammars and their triggers are matters of bytes, and the worker that checks them sees token ids. The
//! bytes follow from the `tokenizer.json` of the model's card: what its decoder does to one token, without what it does
//! to a whole text (SentencePiece drops the first space of one, which is the detokenizer's business). A tokenizer whose
//! decoder is unknown is refused, as wrong bytes would let a stop string slip through.
//!
//! The document comes out of a checkpoint, so nothing in it is believed: ids beyond the model's vocabulary are passed
//! over, ids without a token stand for no bytes, and no grammar ever allows them.

mod document;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use document::{Decoding, Document};

pub const TOKENS_MAX: u32 = 1 << 22;
pub const DOCUMENT_BYTES_MAX: usize = 256 << 20;
/// No text up to this length is taken for too long by its bytes alone: some tokenizers make one token of a whole run
/// of characters that they do not know.
const TEXT_BYTES_MIN: usize = 256 << 10;
/// How much shorter a normalizer may make a text.
const NORMALIZED_FACTOR: usize = 4;

/// The bytes of every token, which tokens are special, and which end a turn.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Table")]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each token's bytes end in `bytes`; they begin where those of the token before end.
    ends: Vec<u32>,
    special: Vec<bool>,
    end_of_turn: Vec<u32>,
    /// The most bytes of a text that one token may stand for.
    token_bytes_max: usize,
}

/// A vocabulary as it comes from another process.
#[derive(Deserialize)]
struct Table {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    special: Vec<bool>,
    end_of_turn: Vec<u32>,
    token_bytes_max: usize,
}

/// A tokenizer whose tokens' bytes cannot be told.
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
                "has {bytes} bytes, more than the {DOCUMENT_BYTES_MAX} that are read"
            )));
        }
        if let Some(id) = end_of_turn.iter().find(|id| **id >= size) {
            return Err(VocabularyError::new(format!(
                "token {id} cannot end a turn: the vocabulary has {size} tokens"
            )));
        }
        let document: Document = serde_json::from_str(tokenizer)
            .map_err(|error| VocabularyError::new(format!("is no tokenizer.json: {error}")))?;
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
        // Whatever the document says, a token that ends the turn is never part of the text.
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

    /// The bytes of a token; of a special one its name. Empty for an id without a token.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let Some(end) = self.ends.get(token as usize) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.bytes[start as usize..*end as usize]
    }

    /// Whether a token steers the model, rather than being a part of the text.
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

    /// The same ids with the texts of special tokens, single bytes and these tokens only, which is all that a grammar needs
    /// in order to be compiled.
    #[must_use]
    pub fn thinned(&self, kept: &[u32]) -> Self {
        let keep = |token: u32| {
            let bytes = self.bytes(token);
            if bytes.len() == 1 || self.is_special(token) || kept.contains(&token) { bytes } else { &[] }
        };
        let mut thin = Self { bytes: Vec::new(), ends: Vec::with_capacity(self.ends.len()), ..self.clone() };
        for token in 0..self.size() {
            thin.bytes.extend_from_slice(keep(token));
            thin.ends.push(thin.bytes.len() as u32);
        }
        thin
    }

    /// The fewest tokens that a text of `text_bytes` bytes can have.
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
            Err(VocabularyError::new("is not told as a table of tokens"))
        }
    }
}

impl VocabularyError {
    /// What a sentence that begins with "tokenizer" goes on with.
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
