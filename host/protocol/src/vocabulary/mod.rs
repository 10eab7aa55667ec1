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

/// A part of a vocabulary, with the ids that its tokens have there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alphabet {
    size: u32,
    /// By rising id: the bytes of each token, and whether it is special.
    tokens: Vec<(u32, Vec<u8>, bool)>,
    end_of_turn: Vec<u32>,
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

    /// The texts of special tokens, single bytes and these tokens, which is all that a grammar needs in order to be compiled.
    pub fn alphabet(&self, kept: &[u32]) -> Alphabet {
        let keep = |token: &u32| {
            let bytes = self.bytes(*token);
            bytes.len() == 1 || (!bytes.is_empty() && kept.contains(token)) || self.is_special(*token)
        };
        let tokens = (0..self.size()).filter(keep);
        let tokens = tokens.map(|token| (token, self.bytes(token).to_vec(), self.is_special(token)));
        Alphabet { size: self.size(), tokens: tokens.collect(), end_of_turn: self.end_of_turn.clone() }
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

impl Alphabet {
    /// Bytes of tokens in it.
    pub fn bytes(&self) -> usize {
        self.tokens.iter().map(|(_, bytes, _)| bytes.len() + size_of::<u32>()).sum()
    }
}

/// A vocabulary in which all other ids stand for nothing.
impl TryFrom<Alphabet> for Vocabulary {
    type Error = VocabularyError;

    fn try_from(alphabet: Alphabet) -> Result<Self, VocabularyError> {
        let Alphabet { size, tokens, end_of_turn } = alphabet;
        let in_order = tokens.is_sorted_by(|(one, ..), (next, ..)| one < next);
        let last = tokens.last().map_or(0, |(token, ..)| *token);
        if !in_order || last >= size || size > TOKENS_MAX {
            return Err(VocabularyError::new("is not told as a table of tokens"));
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
