//! Finds the fields of an answer that this server does not read, for a client that speaks the same API as the upstream. They are
//! bounded, and one that has the upstream's key in it is left out with those beside it.

use serde_json::{Map, Value};

use crate::{
    chat::{Delta, Unknown},
    fleet::Secret,
};

/// Longest event that is looked at.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// Limit of the fields of one answer; later ones are left out.
const BYTES_MAX: usize = 1 << 20;

const CHUNK: [&str; 8] = ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "error"];
const CHOICE: [&str; 6] = ["index", "delta", "message", "text", "finish_reason", "logprobs"];
const PIECE: [&str; 6] = ["role", "content", "reasoning_content", "reasoning", "refusal", "tool_calls"];
const CHAT_USAGE: [&str; 4] = ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"];

const EVENT: [&str; 4] = ["type", "message", "delta", "usage"];
const MESSAGE: [&str; 8] = ["id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "usage"];
const STOP: [&str; 2] = ["stop_reason", "stop_sequence"];
const MESSAGES_USAGE: [&str; 4] =
    ["input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

/// Those that have been found and not been told yet.
#[derive(Debug, Default)]
pub(super) struct UnknownFields {
    found: Unknown,
    /// Of the whole answer.
    bytes: usize,
}

impl UnknownFields {
    /// Reads a chunk of a chat completion, or of a completion.
    pub(super) fn chunk(&mut self, data: &[u8], key: Option<&Secret>) {
        let Some(mut chunk) = object(data) else { return };
        let mut unknown = Unknown { usage: rest(&mut chunk, "usage", &CHAT_USAGE), ..Unknown::default() };
        if let Some(Value::Object(choice)) = chunk.get_mut("choices").and_then(|choices| choices.get_mut(0)) {
            unknown.message = rest(choice, "delta", &PIECE);
            unknown.choice = rest_of(std::mem::take(choice), &CHOICE);
        }
        unknown.answer = rest_of(chunk, &CHUNK);
        self.add(unknown, key);
    }

    /// Reads an event of Messages. Only those at its beginning and its end have fields of the whole message.
    pub(super) fn event(&mut self, data: &[u8], key: Option<&Secret>) {
        let Some(mut event) = object(data) else { return };
        let mut unknown = Unknown::default();
        match event.get("type").and_then(Value::as_str) {
            Some("message_start") => {
                let Some(Value::Object(message)) = event.get_mut("message") else { return };
                unknown.usage = rest(message, "usage", &MESSAGES_USAGE);
                unknown.answer = rest_of(std::mem::take(message), &MESSAGE);
            }
            Some("message_delta") => {
                unknown.usage = rest(&mut event, "usage", &MESSAGES_USAGE);
                unknown.message = rest(&mut event, "delta", &STOP);
                unknown.answer = rest_of(event, &EVENT);
            }
            _ => return,
        }
        self.add(unknown, key);
    }

    /// The fields for the client; `None` if there are no new ones.
    pub(super) fn take(&mut self) -> Option<Delta> {
        let found = std::mem::take(&mut self.found);
        (!found.is_empty()).then(|| Delta::Unknown(Box::new(found)))
    }

    fn add(&mut self, mut unknown: Unknown, key: Option<&Secret>) {
        let key = key.map(|key| Value::from(String::from_utf8_lossy(key.reveal())).to_string());
        let key = key.as_deref().map(|key| key.trim_matches('"')).filter(|key| !key.is_empty());
        for fields in [&unknown.answer, &unknown.choice, &unknown.message, &unknown.usage] {
            if !fields.is_empty() {
                let text = serde_json::to_string(fields).unwrap_or_default();
                if key.is_some_and(|key| text.contains(key)) {
                    return;
                }
                unknown.bytes += text.len();
            }
        }
        if self.bytes + unknown.bytes <= BYTES_MAX {
            self.bytes += unknown.bytes;
            self.found.add(unknown);
        }
    }
}

fn object(data: &[u8]) -> Option<Map<String, Value>> {
    if data.len() > EVENT_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(data).ok()
}

/// The fields of a member besides those that are known. Null is what is absent.
fn rest(object: &mut Map<String, Value>, name: &str, known: &[&str]) -> Map<String, Value> {
    match object.get_mut(name) {
        Some(Value::Object(fields)) => rest_of(std::mem::take(fields), known),
        _ => Map::new(),
    }
}

fn rest_of(mut fields: Map<String, Value>, known: &[&str]) -> Map<String, Value> {
    fields.retain(|name, value| !known.contains(&name.as_str()) && !value.is_null());
    fields
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(chunks: &[Value], key: Option<&str>) -> Option<Unknown> {
        let mut fields = UnknownFields::default();
        chunks.iter().for_each(|chunk| fields.chunk(chunk.to_string().as_bytes(), key.map(Secret::new).as_ref()));
        fields.take().map(|delta| if let Delta::Unknown(unknown) = delta { *unknown } else { panic!("{delta:?}") })
    }

    #[test]
    fn what_is_known_and_what_is_null_is_left_out() {
        let chunk = json!({
            "id": "c", "model": "m", "provider": "p", "nothing": null,
            "choices": [{ "index": 0, "delta": { "content": "a", "audio": { "id": 1 } }, "stop_reason": 7, "logprobs": null }],
            "usage": { "prompt_tokens": 1, "cost": 0.5 },
        });
        let unknown = of(&[chunk], None).unwrap();
        assert_eq!(Value::Object(unknown.answer), json!({ "provider": "p" }));
        assert_eq!(Value::Object(unknown.choice), json!({ "stop_reason": 7 }));
        assert_eq!(Value::Object(unknown.message), json!({ "audio": { "id": 1 } }));
        assert_eq!(Value::Object(unknown.usage), json!({ "cost": 0.5 }));
        assert_eq!(of(&[json!({ "choices": [{ "delta": { "content": "a" } }], "usage": null })], None), None);
        assert_eq!(of(&[json!([1]), json!({ "choices": 7 })], None), None);
    }

    #[test]
    fn the_key_and_what_is_too_much_are_left_out() {
        let with = |value: Value| json!({ "choices": [], "more": value });
        assert_eq!(of(&[with(json!("your key is sk-\"1"))], Some("sk-\"1")), None);
        assert!(of(&[with(json!("your key is sk-2"))], Some("sk-\"1")).is_some());
        assert_eq!(of(&[with(json!("x".repeat(EVENT_BYTES_MAX)))], None), None);
        let many = vec![with(json!("x".repeat(1 << 10))); 2000];
        assert!(of(&many, None).unwrap().bytes <= BYTES_MAX);
    }

    #[test]
    fn of_messages_the_beginning_and_the_end_are_read() {
        let mut fields = UnknownFields::default();
        let usage = json!({ "input_tokens": 1, "service_tier": "standard" });
        for event in [
            json!({ "type": "message_start", "message": { "id": "m", "container": { "id": "c" }, "usage": usage } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "a" } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_details": { "a": 1 } },
                "usage": { "output_tokens": 1, "server_tool_use": {} }, "later": 1 }),
        ] {
            fields.event(event.to_string().as_bytes(), None);
        }
        let Some(Delta::Unknown(unknown)) = fields.take() else { panic!("nothing") };
        assert_eq!(Value::Object(unknown.answer), json!({ "container": { "id": "c" }, "later": 1 }));
        assert_eq!(Value::Object(unknown.message), json!({ "stop_details": { "a": 1 } }));
        assert_eq!(Value::Object(unknown.usage), json!({ "service_tier": "standard", "server_tool_use": {} }));
        assert!(fields.take().is_none());
    }
}
