//! Events of a streamed message, and their encoding.

use serde_json::{Value, json};

use super::{context_management, error};
use crate::{
    chat::{AppliedEdit, CacheReport, Divergence, DivergenceKind, Unknown, add_fields},
    dialects::{ApiError, usage::add_report},
};
use pensieve_protocol::job::Usage;

/// An event of a message's stream. Blocks have an index in the message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// Start of the message, with only the input usage. `model` is the name from the client.
    MessageStart {
        id: String,
        model: String,
        input_tokens: u32,
        diagnostics: Diagnostics,
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
        report: Report,
    },
    MessageStop,
    Error(ApiError),
}

/// The answer to a request that asks how it differs from an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Diagnostics {
    #[default]
    NotAsked,
    /// `None` if the prompt only goes on, or if there is no earlier one.
    Asked(Option<Divergence>),
}

impl Diagnostics {
    pub(super) fn write(self, message: &mut Value) {
        let Self::Asked(divergence) = self else { return };
        message["diagnostics"] = divergence.map_or(Value::Null, |Divergence { kind, missed_tokens }| {
            let kind = match kind {
                DivergenceKind::Model => "model_changed",
                DivergenceKind::System => "system_changed",
                DivergenceKind::Tools => "tools_changed",
                DivergenceKind::Messages => "messages_changed",
                DivergenceKind::Other => return json!({ "cache_miss_reason": { "type": "unavailable" } }),
                DivergenceKind::Unknown => {
                    return json!({ "cache_miss_reason": { "type": "previous_message_not_found" } });
                }
            };
            json!({ "cache_miss_reason": { "type": kind, "cache_missed_input_tokens": missed_tokens } })
        });
    }
}

/// The numbers at the end of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) usage: Usage,
    pub(super) cache: Option<CacheReport>,
    /// Of the summary that was made first.
    pub(super) compaction: Option<Usage>,
    /// Edits of the conversation; `None` if the request asks for none.
    pub(super) edits: Option<Vec<AppliedEdit>>,
    /// Of an upstream that speaks this API.
    pub(super) unknown: Box<Unknown>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Block {
    /// A summary of the conversation before it.
    Compaction,
    Text,
    Thinking,
    ToolUse {
        id: String,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Thinking(String),
    Signature(String),
    /// The whole summary; `None` if there is none.
    Compaction(Option<String>),
    /// A part of the JSON text of a tool call's arguments.
    Json(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stop {
    /// The API's `stop_reason`.
    pub(super) reason: &'static str,
    pub(super) sequence: Option<String>,
}

/// The reason of an answer that ends in a loop, which the API has no word for.
pub(super) const REPETITION: &str = "repetition";

impl Stop {
    /// Adds the reason to a message or its delta. A loop counts as the token limit, with the details beside it.
    pub(super) fn write(&self, message: &mut Value) {
        let is_loop = self.reason == REPETITION;
        message["stop_reason"] = if is_loop { "max_tokens" } else { self.reason }.into();
        message["stop_sequence"] = self.sequence.clone().into();
        if is_loop {
            let why = "the answer repeated itself, and was ended";
            message["stop_details"] = json!({ "type": REPETITION, "explanation": why });
        }
    }
}

impl Event {
    pub(super) fn frame(&self, request_id: &str) -> Vec<u8> {
        let data = self.data(request_id);
        format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default()).into_bytes()
    }

    fn data(&self, request_id: &str) -> Value {
        match self {
            Self::MessageStart { id, model, input_tokens, diagnostics } => {
                let usage = Usage { prompt: *input_tokens, ..Usage::default() };
                let mut message = json!({
                    "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
                    "stop_reason": null, "stop_sequence": null, "usage": usage_json(&usage, None),
                });
                diagnostics.write(&mut message);
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
            Self::MessageDelta { stop, report } => {
                let mut delta = json!({});
                stop.write(&mut delta);
                add_fields(report.unknown.message.clone(), &mut delta);
                let mut event = json!({ "type": "message_delta", "delta": delta });
                report.write(&mut event);
                add_fields(report.unknown.answer.clone(), &mut event);
                event
            }
            Self::MessageStop => json!({ "type": "message_stop" }),
            Self::Error(problem) => error::body(problem, request_id),
        }
    }
}

impl Report {
    /// Adds usage and edits to a message or its delta. Making a summary counts by itself.
    pub(super) fn write(&self, message: &mut Value) {
        let mut usage = usage_json(&self.usage, self.cache.as_ref());
        if let Some(compaction) = &self.compaction {
            let iteration = |kind: &str, of: &Usage| {
                let mut iteration = usage_json(of, None);
                iteration["type"] = kind.into();
                iteration
            };
            let mut iterations = vec![iteration("compaction", compaction)];
            if self.usage != Usage::default() {
                iterations.push(iteration("message", &self.usage));
            }
            usage["iterations"] = iterations.into();
        }
        add_fields(self.unknown.usage.clone(), &mut usage);
        message["usage"] = usage;
        if let Some(edits) = &self.edits {
            message["context_management"] = context_management::json(edits);
        }
    }
}

impl Block {
    fn json(&self) -> Value {
        match self {
            Self::Compaction => json!({ "type": "compaction", "content": null, "encrypted_content": null }),
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
            Self::Compaction(text) => {
                json!({ "type": "compaction_delta", "content": text, "encrypted_content": null })
            }
            Self::Signature(text) => json!({ "type": "signature_delta", "signature": text }),
            Self::Json(text) => json!({ "type": "input_json_delta", "partial_json": text }),
        }
    }
}

/// The prompt's tokens are split into three disjoint counts: plain input, cache reads and cache creation.
pub(super) fn usage_json(usage: &Usage, cache: Option<&CacheReport>) -> Value {
    let mut value = json!({
        "input_tokens": usage.prompt.saturating_sub(usage.reused),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused,
        "output_tokens": usage.generated,
    });
    add_report(&mut value, cache);
    value
}
