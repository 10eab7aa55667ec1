//! A model's card as plain data: what an architecture says of a checkpoint, kept by a server that has not loaded it.

use serde::{Deserialize, Serialize};

/// What is known of a checkpoint that is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocabulary: u32,
    /// The longest sequence.
    pub context: u32,
    pub state: State,
    /// Bytes of scratch that one token of a batch needs.
    pub token_bytes: u64,
    /// Bytes of the weights once loaded.
    pub weight_bytes: u64,
    /// The text of a `tokenizer.json`.
    pub tokenizer: String,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
    /// The token that opens a text.
    pub bos: Option<u32>,
    /// Whether a text must be opened with it.
    pub add_bos: bool,
    /// The tokens that end a turn.
    pub eos: Vec<u32>,
    /// How tool calls and reasoning are written, a JSON object; empty for unknown.
    pub formats: String,
    /// Facts for people, a JSON object.
    pub facts: String,
    /// Equal for equal weights and tokenizer.
    pub fingerprint: String,
}

/// How a model remembers sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In blocks and slots that the worker deals out.
    Paged {
        /// Tokens in a block.
        tokens: u32,
        /// Bytes that a block takes in the groups of caches that keep all tokens.
        bytes: u64,
        /// Bytes that a sequence takes besides, however long it is: windows and states.
        beside: u64,
    },
    /// By itself, in one state for each sequence.
    PerSequence { bytes: u64 },
}
