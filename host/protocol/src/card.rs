//! Model cards as plain data: an architecture's description of a checkpoint, which the server uses without loading it.

use serde::{Deserialize, Serialize};

use crate::{media::MediaUse, rows::RowsUse};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub architecture: String,
    /// Number of tokens.
    pub vocabulary: u32,
    /// The longest sequence, in tokens.
    pub context: u32,
    pub state: State,
    /// Scratch bytes per token of a batch.
    pub token_bytes: u64,
    /// Bytes of the loaded weights.
    pub weight_bytes: u64,
    /// The content of a `tokenizer.json`.
    pub tokenizer: String,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
    /// The beginning-of-sequence token.
    pub bos: Option<u32>,
    /// Every text must start with `bos`.
    pub add_bos: bool,
    /// The tokens that end a turn.
    pub eos: Vec<u32>,
    /// The model's syntax for tool calls and reasoning, a JSON object; empty if unknown.
    pub formats: String,
    /// Informational properties for users, a JSON object.
    pub facts: String,
    /// The use of its hidden rows; `None` if it has none, or the reason why they cannot be used.
    pub rows: Result<Option<Box<RowsUse>>, String>,
    /// The items that it reads besides text; `None` if it reads text alone, or the reason why they cannot be used.
    pub media: Result<Option<Box<MediaUse>>, String>,
    /// Equal for equal weights and tokenizer.
    pub fingerprint: String,
}

impl Card {
    /// The use of its hidden rows, if they can be used.
    pub fn rows(&self) -> Option<&RowsUse> {
        self.rows.as_ref().ok()?.as_deref()
    }

    /// The items that it reads besides text, if they can be used.
    pub fn media(&self) -> Option<&MediaUse> {
        self.media.as_ref().ok()?.as_deref()
    }
}

/// How a model keeps the cache of its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In blocks and slots that the worker allocates.
    Paged {
        /// Tokens per block.
        tokens: u32,
        /// Bytes per block over all cache groups that keep every token.
        bytes: u64,
        /// Fixed bytes per sequence, for sliding windows and recurrent states.
        beside: u64,
    },
    /// The model manages one state per sequence itself.
    PerSequence { bytes: u64 },
}
