//! Events of a streamed message, and their encoding.

use serde_json::{Value, json};

use super::error;
use crate::dialects::ApiError;
use pensieve_protocol::job::Usage;

/// An event of a message's stream. Blocks have an index in the message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// Start of the message, with only the input usage. `model` is the name from the client.
    MessageStart {
        id: String,
        model: String,
        input_tokens: u32,
    },
    /// Keep-alive while nothing is generated.
    Ping,
    BlockStart {
        index: usize,
        block: Block,
    },
    BlockDelta {
        index: usize,
        piece: Piece,
    },
    BlockStop {
        index: usize,
    },
    /// Stop reason and usage.
    MessageDelta {
        stop: Stop,
        usage: Usage,
    },
    MessageStop,
    Error(ApiError),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Block {
    Text,
    Thinking,
    ToolUse { id: String, name: String },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Thinking(String),
    Signature(String),
    /// A part of the JSON text of a tool call's arguments.
    Json(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stop {
    /// The API's `stop_reason`.
    pub(super) reason: &'static str,
    pub(super) sequence: Option<String>,
}

impl Event {
    pub(super) fn frame(&self, request_id: &str) -> Vec<u8> {
        let data = self.data(request_id);
        format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default()).into_bytes()
    }

    fn data(&self, request_id: &str) -> Value {
        match self {
            Self::MessageStart { id, model, input_tokens } => {
                let usage = Usage { prompt: *input_tokens, ..Usage::default() };
                let message = json!({
                    "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
                    "stop_reason": null, "stop_sequence": null, "usage": usage_json(&usage),
                });
                json!({ "type": "message_start", "message": message })
            }
            Self::Ping => json!({ "type": "ping" }),
            Self::BlockStart { index, block } => {
                json!({ "type": "content_block_start", "index": index, "content_block": block.json() })
            }
            Self::BlockDelta { index, piece } => {
                json!({ "type": "content_block_delta", "index": index, "delta": piece.json() })
            }
            Self::BlockStop { index } => json!({ "type": "content_block_stop", "index": index }),
            Self::MessageDelta { stop, usage } => {
                let delta = json!({ "stop_reason": stop.reason, "stop_sequence": stop.sequence });
                json!({ "type": "message_delta", "delta": delta, "usage": usage_json(usage) })
            }
            Self::MessageStop => json!({ "type": "message_stop" }),
            Self::Error(problem) => error::body(problem, request_id),
        }
    }
}

impl Block {
    fn json(&self) -> Value {
        match self {
            Self::Text => json!({ "type": "text", "text": "" }),
            Self::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Self::ToolUse { id, name } => json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
        }
    }
}

impl Piece {
    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "type": "text_delta", "text": text }),
            Self::Thinking(text) => json!({ "type": "thinking_delta", "thinking": text }),
            Self::Signature(text) => json!({ "type": "signature_delta", "signature": text }),
            Self::Json(text) => json!({ "type": "input_json_delta", "partial_json": text }),
        }
    }
}

/// The prompt's tokens are split into three disjoint counts: plain input, cache reads and cache creation.
pub(super) fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.reused),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused,
        "output_tokens": usage.generated,
    })
}
