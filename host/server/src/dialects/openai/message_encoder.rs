//! Encodes a choice of `chat/completions` as chunks or as a whole message.
//!
//! Reasoning goes into `reasoning_content`, a field that OpenAI's API lacks but most local servers have; other clients
//! ignore it. The input of a custom tool is a string within JSON, so it is one chunk once that JSON is complete.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    choice::{ChoiceDelta, end_entry},
    encoder::ChoiceEncoder,
    logprobs,
};
use crate::{
    chat::TokenLogprob,
    dialects::custom_tools::{self, CustomTools},
};

#[derive(Debug, Default)]
pub(super) struct MessageEncoder {
    has_logprobs: bool,
    custom: Arc<CustomTools>,
    has_begun: bool,
    content: Option<String>,
    reasoning: String,
    calls: Vec<Call>,
    /// Index and arguments of the call of a custom tool that is being streamed.
    open: Option<(usize, String)>,
    logprobs: Vec<TokenLogprob>,
    reason: &'static str,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl MessageEncoder {
    pub(super) fn new(has_logprobs: bool, custom: Arc<CustomTools>) -> Self {
        Self { has_logprobs, custom, ..Self::default() }
    }

    fn entry(&self, index: usize, delta: &Value, logprobs: &[TokenLogprob], reason: Option<&str>) -> Value {
        let logprobs = if self.has_logprobs && !logprobs.is_empty() {
            json!({ "content": logprobs::content(logprobs), "refusal": null })
        } else {
            Value::Null
        };
        let mut entry = json!({ "index": index, "delta": delta, "logprobs": logprobs });
        end_entry(&mut entry, reason);
        entry
    }
}

