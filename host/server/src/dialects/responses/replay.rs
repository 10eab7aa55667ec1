//! Replays a stored response as the events that it came in: the same deltas under the same numbers, without the keep-alives.
//! One that is still being made is replayed as far as it is. Events are generated on demand and share large parts with the
//! stored response.

use std::{collections::VecDeque, mem::take};

use bytes::Bytes;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    encoder::response_event,
    numbering::{Cut, Numbering, Progress},
};
use crate::dialects::{ApiError, Frame, RequestMemory, fields::Members, stream::event};

/// Fields with their values at the start of the response.
const AT_FIRST: [(&str, &str); 6] = [
    ("error", "null"),
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
    numbering: Numbering,
    /// Ranges of `numbering.skipped` that are passed.
    skips: usize,
    is_running: bool,
    /// Place of the item that is not done.
    open_item: Option<usize>,
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
    pub(super) fn new(response: Bytes, numbering: Numbering, after: Option<u64>) -> Result<Self, ApiError> {
        let members = Members::parse(response.clone(), RequestMemory::default())?;
        let output = members.bytes("output").unwrap_or_default();
        let items: Vec<&RawValue> = serde_json::from_slice(&output).unwrap_or_default();
        let items = items.iter().map(|item| output.slice_ref(item.get().as_bytes())).collect();
        Ok(Self {
            response,
            members,
            items,
            numbering,
            skips: 0,
            is_running: false,
            open_item: None,
            place: 0,
            sequence: 0,
            after,
            stage: Stage::Begin,
            ready: VecDeque::new(),
        })
    }

    /// Of a response that is being made: ends where that is.
    pub(super) fn of_running(progress: Progress, after: Option<u64>) -> Result<Self, ApiError> {
        let Progress { response, numbering, open_item } = progress;
        Ok(Self { is_running: true, open_item, ..Self::new(response, numbering, after)? })
    }

    fn push(&mut self, frame: impl FnOnce(u64) -> Frame) {
        while let Some(skipped) = self.numbering.skipped.get(self.skips)
            && skipped.contains(&self.sequence)
        {
            self.sequence = skipped.end;
            self.skips += 1;
        }
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
                    self.stage = Stage::Over;
                    if !self.is_running {
                        let kind = self.last_event();
                        let response = self.response.clone();
                        self.push(|sequence| response_event(kind, sequence, response.into()));
                    }
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

    /// The event that ends a stream with this response.
    fn last_event(&self) -> &'static str {
        let status: Option<String> = self.members.bytes("status").and_then(|text| serde_json::from_slice(&text).ok());
        match status.as_deref() {
            Some("failed") => "response.failed",
            Some("incomplete" | "cancelled") => "response.incomplete",
            _ => "response.completed",
        }
    }

    fn item(&mut self, item: &Value) {
        let place = self.place;
        let deltas = self.numbering.items.get_mut(place).map(take).unwrap_or_default();
        let is_done = self.open_item != Some(place);
        let mut initial = item.clone();
        if let Some(fields) = initial.as_object_mut().filter(|_| item["type"] != "compaction") {
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
            let target = json!({ "output_index": place, "item_id": item["id"], "content_index": index });
            self.part(&target, part, &deltas, is_done);
        }
        let target = json!({ "output_index": place, "item_id": item["id"] });
        match item["type"].as_str() {
            Some("function_call") => {
                for delta in pieces(&item["arguments"], &deltas) {
                    let data = with(&target, [("delta", &delta.into())]);
                    self.event("response.function_call_arguments.delta", data);
                }
                if is_done {
                    let done = with(&target, [("arguments", &item["arguments"]), ("name", &item["name"])]);
                    self.event("response.function_call_arguments.done", done);
                }
            }
            // Its input comes in one piece when it is done.
            Some("custom_tool_call") if is_done => {
                let input = &item["input"];
                self.event("response.custom_tool_call_input.delta", with(&target, [("delta", input)]));
                self.event("response.custom_tool_call_input.done", with(&target, [("input", input)]));
            }
            _ => {}
        }
        if is_done {
            self.event("response.output_item.done", json!({ "output_index": place, "item": item }));
        }
    }

    fn part(&mut self, target: &Value, part: &Value, deltas: &[Cut], is_done: bool) {
        let mut initial = part.clone();
        initial["text"] = "".into();
        if let Some(logprobs) = initial.get_mut("logprobs") {
            *logprobs = json!([]);
        }
        self.event("response.content_part.added", with(target, [("part", &initial)]));
        let kind = part["type"].as_str().unwrap_or("output_text");
        let logprobs = part.get("logprobs");
        let mut likelihoods = logprobs.and_then(Value::as_array).into_iter().flatten();
        for (delta, (_, count)) in pieces(&part["text"], deltas).zip(deltas) {
            let mut data = with(target, [("delta", &delta.into())]);
            if logprobs.is_some() {
                data["logprobs"] = likelihoods.by_ref().take(*count as usize).cloned().collect();
            }
            self.event(&format!("response.{kind}.delta"), data);
        }
        if is_done {
            let mut done = with(target, [("text", &part["text"])]);
            if let Some(logprobs) = logprobs {
                done["logprobs"] = logprobs.clone();
            }
            self.event(&format!("response.{kind}.done"), done);
            self.event("response.content_part.done", with(target, [("part", part)]));
        }
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

/// A text in the pieces that it came in.
fn pieces<'a>(text: &'a Value, deltas: &'a [Cut]) -> impl Iterator<Item = &'a str> {
    let mut rest = text.as_str().unwrap_or_default();
    deltas.iter().map(move |(bytes, _)| {
        let (piece, after) = rest.split_at_checked(*bytes as usize).unwrap_or((rest, ""));
        rest = after;
        piece
    })
}

fn with<const FIELDS: usize>(target: &Value, fields: [(&str, &Value); FIELDS]) -> Value {
    let mut data = target.clone();
    for (name, value) in fields {
        data[name] = value.clone();
    }
    data
}
