//! A model's tokenizer.

use std::sync::Arc;

use crate::{
    card::Card,
    job::{Failure, FailureCode},
};

use super::template::Rendered;

/// A model's tokenizer.
#[derive(Debug)]
pub(crate) struct Tokens {
    specials: Specials,
}

/// The texts of a tokenizer's special tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Specials {
    /// What opens a text; empty for nothing.
    pub bos: String,
    /// What ends a turn; empty for nothing.
    pub eos: String,
    /// Every added token: its text, and whether it is a special one.
    pub added: Vec<(String, bool)>,
}

impl Tokens {
    /// Reads the tokenizer of this card.
    pub fn of(_card: &Card) -> Result<Arc<Self>, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }

    /// What templates need to know.
    pub fn specials(&self) -> &Specials {
        &self.specials
    }

    /// The tokens of a rendered conversation.
    pub fn encode(&self, _rendered: &Rendered) -> Result<Vec<u32>, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }

    /// The tokens of a plain text, after the one that opens texts where the model wants that.
    pub fn encode_text(&self, _text: &str) -> Result<Vec<u32>, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }

    /// The text of these tokens, special ones by name.
    pub fn text_of(&self, _ids: &[u32]) -> String {
        String::new()
    }
}
