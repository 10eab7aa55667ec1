//! Events of a response in the order that OpenAI's SDKs and Codex expect, with ascending sequence numbers: an item is
//! added, its parts and deltas follow, and it is done. A response that is not streamed is the object of the `completed`
//! event.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    input::CALL_PREFIX,
    item::{Kind, Open},
    numbering::{Numbering, Progress, cut},
    store::StoredResponse,
    summary::Summary,
    tools::{Origin, Tools},
};
use crate::{
    chat::{CacheReport, Delta},
    dialects::{
        ApiError, ErrorCode, Frame, Shared, custom_tools, openai,
        stream::{EventEncoder, ended_early, event},
        usage::add_report,
    },
};
use pensieve_protocol::job::{Finish, Usage};

/// The part of a response that is known before generation.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) id: String,
    /// Creation time, in seconds since 1970.
    pub(super) created: u64,
    /// Fields echoed from the request, as members of a JSON object.
    pub(super) echo: Bytes,
    pub(super) is_background: bool,
    /// The client has set `max_output_tokens`.
    pub(super) is_limited: bool,
    /// Reasoning items get `encrypted_content`.
    pub(super) with_encrypted: bool,
}

/// Where a finished response is stored.
pub(super) struct StoreTarget {
    pub(super) shared: Arc<Shared>,
    /// The id of the client, or of the connection if the response lives no longer than that.
    pub(super) owner: u64,
    /// It is the only one of its owner.
    pub(super) is_local: bool,
    /// The input items, as a JSON list.
    pub(super) items: Bytes,
    /// Number of input items.
    pub(super) inputs: usize,
}

impl StoreTarget {
    /// Stores a response with its conversation: the input items and those of the answer.
    fn put(&self, id: &str, response: Bytes, output: &[Value], numbering: Numbering) {
        let mut items = self.items.to_vec();
        items.pop();
        for (place, item) in output.iter().enumerate() {
            items.extend_from_slice(if self.inputs + place > 0 { b"," } else { b"" });
            items.extend_from_slice(item.to_string().as_bytes());
        }
        items.push(b']');
        self.shared.responses.put(
            self.owner,
            id,
            StoredResponse { response, items: items.into(), inputs: self.inputs, numbering },
        );
        if self.is_local {
            self.shared.responses.remove_others(self.owner, id);
        }
    }
}

pub(super) struct ResponseEncoder {
    head: Head,
    tools: Tools,
    store: Option<StoreTarget>,
    output: Vec<Value>,
    open: Option<Open>,
    sequence: u64,
    numbering: Numbering,
    cache: Option<CacheReport>,
    /// Of the summary that was made first.
    compaction: Option<Usage>,
    /// Why the answer ended early, where that is not its limit.
    cut: Option<&'static str>,
    response: Option<Frame>,
}

impl ResponseEncoder {
    pub(super) fn new(head: Head, tools: Tools, store: Option<StoreTarget>) -> Self {
        let (output, numbering) = (Vec::new(), Numbering::default());
        let (open, cache, compaction, response) = (None, None, None, None);
        Self { head, tools, store, output, open, sequence: 0, numbering, cache, compaction, cut: None, response }
    }

    pub(super) fn into_response(self) -> Option<Frame> {
        self.response
    }

    /// Stores the response as it is now, and returns it.
    pub(super) fn put(&self, status: &str, error: Option<&ApiError>) -> Frame {
        let response = self.object(status, None, error);
        if let Some(store) = &self.store {
            store.put(&self.head.id, response.clone().concat(), &self.output, self.numbering.clone());
        }
        response
    }

    /// The response as far as it is, with the item that is being made.
    pub(super) fn progress(&self) -> Progress {
        let (mut output, mut numbering) = (self.output.clone(), self.numbering.clone());
        let open_item = self.open.as_ref().map(|open| {
            output.push(open.json("in_progress", self.head.with_encrypted));
            numbering.items.push(open.deltas.clone());
            self.output.len()
        });
        Progress { response: self.object_with("in_progress", None, None, &output).concat(), numbering, open_item }
    }

    /// True after the last event.
    pub(super) fn is_finished(&self) -> bool {
        self.response.is_some()
    }

