//! Replays a completed response as events, with each text and each call in one delta. Events are generated on demand
//! and share large parts with the stored response.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::{Map, Value, json, value::RawValue};

use crate::dialects::{ApiError, Frame, RequestMemory, fields::Members, stream::event};

/// Fields with their values at the start of the response.
const AT_FIRST: [(&str, &str); 5] = [
    ("completed_at", "null"),
    ("status", "\"in_progress\""),
    ("incomplete_details", "null"),
    ("output", "[]"),
    ("usage", "null"),
];

/// The events after the sequence number `after`, or all of them.
pub(super) struct Replay {
    response: Bytes,
    members: Members,
    items: VecDeque<Bytes>,
    place: usize,
    sequence: u64,
    after: Option<u64>,
    stage: Stage,
    ready: VecDeque<Frame>,
}

enum Stage {
    Begin,
    Items,
    Over,
}

impl Replay {
    pub(super) fn new(response: Bytes, after: Option<u64>) -> Result<Self, ApiError> {
        let members = Members::parse(response.clone(), RequestMemory::default())?;
        let output = members.bytes("output").unwrap_or_default();
        let items: Vec<&RawValue> = serde_json::from_slice(&output).unwrap_or_default();
        let items = items.iter().map(|item| output.slice_ref(item.get().as_bytes())).collect();
        let ready = VecDeque::new();
        Ok(Self { response, members, items, place: 0, sequence: 0, after, stage: Stage::Begin, ready })
    }

    fn push(&mut self, frame: impl FnOnce(u64) -> Frame) {
        if self.after.is_none_or(|after| self.sequence > after) {
            self.ready.push_back(frame(self.sequence));
        }
        self.sequence += 1;
    }

    fn event(&mut self, kind: &str, data: Value) {
        self.push(|sequence| {
            let mut fields = Map::new();
            fields.insert("type".to_owned(), kind.into());
            fields.insert("sequence_number".to_owned(), sequence.into());
            if let Value::Object(data) = data {
                fields.extend(data);
            }
            event(kind, &Value::Object(fields)).into()
        });
    }

    /// The response object as of its start.
    fn initial(&self) -> Frame {
        let mut frame = Frame::default();
        let mut before = "{";
        for (name, _) in self.members.iter() {
            let text = match AT_FIRST.iter().find(|(known, _)| *known == name) {
                Some((_, text)) => Bytes::from_static(text.as_bytes()),
                None => self.members.bytes(name).unwrap_or_default(),
            };
            frame.push(format!("{before}{}:", Value::from(name)));
            frame.push(text);
            before = ",";
        }
        frame.push("}");
        frame
    }

    fn advance(&mut self) {
        match self.stage {
            Stage::Begin => {
                for kind in ["response.created", "response.in_progress"] {
                    let initial = self.initial();
                    self.push(|sequence| response_event(kind, sequence, initial));
                }
                self.stage = Stage::Items;
            }
            Stage::Items => {
                let Some(item) = self.items.pop_front() else {
                    let status = self.members.bytes("status").and_then(|text| serde_json::from_slice(&text).ok());
                    let kind = format!("response.{}", status.unwrap_or_else(|| "completed".to_owned()));
                    let response = self.response.clone();
                    self.push(|sequence| response_event(&kind, sequence, response.into()));
                    self.stage = Stage::Over;
                    return;
                };
                // Written by this server, and no larger than an answer.
                let item: Value = serde_json::from_slice(&item).unwrap_or_default();
                self.item(&item);
                self.place += 1;
            }
            Stage::Over => {}
        }
    }

    fn item(&mut self, item: &Value) {
        let place = self.place;
        let mut initial = item.clone();
        if let Some(fields) = initial.as_object_mut() {
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
        self.event("response.output_item.added", json!({ "output_index": place, "item": initial }));
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
        let mut initial = part.clone();
        initial["text"] = "".into();
        if let Some(logprobs) = initial.get_mut("logprobs") {
            *logprobs = json!([]);
        }
        self.event("response.content_part.added", with(target, [("part", &initial)]));
        let kind = part["type"].as_str().unwrap_or("output_text");
        let logprobs = part.get("logprobs");
        let target_of_text = logprobs.map_or_else(|| target.clone(), |list| with(target, [("logprobs", list)]));
        self.event(&format!("response.{kind}.delta"), with(&target_of_text, [("delta", &part["text"])]));
        self.event(&format!("response.{kind}.done"), with(&target_of_text, [("text", &part["text"])]));
        self.event("response.content_part.done", with(target, [("part", part)]));
    }
}

impl Iterator for Replay {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        while self.ready.is_empty() && !matches!(self.stage, Stage::Over) {
            self.advance();
        }
        self.ready.pop_front()
    }
}

/// An event with a whole response, given as text.
pub(super) fn response_event(kind: &str, sequence: u64, response: Frame) -> Frame {
    let start = format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{sequence},\"response\":");
    let mut frame = Frame::from(start);
    frame.extend(response);
    frame.push("}\n\n");
    frame
}

fn with<const FIELDS: usize>(target: &Value, fields: [(&str, &Value); FIELDS]) -> Value {
    let mut data = target.clone();
    for (name, value) in fields {
        data[name] = value.clone();
    }
    data
}
