//! A model's card as plain data: what an architecture says of a checkpoint, kept by a server that has not loaded it.

use pensieve_plugin_api::{self as api, StateKind};
use serde::{Deserialize, Serialize};

/// The longest tokenizer that is believed.
const TOKENIZER_BYTES_MAX: usize = 128 << 20;
const TEXT_BYTES_MAX: usize = 1 << 20;
const TOKENS_MAX: usize = 4096;

/// What is known of a checkpoint that is not loaded; see [`api::Card`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The architecture that loads it.
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocabulary: u32,
    /// The longest sequence.
    pub context: u32,
    /// How it remembers sequences, and what that takes.
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
    /// In blocks.
    Paged {
        /// Tokens in a block.
        tokens: u32,
        /// Bytes of a block.
        bytes: u64,
    },
    /// In one state per sequence.
    PerSequence {
        /// Bytes of a state.
        bytes: u64,
    },
}

impl Card {
    /// Copies what a plugin says, or tells which of its words breaks a rule.
    pub fn read(card: &api::Card) -> Result<Self, String> {
        let state = match card.state {
            StateKind::PAGED if card.block_tokens == 0 => return Err("its blocks hold no tokens".into()),
            StateKind::PAGED => State::Paged { tokens: card.block_tokens, bytes: card.block_bytes },
            StateKind::PER_SEQUENCE => State::PerSequence { bytes: card.sequence_bytes },
            StateKind(other) => {
                return Err(format!("it remembers sequences in a way that this host does not know ({other})"));
            }
        };
        if card.vocabulary == 0 || card.context == 0 {
            return Err("its vocabulary or its context is empty".into());
        }
        if card.eos.len() > TOKENS_MAX {
            return Err(format!("it lists {} tokens that end a turn", card.eos.len()));
        }
        let text = |what: &str, text: &str, bytes_max: usize| {
            if text.len() > bytes_max {
                Err(format!("its {what} has {} bytes", text.len()))
            } else {
                Ok(text.to_owned())
            }
        };
        let chat_template = card.chat_template.as_ref().map(|template| text("chat template", template, TEXT_BYTES_MAX));
        Ok(Self {
            architecture: text("architecture", &card.architecture, 64)?,
            vocabulary: card.vocabulary,
            context: card.context,
            state,
            token_bytes: card.token_bytes,
            weight_bytes: card.weight_bytes,
            tokenizer: text("tokenizer", &card.tokenizer, TOKENIZER_BYTES_MAX)?,
            chat_template: chat_template.into_option().transpose()?,
            bos: card.bos.into_option(),
            add_bos: card.add_bos,
            eos: card.eos.to_vec(),
            formats: text("list of formats", &card.formats, TEXT_BYTES_MAX)?,
            facts: text("list of facts", &card.facts, TEXT_BYTES_MAX)?,
            fingerprint: text("fingerprint", &card.fingerprint, 512)?,
        })
    }
}
