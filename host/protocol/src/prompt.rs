//! Questions to a prompt process and its answers. Both are frames of `wire`, with one answer per question, in order.
//!
//! There are two kinds, and the first question decides which one a process is. A model's prompt process is controlled
//! by the checkpoint that it interprets, so it serves one model only: the first question carries the tokenizer, and if
//! that compromises the process, no other model is affected. A grammar process interprets programs that a client sent:
//! grammars and the formats of custom tools. It has no model and serves one request.

use serde::{Deserialize, Serialize};

use crate::{
    card::Card,
    conversation::Conversation,
    grammar::Spec,
    job::Failure,
    media::KindUse,
    vocabulary::{Alphabet, Vocabulary},
};

/// Exit code of a prompt process after a panic.
pub const PANICKED: i32 = 101;

/// Stack size of threads that parse tokenizers or render templates. It is address space, most of which is never touched.
pub const STACK_BYTES: usize = 256 << 20;

/// Stack size of the compiling thread of a grammar process.
pub const GRAMMAR_STACK_BYTES: usize = 256 << 20;

/// The longest regular expression that a format is converted to.
pub const EXPRESSION_BYTES_MAX: usize = 16 << 10;

/// A question or answer with the number that pairs them, so that a stray frame of a broken process is never taken for
/// the answer to another question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Numbered<T> {
    pub number: u64,
    pub message: T,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Read this tokenizer. Always the first question.
    Tokenizer(Tokenizer),
    /// Parse this chat template.
    Template {
        /// `None` for a checkpoint without one.
        source: Option<String>,
        /// How it writes images, for a model that reads some.
        images: Option<ImageWords>,
    },
    /// Render and tokenize a conversation, up to where the model continues.
    Conversation {
        conversation: Box<Conversation>,
        /// Description of the tools for the system prompt, for a template without tool support.
        tools_in_words: Option<String>,
        /// The texts of the items that the turns show, by their indices.
        items: Vec<String>,
        /// Separates caches by API key, so that response times reveal nothing about other keys' prompts.
        salt: Vec<u8>,
    },
    Text {
        text: String,
        salt: Vec<u8>,
    },
    /// Check that a grammar compiles within a process's memory.
    Grammar {
        spec: Box<Spec>,
        alphabet: Alphabet,
    },
    /// Convert the format of a custom tool to one regular expression.
    Expression {
        syntax: Syntax,
        definition: String,
    },
    /// Tokenize texts by themselves, without the tokens around them.
    Texts {
        texts: Vec<Piece>,
        salt: Vec<u8>,
    },
}

/// The part of a description of images that writing a prompt depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageWords {
    /// The text that the template writes for an image; never empty.
    pub placeholder: String,
    /// The text for an image where the template knows none.
    pub text: String,
    /// The token that stands for a row.
    pub slot: u32,
}

/// A prompt's tokens, and where the items in it are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokens {
    pub tokens: Vec<u32>,
    /// In order of their tokens, which are disjoint.
    pub items: Vec<ItemSpan>,
}

/// The tokens of an item in a prompt, from the first special one to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemSpan {
    /// The item's index.
    pub item: u32,
    /// The index of its first token.
    pub start: u32,
    pub len: u32,
    /// The number of slots among them.
    pub slots: u32,
}

/// A text to tokenize by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub text: String,
    /// Ranges that a client wrote, in bytes: special tokens in them are plain text.
    pub plain: Vec<(usize, usize)>,
}

/// The language of a custom tool's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Syntax {
    Lark,
    Regex,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The tokenizer was read; these are its tokens.
    Vocabulary(Box<Vocabulary>),
    Template {
        /// The template renders tool definitions itself.
        takes_tools: bool,
    },
    Tokens(Vec<u32>),
    /// Of a conversation.
    Prompt(PromptTokens),
    Compiles,
    /// A regular expression without anchors, of at most [`EXPRESSION_BYTES_MAX`]; or the reason why there is none, for a warning.
    Expression(Result<String, String>),
    Failed(Failure),
    /// The tokens of each text, in order.
    TokensOfEach(Vec<Vec<u32>>),
}

/// The part of a card that tokenizing depends on, except for the template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tokenizer {
    /// The content of a `tokenizer.json`.
    pub json: String,
    pub vocabulary: u32,
    pub bos: Option<u32>,
    pub add_bos: bool,
    pub eos: Vec<u32>,
}

impl ImageWords {
    pub fn of(image: &KindUse) -> Self {
        Self { placeholder: image.placeholder.clone(), text: image.text.clone(), slot: image.slot }
    }
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
