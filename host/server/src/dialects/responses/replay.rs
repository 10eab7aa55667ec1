//! The events of a response that is complete: those in which it came, with each text and each call in one piece.

use serde_json::{Map, Value, json};

use crate::dialects::stream::event;

/// The events behind the one with the sequence number `after`, or all of them.
pub(super) fn events(response: &Value, after: Option<u64>) -> Vec<u8> {
    let mut replay = Replay { sequence: 0, after, out: Vec::new() };
    let mut begun = response.clone();
    if let Some(fields) = begun.as_object_mut() {
        fields.shift_remove("completed_at");
        fields.extend([
            ("status".to_owned(), "in_progress".into()),
            ("incomplete_details".to_owned(), Value::Null),
            ("output".to_owned(), json!([])),
            ("usage".to_owned(), Value::Null),
        ]);
    }
    replay.event("response.created", json!({ "response": begun }));
    replay.event("response.in_progress", json!({ "response": begun }));
    for (place, item) in response["output"].as_array().into_iter().flatten().enumerate() {
        replay.item(place, item);
    }
    let status = response["status"].as_str().unwrap_or("completed");
    replay.event(&format!("response.{status}"), json!({ "response": response }));
    replay.out
}

struct Replay {
    sequence: u64,
    after: Option<u64>,
    out: Vec<u8>,
}

impl Replay {
    fn event(&mut self, kind: &str, data: Value) {
        let mut fields = Map::new();
        fields.insert("type".to_owned(), kind.into());
        fields.insert("sequence_number".to_owned(), self.sequence.into());
        if let Value::Object(data) = data {
            fields.extend(data);
        }
        if self.after.is_none_or(|after| self.sequence > after) {
            self.out.extend(event(kind, &Value::Object(fields)));
        }
        self.sequence += 1;
    }

    fn item(&mut self, place: usize, item: &Value) {
        let mut begun = item.clone();
        if let Some(fields) = begun.as_object_mut() {
            for (name, empty) in [
                ("content", json!([])),
                ("arguments", "".into()),
                ("input", "".into()),
                ("encrypted_content", "".into()),
            ] {
                fields.entry(name).and_modify(|value| *value = empty);
            }
            fields.entry("status").and_modify(|status| *status = "in_progress".into());
        }
        self.event("response.output_item.added", json!({ "output_index": place, "item": begun }));
        for (index, part) in item["content"].as_array().into_iter().flatten().enumerate() {
            self.part(&json!({ "output_index": place, "item_id": item["id"], "content_index": index }), part);
        }
        let target = json!({ "output_index": place, "item_id": item["id"] });
        let (name, field) = match item["type"].as_str() {
            Some("function_call") => ("function_call_arguments", "arguments"),
            Some("custom_tool_call") => ("custom_tool_call_input", "input"),
            _ => ("", ""),
        };
        if !name.is_empty() {
            self.event(&format!("response.{name}.delta"), with(&target, [("delta", &item[field])]));
            let mut done = with(&target, [(field, &item[field])]);
            if field == "arguments" {
                done["name"] = item["name"].clone();
            }
            self.event(&format!("response.{name}.done"), done);
        }
        self.event("response.output_item.done", json!({ "output_index": place, "item": item }));
    }

    fn part(&mut self, target: &Value, part: &Value) {
        let mut begun = part.clone();
        begun["text"] = "".into();
        self.event("response.content_part.added", with(target, [("part", &begun)]));
        let kind = part["type"].as_str().unwrap_or("output_text");
        let target_of_text =
            if kind == "output_text" { with(target, [("logprobs", &json!([]))]) } else { target.clone() };
        self.event(&format!("response.{kind}.delta"), with(&target_of_text, [("delta", &part["text"])]));
        self.event(&format!("response.{kind}.done"), with(&target_of_text, [("text", &part["text"])]));
        self.event("response.content_part.done", with(target, [("part", part)]));
    }
}

fn with<const FIELDS: usize>(target: &Value, fields: [(&str, &Value); FIELDS]) -> Value {
    let mut data = target.clone();
    for (name, value) in fields {
        data[name] = value.clone();
    }
    data
}