    /// Ends an answer that its client has cancelled. There is no event of that name, so the last one is
    /// `response.incomplete`, with a response that is `cancelled`.
    pub(super) fn cancel(&mut self) -> Frame {
        self.give_up_item();
        let response = self.put("cancelled", None);
        self.response_event("response.incomplete", response)
    }

    /// Ends an answer that failed.
    pub(super) fn fail(&mut self, error: &ApiError) -> Frame {
        self.give_up_item();
        let response = self.put("failed", Some(error));
        self.response_event("response.failed", response)
    }

    /// Drops the item that is being made, and with it the numbers of its events.
    fn give_up_item(&mut self) {
        if let Some(open) = self.open.take() {
            self.numbering.skip(open.first..self.sequence);
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.head.id
    }

    fn event(&mut self, kind: &str, data: Value) -> Vec<u8> {
        let mut fields = Map::new();
        fields.insert("type".to_owned(), kind.into());
        fields.insert("sequence_number".to_owned(), self.sequence.into());
        self.sequence += 1;
        if let Value::Object(data) = data {
            fields.extend(data);
        }
        event(kind, &Value::Object(fields))
    }

    fn item_event(&mut self, kind: &str, data: Value) -> Vec<u8> {
        let mut fields = json!({ "output_index": self.output.len() });
        if let (Some(open), Value::Object(fields), Value::Object(data)) = (&self.open, &mut fields, data) {
            fields.insert("item_id".to_owned(), open.id.as_str().into());
            fields.extend(data);
        }
        self.event(kind, fields)
    }

    /// The current response as the text of a JSON object.
    fn object(&self, status: &str, usage: Option<Usage>, error: Option<&ApiError>) -> Frame {
        self.object_with(status, usage, error, &self.output)
    }

    fn object_with(&self, status: &str, usage: Option<Usage>, error: Option<&ApiError>, output: &[Value]) -> Frame {
        let reason = self.cut.unwrap_or("max_output_tokens");
        let details = (status == "incomplete" || self.cut.is_some()).then(|| json!({ "reason": reason }));
        let error = error.map(|error| json!({ "code": code(error), "message": error.to_string() }));
        let object = json!({
            "id": self.head.id, "object": "response", "created_at": self.head.created, "status": status,
            "background": self.head.is_background, "error": error, "incomplete_details": details, "output": output,
            "usage": usage.map(|usage| self.usage(usage)), "completed_at": usage.map(|_| openai::now()),
        });
        let mut text = object.to_string();
        text.pop();
        text.push(',');
        let mut frame = Frame::from(text);
        frame.push(self.head.echo.clone());
        frame.push("}");
        frame
    }

    fn response_event(&mut self, kind: &str, response: Frame) -> Frame {
        let frame = response_event(kind, self.sequence, response);
        self.sequence += 1;
        frame
    }

    fn usage(&self, usage: Usage) -> Value {
        let mut value = self::usage(usage);
        add_report(&mut value, self.cache.as_ref());
        if let Some(compaction) = self.compaction {
            value["pensieve"]["compaction"] = self::usage(compaction);
        }
        value
    }

    /// Opens an item, unless one of the same kind is open.
    fn open(&mut self, kind: Kind, out: &mut Vec<u8>) {
        out.extend(self.close("completed"));
        let open = Open::new(kind, self.sequence);
        let mut item = open.json("in_progress", self.head.with_encrypted);
        match &open.kind {
            Kind::Message | Kind::Reasoning => item["content"] = json!([]),
            Kind::Call { .. } => {}
        }
        let part = match &open.kind {
            Kind::Message => Some(json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] })),
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": "" })),
            Kind::Call { .. } => None,
        };
        self.open = Some(open);
        let output_index = self.output.len();
        out.extend(self.event("response.output_item.added", json!({ "output_index": output_index, "item": item })));
        if let Some(part) = part {
            out.extend(self.item_event("response.content_part.added", json!({ "content_index": 0, "part": part })));
        }
    }

    fn close(&mut self, status: &str) -> Vec<u8> {
        let Some(open) = &mut self.open else { return Vec::new() };
        let is_call = matches!(open.kind, Kind::Call { .. });
        if is_call && open.text.is_empty() {
            open.text.push_str("{}");
        }
        let (text, logprobs) = (open.text.clone(), open.logprobs.clone());
        let mut out = match &open.kind {
            Kind::Message => {
                let part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs });
                let done = json!({ "content_index": 0, "text": text, "logprobs": logprobs });
                let mut out = self.item_event("response.output_text.done", done);
                out.extend(self.item_event("response.content_part.done", json!({ "content_index": 0, "part": part })));
                out
            }
            Kind::Reasoning => {
                let part = json!({ "type": "reasoning_text", "text": text });
                let mut out =
                    self.item_event("response.reasoning_text.done", json!({ "content_index": 0, "text": text }));
                out.extend(self.item_event("response.content_part.done", json!({ "content_index": 0, "part": part })));
                out
            }
            Kind::Call { origin: Origin { is_custom: true, .. }, .. } => {
                let input = custom_tools::input(&text);
                let mut out = self.item_event("response.custom_tool_call_input.delta", json!({ "delta": input }));
                out.extend(self.item_event("response.custom_tool_call_input.done", json!({ "input": input })));
                out
            }
            Kind::Call { origin, .. } => {
                let done = json!({ "name": origin.name, "arguments": text });
                self.item_event("response.function_call_arguments.done", done)
            }
        };
        if let Some(open) = self.open.take() {
            let item = open.json(status, self.head.with_encrypted);
            let output_index = self.output.len();
            out.extend(self.event("response.output_item.done", json!({ "output_index": output_index, "item": item })));
            self.output.push(item);
            self.numbering.items.push(open.deltas);
        }
        out
    }

    /// Adds an item that comes in one piece.
    fn whole(&mut self, item: Value) -> Vec<u8> {
        let mut out = self.close("completed");
        let data = json!({ "output_index": self.output.len(), "item": item });
        out.extend(self.event("response.output_item.added", data.clone()));
        out.extend(self.event("response.output_item.done", data));
        self.output.push(item);
        self.numbering.items.push(Vec::new());
        out
    }

    fn push_text(&mut self, text: &str, logprobs: Vec<Value>, kind: Kind, name: &str, out: &mut Vec<u8>) {
        if text.is_empty() && logprobs.is_empty() {
            return;
        }
        let is_open = self.open.as_ref().is_some_and(|open| {
            matches!((&open.kind, &kind), (Kind::Message, Kind::Message) | (Kind::Reasoning, Kind::Reasoning))
        });
        let mut data = json!({ "content_index": 0, "delta": text });
        if matches!(kind, Kind::Message) {
            data["logprobs"] = logprobs.clone().into();
        }
        if !is_open {
            self.open(kind, out);
        }
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            open.deltas.push(cut(text, logprobs.len()));
            open.logprobs.extend(logprobs);
        }
        out.extend(self.item_event(name, data));
    }

    fn finish(&mut self, reason: Finish, usage: Usage) -> Result<Frame, ApiError> {
        let is_cut = match reason {
            Finish::EndOfTurn | Finish::StopToken(_) | Finish::StopString(_) | Finish::GrammarDone | Finish::Paused => {
                false
            }
            Finish::Length | Finish::Repetition | Finish::ContextFull | Finish::Refused => true,
            Finish::Deadline => {
                return Err(ApiError::new(ErrorCode::Timeout, "the answer took longer than it may"));
            }
            Finish::Cancelled => {
                return Err(ApiError::new(
                    ErrorCode::Unavailable,
                    "the server cancelled this answer; send the request again",
                ));
            }
        };
        self.cut = match reason {
            Finish::Repetition => Some("repetition"),
            Finish::Refused => Some("content_filter"),
            _ => None,
        };
        let is_half_call = is_cut
            && self.open.as_ref().is_some_and(|open| {
                matches!(open.kind, Kind::Call { .. }) && serde_json::from_str::<Value>(&open.text).is_err()
            });
        // Clients run a call as soon as it is done, so an incomplete one must never be reported as done.
        if is_half_call {
            self.give_up_item();
        }
        let is_usable = !is_half_call
            && (matches!(&self.open, Some(Open { kind: Kind::Message | Kind::Call { .. }, .. }))
                || self.output.iter().any(|item| item["type"] != "reasoning" && item["type"] != "compaction"));
        let is_refused = reason == Finish::Refused;
        let is_incomplete = is_refused || (is_cut && (self.head.is_limited || !is_usable));
        let status = if is_incomplete { "incomplete" } else { "completed" };
        let mut out = Frame::from(self.close(status));
        let response = self.object(status, Some(usage), None);
        if let Some(store) = self.store.take() {
            // Concatenating copies the bytes, so the store does not keep the request's buffers alive.
            let numbering = std::mem::take(&mut self.numbering);
            store.put(&self.head.id, response.clone().concat(), &self.output, numbering);
        }
        out.extend(self.response_event(&format!("response.{status}"), response.clone()));
        self.response = Some(response);
        Ok(out)
    }
}

