//! A model's template and tokenizer together.
//!
//! Both come out of a checkpoint, so they run on a thread of their own, under a deadline, and a panic in them is a
//! [`Failure`] of the request. They are read once per card.

use std::sync::Arc;

use crate::{
    card::Card,
    chat::Conversation,
    job::{Failure, FailureCode},
};

use super::{template::Template, tokens::Tokens};

/// Every script that was asked for lately.
#[derive(Debug, Default)]
pub(crate) struct Scripts {}

/// A model's template and tokenizer.
#[derive(Debug)]
pub(crate) struct Script {
    /// Renders conversations.
    pub template: Template,
    /// Makes tokens of what is rendered.
    pub tokens: Arc<Tokens>,
}

impl Scripts {
    /// The script of a card, read if it was not yet.
    pub async fn of(&self, _card: &Arc<Card>) -> Result<Arc<Script>, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }
}

impl Script {
    /// The tokens of a conversation up to where the model goes on.
    pub async fn write(
        self: &Arc<Self>,
        _conversation: &Arc<Conversation>,
        _tools_in_words: Option<String>,
    ) -> Result<Vec<u32>, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }

    /// The tokens of a plain text.
    pub async fn write_text(self: &Arc<Self>, _text: String) -> Result<Vec<u32>, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }
}
