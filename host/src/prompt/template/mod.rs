//! A model's chat template.

use std::ops::Range;

use crate::{
    card::Card,
    chat::Conversation,
    job::{Failure, FailureCode},
};

use super::tokens::Specials;

/// A model's chat template, compiled, and what trial renderings told of it.
#[derive(Debug)]
pub(crate) struct Template {
    source: String,
}

/// A prompt as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// The text, as transformers would render it.
    pub text: String,
    /// Where a client's words look like special tokens and are not; in order, apart.
    pub plain: Vec<Range<usize>>,
}

impl Template {
    /// The template of this card, or [`PLAIN`] where the checkpoint has none.
    pub fn of(_card: &Card, _specials: &Specials) -> Result<Self, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }

    /// The template's source, for finding formats.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it tells the model of tools by itself.
    pub fn takes_tools(&self) -> bool {
        false
    }

    /// Renders up to where the model goes on. `tools_in_words` becomes a part of the system text.
    pub fn render(&self, _conversation: &Conversation, _tools_in_words: Option<&str>) -> Result<Rendered, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }
}