impl EventEncoder for ResponseEncoder {
    fn begin(&mut self) -> Frame {
        let response = self.object("in_progress", None, None);
        let mut out = self.response_event("response.created", response.clone());
        out.extend(self.response_event("response.in_progress", response));
        out
    }

    fn delta(&mut self, _choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        let mut out = Vec::new();
        match delta {
            Delta::Loading { .. } | Delta::Started { .. } | Delta::Prompt { .. } | Delta::Unknown(_) => {}
            Delta::Cache(report) => self.cache = Some(report),
            Delta::Compacted { summary, usage, .. } => {
                self.compaction = Some(usage);
                let item = summary.map(|text| Summary { text, is_all: true }.item());
                out.extend(item.map(|item| self.whole(item)).unwrap_or_default());
            }
            Delta::Text { text, logprobs } => {
                let logprobs = openai::logprobs_of(&logprobs);
                self.push_text(&text, logprobs, Kind::Message, "response.output_text.delta", &mut out);
            }
            Delta::Thinking(text) => {
                self.push_text(&text, Vec::new(), Kind::Reasoning, "response.reasoning_text.delta", &mut out);
            }
            Delta::ToolCall { id, name } => {
                let origin = self.tools.origin(&name);
                self.open(Kind::Call { call_id: format!("{CALL_PREFIX}{id}"), origin }, &mut out);
            }
            Delta::ToolArguments(text) => {
                if let Some(Open { kind: Kind::Call { origin, .. }, text: arguments, deltas, .. }) = &mut self.open
                    && !text.is_empty()
                {
                    arguments.push_str(&text);
                    deltas.push(cut(&text, 0));
                    // A custom tool's input can be decoded only when its JSON is complete.
                    if !origin.is_custom {
                        out = self.item_event("response.function_call_arguments.delta", json!({ "delta": text }));
                    }
                }
            }
            Delta::Finished { reason, usage } => return self.finish(reason, usage),
            Delta::Failed(failure) => return Err(ApiError::of_model(failure)),
        }
        Ok(out.into())
    }

    /// An event rather than a comment, as only events reset Codex's idle timer.
    fn keep_alive(&mut self) -> Frame {
        let response = self.object("in_progress", None, None);
        self.numbering.skip(self.sequence..self.sequence + 1);
        self.response_event("response.in_progress", response)
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        if self.response.is_some() { Ok(Frame::default()) } else { Err(ended_early()) }
    }

    fn error(&mut self, error: &ApiError) -> Frame {
        let response = self.object("failed", None, Some(error));
        self.response_event("response.failed", response)
    }
}

/// Usage in OpenAI's form.
pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.reused, "cache_write_tokens": 0 },
        "output_tokens": usage.generated,
        // Reasoning tokens are not counted separately, but clients require a number.
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": u64::from(usage.prompt) + u64::from(usage.generated),
    })
}

/// Error codes known to Codex and the SDKs.
fn code(error: &ApiError) -> &'static str {
    match error.code {
        ErrorCode::TooLong => "context_length_exceeded",
        ErrorCode::Overloaded | ErrorCode::Unavailable => "server_is_overloaded",
        ErrorCode::KeyLimit => "rate_limit_exceeded",
        ErrorCode::InvalidRequest => "invalid_prompt",
        _ => "server_error",
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
