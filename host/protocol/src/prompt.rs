//! What the server asks of a prompt process, and what it answers. Both are frames of `wire`, one answer for each question,
//! in order.
//!
//! A prompt process serves one model, as it is of one mind with the checkpoint that it interprets: the first question brings
//! the model's tokenizer and template, and whatever these do to the process, no other model is in it.

use serde::{Deserialize, Serialize};

use crate::{card::Card, conversation::Conversation, grammar::Spec, job::Failure, vocabulary::Vocabulary};

/// The status that a prompt process ends with after a panic.
pub const PANICKED: i32 = 101;

/// The stack of each thread of a prompt process that reads or runs a model: address space, most of which is never touched.
pub const STACK_BYTES: usize = 256 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Read this tokenizer. The first question of all.
    Tokenizer(Tokenizer),
    /// Read this chat template; none for a checkpoint without one.
    Template(Option<String>),
    /// Make tokens of a conversation, up to where the model goes on.
    Conversation {
        conversation: Box<Conversation>,
        /// Tools as words of the system text, for a template that does not know of tools.
        tools_in_words: Option<String>,
    },
    Text(String),
    /// Find out whether a grammar can be compiled within a process's memory.
    Grammar(Spec),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The tokenizer is read; these are its tokens.
    Vocabulary(Box<Vocabulary>),
    Template {
        /// Whether it tells the model of tools by itself.
        takes_tools: bool,
    },
    Tokens(Vec<u32>),
    Compiles,
    Failed(Failure),
}

/// All of a card that making tokens depends on, but for the template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tokenizer {
    /// The text of a `tokenizer.json`.
    pub json: String,
    pub vocabulary: u32,
    pub bos: Option<u32>,
    pub add_bos: bool,
    pub eos: Vec<u32>,
}

impl Tokenizer {
    pub fn of(card: &Card) -> Self {
        Self {
            json: card.tokenizer.clone(),
            vocabulary: card.vocabulary,
            bos: card.bos,
            add_bos: card.add_bos,
            eos: card.eos.clone(),
        }
    }
}
