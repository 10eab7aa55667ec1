//! What the server asks of a prompt process, and what it answers. Both are frames of `wire`, one answer for each question,
//! in order.
//!
//! There are two kinds, and the first question decides which one a process is. One serves a model, as it is of one mind
//! with the checkpoint that it interprets: the first question brings the model's tokenizer, and whatever that does to the
//! process, no other model is in it. The other one, a grammar process, interprets what a client has sent as a program:
//! grammars and the formats of custom tools. It knows no model and serves one request.

use serde::{Deserialize, Serialize};

use crate::{
    card::Card,
    conversation::Conversation,
    grammar::Spec,
    job::Failure,
    vocabulary::{Alphabet, Vocabulary},
};

/// The status that a prompt process ends with after a panic.
pub const PANICKED: i32 = 101;

/// The stack of each thread of a prompt process that reads or runs a model: address space, most of which is never touched.
pub const STACK_BYTES: usize = 256 << 20;

/// The stack of the thread of a grammar process that compiles.
pub const GRAMMAR_STACK_BYTES: usize = 256 << 20;

/// The longest expression that a format becomes.
pub const EXPRESSION_BYTES_MAX: usize = 16 << 10;

/// A question or an answer in its frame. An answer has the number of its question: a frame too many, or one that a broken
/// process has left behind, is never taken for the answer to somebody else's question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Numbered<T> {
    pub number: u64,
    pub message: T,
}

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
        /// Whoever has another one is not to notice what was asked with this one.
        salt: Vec<u8>,
    },
    Text {
        text: String,
        salt: Vec<u8>,
    },
    /// Find out whether a grammar can be compiled within a process's memory.
    Grammar {
        spec: Box<Spec>,
        alphabet: Alphabet,
    },
    /// Turn the format of a custom tool into one regular expression.
    Expression {
        syntax: Syntax,
        definition: String,
    },
}

/// The language of a custom tool's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Syntax {
    Lark,
    Regex,
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
    /// An expression without anchors, of at most [`EXPRESSION_BYTES_MAX`]; why there is none, for a warning.
    Expression(Result<String, String>),
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
