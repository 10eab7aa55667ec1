//! The tokens of a vocabulary and their types, read once and checked.
//!
//! Later code relies on three things: an id is the position of its token, no two ids share a text, and counts fit. A
//! token's type in the converter's file decides whether its text is matched before text is split (control and
//! user-defined tokens), results from merging (normal ones), or stands for a byte.

use std::collections::{HashMap, HashSet};

use super::super::{gguf::Metadata, quote};
use crate::{Error, Result};

/// Far more tokens than any model has.
const TOKENS_MAX: usize = 1 << 20;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

/// A token's type, as in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Tokens by id.
#[derive(Debug, Default)]
pub(super) struct Vocabulary {
    texts: Vec<String>,
    kinds: Vec<Kind>,
    /// Tokens that strip the white space after them (`rstrip`).
    strips_behind: HashSet<u32>,
}

impl Kind {
    pub(super) fn of(id: i64) -> Option<Self> {
        Some(match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

impl Vocabulary {
    /// Reads the vocabulary of a GGUF file.
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        let texts = metadata.strings(TOKENS)?.ok_or_else(|| metadata.missing(TOKENS))?;
        let kinds = match metadata.i32s(TYPES)? {
            None => vec![Kind::Normal; texts.len()],
            Some(ids) if ids.len() == texts.len() => {
                // As in every other reader, an unknown type is a normal token.
                ids.iter().map(|id| Kind::of(i64::from(*id)).unwrap_or(Kind::Normal)).collect()
            }
            Some(ids) => {
                return Err(Error::corrupt(format!(
                    "metadata '{TYPES}' has {} items for the {} tokens of '{TOKENS}'",
                    ids.len(),
                    texts.len()
                )));
            }
        };
        Self::new(texts.into_iter().map(str::to_owned).collect(), kinds)
            .map_err(|error| error.context(format!("metadata '{TOKENS}'")))
    }

    pub(super) fn new(texts: Vec<String>, kinds: Vec<Kind>) -> Result<Self> {
        if texts.is_empty() || texts.len() > TOKENS_MAX {
            return Err(Error::corrupt(format!("has {} tokens, not 1 to {TOKENS_MAX}", texts.len())));
        }
        let vocabulary = Self { texts, kinds, strips_behind: HashSet::new() };
        vocabulary.check_unique()?;
        Ok(vocabulary)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, Kind)> {
        self.texts.iter().zip(&self.kinds).zip(0..).map(|((text, kind), id)| (id, text.as_str(), *kind))
    }

    /// Returns ids by text for the tokens whose type is `wanted`.
    pub(super) fn ids(&self, wanted: impl Fn(Kind) -> bool) -> HashMap<&str, u32> {
        self.iter()
            .filter(|(_, text, kind)| !text.is_empty() && wanted(*kind))
            .map(|(id, text, _)| (text, id))
            .collect()
    }

    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.iter().find(|(_, known, _)| *known == text).map(|(id, _, _)| id)
    }

    /// Returns the tokens matched before text is split: id, text, and whether decoding may skip it.
    pub(super) fn matched(&self) -> impl Iterator<Item = (u32, &str, bool)> {
        self.iter().filter(|(_, text, _)| !text.is_empty()).filter_map(|(id, text, kind)| match kind {
            Kind::Control | Kind::Unknown => Some((id, text, true)),
            Kind::UserDefined => Some((id, text, false)),
            Kind::Normal | Kind::Unused | Kind::Byte => None,
        })
    }

    pub(super) fn strips_behind(&self, id: u32) -> bool {
        self.strips_behind.contains(&id)
    }

    pub(super) fn strip_behind(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.strips_behind.extend(ids);
    }

    /// Turns a token that was not marked as such into a control token.
    pub(super) fn mark_as_control(&mut self, id: u32) {
        if let Some(kind) = self.kinds.get_mut(id as usize) {
            *kind = Kind::Control;
        }
    }

    /// Replaces the text of every token.
    pub(super) fn respell(&mut self, spell: impl Fn(&str, Kind) -> String) -> Result<()> {
        for (text, kind) in self.texts.iter_mut().zip(&self.kinds) {
            *text = spell(text, *kind);
        }
        self.check_unique()
    }

    /// Writes user-defined tokens with literal spaces, as they are matched before spaces are replaced.
    pub(super) fn spell_out_spaces(&mut self, replacement: char) -> Result<()> {
        for (text, kind) in self.texts.iter_mut().zip(&self.kinds) {
            if *kind == Kind::UserDefined && text.contains(replacement) {
                *text = text.replace(replacement, " ");
            }
        }
        self.check_unique()
    }

    fn check_unique(&self) -> Result<()> {
        let mut seen: HashMap<&str, u32> = HashMap::with_capacity(self.texts.len());
        for (id, text, _) in self.iter().filter(|(_, text, _)| !text.is_empty()) {
            if let Some(first) = seen.insert(text, id) {
                return Err(Error::corrupt(format!("the token {} has two ids, {first} and {id}", quote(text))));
            }
        }
        Ok(())
    }
}