impl ChoiceEncoder for MessageEncoder {
    fn chunks(&mut self, index: usize, piece: ChoiceDelta) -> Vec<Value> {
        let mut entries = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            // If there are only calls, `content` must be null, not an empty string.
            let content =
                if matches!(piece, ChoiceDelta::Text { .. } | ChoiceDelta::End(_)) { json!("") } else { Value::Null };
            let delta = json!({ "role": "assistant", "content": content, "refusal": null });
            entries.push(self.entry(index, &delta, &[], None));
        }
        match (&mut self.open, &piece) {
            (Some((open, arguments)), ChoiceDelta::Arguments { place, text }) if open == place => {
                arguments.push_str(text);
                return entries;
            }
            _ => {}
        }
        if let Some((place, arguments)) = self.open.take() {
            let call = json!({ "index": place, "custom": { "input": custom_tools::input(&arguments) } });
            entries.push(self.entry(index, &json!({ "tool_calls": [call] }), &[], None));
        }
        entries.push(match piece {
            ChoiceDelta::Text { text, logprobs } => self.entry(index, &json!({ "content": text }), &logprobs, None),
            ChoiceDelta::Reasoning(text) => self.entry(index, &json!({ "reasoning_content": text }), &[], None),
            ChoiceDelta::Call { place, id, name } if self.custom.has(&name) => {
                self.open = Some((place, String::new()));
                let custom = json!({ "name": name, "input": "" });
                let call = json!({ "index": place, "id": id, "type": "custom", "custom": custom });
                self.entry(index, &json!({ "tool_calls": [call] }), &[], None)
            }
            ChoiceDelta::Call { place, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": place, "id": id, "type": "function", "function": function });
                self.entry(index, &json!({ "tool_calls": [call] }), &[], None)
            }
            ChoiceDelta::Arguments { place, text } => {
                let call = json!({ "index": place, "function": { "arguments": text } });
                self.entry(index, &json!({ "tool_calls": [call] }), &[], None)
            }
            ChoiceDelta::End(reason) => self.entry(index, &json!({}), &[], Some(reason)),
        });
        entries
    }

    fn keep(&mut self, piece: ChoiceDelta) {
        match piece {
            ChoiceDelta::Text { text, logprobs } => {
                self.content.get_or_insert_default().push_str(&text);
                self.logprobs.extend(logprobs);
            }
            ChoiceDelta::Reasoning(text) => self.reasoning.push_str(&text),
            ChoiceDelta::Call { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
            ChoiceDelta::Arguments { place, text } => {
                if let Some(call) = self.calls.get_mut(place) {
                    call.arguments.push_str(&text);
                }
            }
            ChoiceDelta::End(reason) => self.reason = reason,
        }
    }

    fn whole(self: Box<Self>, index: usize) -> Value {
        let content = self.content.or_else(|| self.calls.is_empty().then(String::new));
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), content.into());
        message.insert("refusal".into(), Value::Null);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            let call = |call: Call| {
                if self.custom.has(&call.name) {
                    let custom = json!({ "name": call.name, "input": custom_tools::input(&call.arguments) });
                    return json!({ "id": call.id, "type": "custom", "custom": custom });
                }
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            };
            message.insert("tool_calls".into(), self.calls.into_iter().map(call).collect());
        }
        let logprobs = if self.has_logprobs {
            json!({ "content": logprobs::content(&self.logprobs), "refusal": null })
        } else {
            Value::Null
        };
        let mut entry = json!({ "index": index, "message": message, "logprobs": logprobs });
        end_entry(&mut entry, Some(self.reason));
        entry
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{super::logprobs::tests::token, *};
    use crate::dialects::fields::Field;

    fn text(text: &str) -> ChoiceDelta {
        ChoiceDelta::Text { text: text.into(), logprobs: Vec::new() }
    }

    fn calls() -> Vec<ChoiceDelta> {
        let call = |place, id: &str, name: &str| ChoiceDelta::Call { place, id: id.into(), name: name.into() };
        let arguments = |place, text: &str| ChoiceDelta::Arguments { place, text: text.into() };
        vec![
            ChoiceDelta::Reasoning("hm".into()),
            call(0, "call_a", "add"),
            arguments(0, "{\"x\""),
            arguments(0, ":1}"),
            call(1, "call_b", "sub"),
            arguments(1, "{}"),
            ChoiceDelta::End("tool_calls"),
        ]
    }

    fn whole(has_logprobs: bool, pieces: Vec<ChoiceDelta>) -> Value {
        let mut message = Box::new(MessageEncoder::new(has_logprobs, Arc::default()));
        pieces.into_iter().for_each(|piece| message.keep(piece));
        message.whole(0)
    }

    fn deltas(pieces: Vec<ChoiceDelta>) -> Vec<Value> {
        let mut message = MessageEncoder::new(false, Arc::default());
        let entries = pieces.into_iter().flat_map(|piece| message.chunks(2, piece));
        let strip = |mut entry: Value| {
            assert_eq!(entry["index"], 2);
            assert_eq!(entry["logprobs"], Value::Null);
            if entry["finish_reason"].is_null() { entry["delta"].take() } else { entry["finish_reason"].take() }
        };
        entries.map(strip).collect()
    }

    #[test]
    fn a_text_is_one_message() {
        let expect = json!({
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
        });
        assert_eq!(whole(false, vec![text("H"), text("i"), ChoiceDelta::End("stop")]), expect);
        let role = json!({"role": "assistant", "content": "", "refusal": null});
        let expect = [role.clone(), json!({"content": "H"}), json!({"content": "i"}), json!("stop")];
        assert_eq!(deltas(vec![text("H"), text("i"), ChoiceDelta::End("stop")]), expect);
        assert_eq!(deltas(vec![ChoiceDelta::End("stop")]), [role, json!("stop")]);
        assert_eq!(whole(false, vec![ChoiceDelta::End("stop")])["message"]["content"], "");
    }

    #[test]
    fn calls_without_text_have_no_content() {
        let expect = json!({
            "role": "assistant",
            "content": null,
            "refusal": null,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": "{\"x\":1}"}},
                {"id": "call_b", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
            ],
        });
        assert_eq!(whole(false, calls())["message"], expect);
        let expect = [
            json!({"role": "assistant", "content": null, "refusal": null}),
            json!({"reasoning_content": "hm"}),
            json!({"tool_calls": [
                {"index": 0, "id": "call_a", "type": "function", "function": {"name": "add", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
            json!({"tool_calls": [
                {"index": 1, "id": "call_b", "type": "function", "function": {"name": "sub", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}),
            json!("tool_calls"),
        ];
        assert_eq!(deltas(calls()), expect);
    }

    #[test]
    fn a_custom_tool_is_called_with_a_text() {
        let mut custom = CustomTools::default();
        let item = json!({});
        custom.read(&Field::root(&item), "patch".into()).unwrap();
        let custom = Arc::new(custom);
        let arguments = |place, text: &str| ChoiceDelta::Arguments { place, text: text.into() };
        let call = |place, id: &str, name: &str| ChoiceDelta::Call { place, id: id.into(), name: name.into() };
        let pieces = vec![
            call(0, "call_a", "patch"),
            arguments(0, "{\"input\": \"a"),
            arguments(0, "\\n\"}"),
            call(1, "call_b", "add"),
            arguments(1, "{}"),
            call(2, "call_c", "patch"),
            arguments(2, "{\"input\": \"cut"),
            ChoiceDelta::End("length"),
        ];
        let mut message = Box::new(MessageEncoder::new(false, custom.clone()));
        pieces.iter().cloned().for_each(|piece| message.keep(piece));
        let custom_call =
            |id: &str, input: &str| json!({"id": id, "type": "custom", "custom": {"name": "patch", "input": input}});
        let add = json!({"id": "call_b", "type": "function", "function": {"name": "add", "arguments": "{}"}});
        let expect = json!([custom_call("call_a", "a\n"), add, custom_call("call_c", "cut")]);
        assert_eq!(message.whole(0)["message"]["tool_calls"], expect);

        let mut message = MessageEncoder::new(false, custom);
        let entries = pieces.into_iter().flat_map(|piece| message.chunks(0, piece));
        let deltas: Vec<Value> =
            entries.flat_map(|entry| entry["delta"]["tool_calls"].as_array().cloned().unwrap_or_default()).collect();
        let begun = |index: usize, id: &str| json!({"index": index, "id": id, "type": "custom", "custom": {"name": "patch", "input": ""}});
        let input = |index: usize, text: &str| json!({"index": index, "custom": {"input": text}});
        assert_eq!((&deltas[0], &deltas[1]), (&begun(0, "call_a"), &input(0, "a\n")));
        assert_eq!((&deltas[4], &deltas[5]), (&begun(2, "call_c"), &input(2, "cut")));
        assert_eq!(deltas.len(), 6);
    }

    #[test]
    fn log_probabilities_stand_beside_their_text() {
        let likely = |bytes: &[u8]| token(bytes, -0.5, &[]);
        let pieces = vec![
            ChoiceDelta::Text { text: "ab".into(), logprobs: vec![likely(b"a"), likely(b"b")] },
            ChoiceDelta::Text { text: String::new(), logprobs: vec![likely(b"")] },
            ChoiceDelta::End("stop"),
        ];
        let tokens: Vec<Value> = ["a", "b", ""]
            .map(|text| json!({"token": text, "logprob": -0.5, "bytes": text.as_bytes(), "top_logprobs": []}))
            .into();
        assert_eq!(whole(true, pieces.clone())["logprobs"], json!({"content": tokens, "refusal": null}));
        let mut message = MessageEncoder::new(true, Arc::default());
        let entries: Vec<Value> = pieces.into_iter().flat_map(|piece| message.chunks(0, piece)).collect();
        let streamed: Vec<Value> = entries
            .iter()
            .flat_map(|entry| entry["logprobs"]["content"].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(streamed, tokens);
    }
}
