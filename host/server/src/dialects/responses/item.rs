//! Items of a response: messages, reasoning and calls.

use serde_json::{Value, json};

use super::{input::encrypted, numbering::Cut, tools::Origin};
use crate::dialects::{custom_tools, fresh_id};

/// An item that is not complete.
pub(super) struct Open {
    pub(super) id: String,
    pub(super) text: String,
    /// Of a message's tokens, in OpenAI's form; empty unless they were asked for.
    pub(super) logprobs: Vec<Value>,
    pub(super) kind: Kind,
    /// Number of the event that added it.
    pub(super) first: u64,
    /// Its deltas so far.
    pub(super) deltas: Vec<Cut>,
}

pub(super) enum Kind {
    Message,
    Reasoning,
    Call { call_id: String, origin: Origin },
}

impl Open {
    pub(super) fn new(kind: Kind, first: u64) -> Self {
        let prefix = match &kind {
            Kind::Message => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Call { origin: Origin { is_custom: true, .. }, .. } => "ctc_",
            Kind::Call { .. } => "fc_",
        };
        Self { id: fresh_id(prefix), text: String::new(), logprobs: Vec::new(), kind, first, deltas: Vec::new() }
    }

    /// The item as it is so far; reasoning has its text in `encrypted_content` as well if that was asked for.
    pub(super) fn json(&self, status: &str, with_encrypted: bool) -> Value {
        let Self { id, text, logprobs, kind, .. } = self;
        match kind {
            Kind::Message => {
                let content = json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs }]);
                json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
            }
            Kind::Reasoning => {
                let content = json!([{ "type": "reasoning_text", "text": text }]);
                let mut item = json!({ "id": id, "type": "reasoning", "summary": [], "content": content });
                if with_encrypted {
                    item["encrypted_content"] = encrypted(text).into();
                }
                item
            }
            Kind::Call { call_id, origin } => {
                let mut item = json!({ "id": id, "type": "function_call", "status": status, "call_id": call_id });
                item["name"] = origin.name.as_str().into();
                if let Some(namespace) = &origin.namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                if origin.is_custom {
                    item["type"] = "custom_tool_call".into();
                    item["input"] = custom_tools::input(text).into();
                } else {
                    item["arguments"] = text.as_str().into();
                }
                item
            }
        }
    }
}
