//! The parts of a `tokenizer.json` that define the bytes of tokens. Everything else is skipped while parsing; merges alone make
//! up most of such a document.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::VocabularyError;

#[derive(Deserialize)]
pub(super) struct Document {
    #[serde(default)]
    pub added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    pub model: Model,
}

#[derive(Deserialize)]
pub(super) struct Added {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
}

#[derive(Deserialize)]
pub(super) struct Model {
    pub vocab: Vocab,
    #[serde(default)]
    byte_fallback: Option<bool>,
}

/// Tokens with their ids: an object from text to id, or, for Unigram models, a list of texts with scores.
pub(super) struct Vocab(pub Vec<(String, u32)>);

/// The decoder's effect on a single token.
pub(super) enum Decoding {
    /// Each character encodes a byte.
    ByteLevel,
    /// The text itself after some replacements; with `byte_fallback`, `<0x0A>` is a byte.
    Text { replace: Vec<(String, String)>, byte_fallback: bool },
    /// A token that begins with `prefix` continues a word; every other one begins one, after a space.
    WordPiece { prefix: String },
}

impl Document {
    /// A normalizer rewrites text before tokenization, which may shorten it.
    pub fn has_normalizer(&self) -> bool {
        !self.normalizer.is_null()
    }
}

impl Decoding {
    pub(super) fn of(document: &Document) -> Result<Self, VocabularyError> {
        let mut replace = Vec::new();
        let mut byte_fallback = false;
        // Without a decoder, its steps are derived from the pre-tokenizer.
        let step = if document.decoder.is_null() { &document.pre_tokenizer } else { &document.decoder };
        for step in steps(step) {
            match step["type"].as_str().unwrap_or_default() {
                "ByteLevel" => return Ok(Self::ByteLevel),
                "WordPiece" => {
                    let prefix = step["prefix"].as_str().unwrap_or("##").to_owned();
                    return Ok(Self::WordPiece { prefix });
                }
                "ByteFallback" => byte_fallback = true,
                "Metaspace" => {
                    let space = step["replacement"].as_str().unwrap_or("▁");
                    replace.push((space.to_owned(), " ".to_owned()));
                }
                "Replace" => match (step["pattern"]["String"].as_str(), step["content"].as_str()) {
                    (Some(pattern), Some(content)) if !pattern.is_empty() => {
                        replace.push((pattern.to_owned(), content.to_owned()));
                    }
                    _ => {
                        return Err(VocabularyError::new(
                            "has a decoder that replaces patterns other than fixed strings",
                        ));
                    }
                },
                // These apply to the whole text: they join tokens, or strip its ends.
                "Fuse" | "Strip" => {}
                _ if document.decoder.is_null() => {}
                other => {
                    return Err(VocabularyError::new(format!(
                        "has a decoder of type '{other}'; supported are ByteLevel, ByteFallback, Metaspace, Replace, Fuse, Strip and WordPiece"
                    )));
                }
            }
        }
        if document.decoder.is_null() {
            byte_fallback = document.model.byte_fallback.unwrap_or(false);
            if replace.is_empty() && !byte_fallback {
                return Err(VocabularyError::new("has no decoder, and none can be derived from its pre-tokenizer"));
            }
        }
        Ok(Self::Text { replace, byte_fallback })
    }

    pub(super) fn bytes(&self, text: &str) -> Vec<u8> {
        match self {
            // A token with a character outside of the alphabet stands for its own text.
            Self::ByteLevel => {
                text.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| text.as_bytes().to_vec())
            }
            Self::Text { replace, byte_fallback } => {
                if let Some(byte) = byte_fallback.then(|| byte_named(text)).flatten() {
                    return vec![byte];
                }
                replace.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)).into_bytes()
            }
            Self::WordPiece { prefix } => match text.strip_prefix(prefix.as_str()) {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {text}").into_bytes(),
            },
        }
    }
}

/// Flattens nested sequences of steps.
fn steps(step: &Value) -> Vec<&Value> {
    let inner = step.get("decoders").or_else(|| step.get("pretokenizers")).and_then(Value::as_array);
    match inner {
        Some(inner) => inner.iter().flat_map(steps).collect(),
        None if step.is_null() => Vec::new(),
        None => vec![step],
    }
}

/// GPT-2's byte alphabet: printable Latin-1 bytes are themselves, the others are the characters from U+0100 on, in order.
fn byte_of(char: char) -> Option<u8> {
    match u32::from(char) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Parses `<0x0A>`.
fn byte_named(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let two = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if two { u8::from_str_radix(digits, 16).ok() } else { None }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of ids by text, or a list of texts with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocab(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                let mut entries = Vec::new();
                while let Some((text, _)) = list.next_element::<(String, f64)>()? {
                    let id = u32::try_from(entries.len()).map_err(serde::de::Error::custom)?;
                    entries.push((text, id));
                }
                Ok(Vocab(entries))
            }
        }

        deserializer.deserialize_any(Entries)
    }
}
