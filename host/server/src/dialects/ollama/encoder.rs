//! Answers as lines of JSON or as one object, with the same fields.

use std::time::Instant;

use serde_json::{Value, json};

use super::error_line;
use crate::{
    chat::{CacheReport, Delta},
    dialects::{
        ApiError, ErrorCode, Frame, catalog,
        openai::logprobs_of,
        stream::{EventEncoder, ended_early},
        usage::add_report,
    },
};
use pensieve_protocol::job::{Finish, Usage};

/// The endpoint, which decides the fields of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A `message`.
    Chat,
    /// A `response`.
    Generate,
}

impl Shape {
    pub(super) fn entry(self, model: &str, text: &str, thinking: &str) -> Value {
        let mut entry = json!({ "model": model, "created_at": catalog::rfc3339(jiff::Timestamp::now()) });
        let mut fields = match self {
            Self::Chat => json!({ "role": "assistant", "content": text }),
            Self::Generate => json!({ "response": text }),
        };
        if !thinking.is_empty() {
            fields["thinking"] = thinking.into();
        }
        match (self, fields, &mut entry) {
            (Self::Chat, fields, _) => entry["message"] = fields,
            (Self::Generate, Value::Object(fields), Value::Object(entry)) => entry.extend(fields),
            _ => {}
        }
        entry["done"] = false.into();
        entry
    }
}

#[derive(Debug)]
pub(super) struct LineEncoder {
    model: String,
    shape: Shape,
    with_thinking: bool,
    began: Instant,
    /// Start of prefill.
    started: Option<Instant>,
    /// Arrival of the first piece of the answer.
    answered: Option<Instant>,
    /// Name and arguments so far of the tool call that is being received.
    call: Option<(String, String)>,
    text: String,
    thinking: String,
    logprobs: Vec<Value>,
    calls: Vec<Value>,
    cache: Option<CacheReport>,
    last: Option<Value>,
}

impl LineEncoder {
    pub(super) fn new(model: String, shape: Shape, with_thinking: bool) -> Self {
        Self {
            model,
            shape,
            with_thinking,
            began: Instant::now(),
            started: None,
            answered: None,
            call: None,
            text: String::new(),
            thinking: String::new(),
            logprobs: Vec::new(),
            calls: Vec::new(),
            cache: None,
            last: None,
        }
    }

    /// The whole answer as one object, once it is complete.
    pub(super) fn into_whole(self) -> Option<Value> {
        let mut whole = self.shape.entry(&self.model, &self.text, &self.thinking);
        if !self.calls.is_empty() {
            whole["message"]["tool_calls"] = self.calls.into();
        }
        if !self.logprobs.is_empty() {
            whole["logprobs"] = self.logprobs.into();
        }
        if let (Value::Object(whole), Value::Object(last)) = (&mut whole, self.last?) {
            whole.extend(last.into_iter().filter(|(name, _)| !["message", "response"].contains(&name.as_str())));
        }
        Some(whole)
    }

    fn line(&self, text: &str, thinking: &str) -> Vec<u8> {
        line(&self.shape.entry(&self.model, text, thinking))
    }

    /// Emits the current tool call. Calls are sent when complete, as clients expect their arguments as an object. What is none
    /// is shown as text, since clients would run the tool without arguments.
    fn end_call(&mut self) -> Vec<u8> {
        let Some((name, arguments)) = self.call.take() else { return Vec::new() };
        let parsed = if arguments.is_empty() { Ok(json!({})) } else { serde_json::from_str::<Value>(&arguments) };
        let Ok(arguments @ Value::Object(_)) = parsed else {
            tracing::warn!(name, "the arguments of a call are no JSON object; it is shown as text");
            let text = format!("{name}({arguments})");
            self.text.push_str(&text);
            return self.line(&text, "");
        };
        let call = json!({ "function": { "index": self.calls.len(), "name": name, "arguments": arguments } });
        let mut entry = self.shape.entry(&self.model, "", "");
        if self.shape == Shape::Chat {
            entry["message"]["tool_calls"] = json!([call]);
        }
        self.calls.push(call);
        line(&entry)
    }

    fn finish(&mut self, reason: Finish, usage: Usage) -> Result<Vec<u8>, ApiError> {
        let reason = match reason {
            Finish::EndOfTurn | Finish::StopToken(_) | Finish::StopString(_) | Finish::GrammarDone | Finish::Paused => {
                "stop"
            }
            Finish::Repetition => "repetition",
            Finish::Refused => "content_filter",
            Finish::Length | Finish::ContextFull | Finish::Deadline => "length",
            Finish::Cancelled => {
                return Err(ApiError::new(
                    ErrorCode::Unavailable,
                    "the server cancelled this answer; send the request again",
                ));
            }
        };
        // An incomplete call is dropped.
        let is_incomplete = reason != "stop"
            && self.call.as_ref().is_some_and(|(_, text)| serde_json::from_str::<Value>(text).is_err());
        if is_incomplete {
            self.call = None;
        }
        let mut out = self.end_call();
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let answered = self.answered.unwrap_or(now).max(started);
        let nanoseconds = |from: Instant, to: Instant| (to - from).as_nanos() as u64;
        let mut last = self.shape.entry(&self.model, "", "");
        last["done"] = true.into();
        last["done_reason"] = reason.into();
        last["total_duration"] = nanoseconds(self.began, now).into();
        last["load_duration"] = nanoseconds(self.began, started.max(self.began)).into();
        last["prompt_eval_count"] = usage.prompt.into();
        last["prompt_eval_duration"] = nanoseconds(started, answered).into();
        last["eval_count"] = usage.generated.into();
        last["eval_duration"] = nanoseconds(answered, now).into();
        add_report(&mut last, self.cache.as_ref());
        out.extend(line(&last));
        self.last = Some(last);
        Ok(out)
    }
}

impl EventEncoder for LineEncoder {
    fn begin(&mut self) -> Frame {
        Frame::default()
    }

    fn delta(&mut self, _choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        if matches!(delta, Delta::Text { .. } | Delta::Thinking(_) | Delta::ToolCall { .. }) {
            self.answered.get_or_insert_with(Instant::now);
        }
        let lines = match delta {
            Delta::Started { .. } => {
                self.started.get_or_insert_with(Instant::now);
                Vec::new()
            }
            Delta::Text { text, logprobs } if !text.is_empty() || !logprobs.is_empty() => {
                let mut out = self.end_call();
                self.text.push_str(&text);
                let mut entry = self.shape.entry(&self.model, &text, "");
                if !logprobs.is_empty() {
                    let logprobs = logprobs_of(&logprobs);
                    self.logprobs.extend(logprobs.iter().cloned());
                    entry["logprobs"] = logprobs.into();
                }
                out.extend(line(&entry));
                out
            }
            Delta::Thinking(text) if !text.is_empty() && self.with_thinking => {
                self.thinking.push_str(&text);
                self.line("", &text)
            }
            Delta::ToolCall { name, .. } => {
                let out = self.end_call();
                self.call = Some((name, String::new()));
                out
            }
            Delta::ToolArguments(text) => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
                Vec::new()
            }
            Delta::Cache(report) => {
                self.cache = Some(report);
                Vec::new()
            }
            Delta::Finished { reason, usage } => self.finish(reason, usage)?,
            Delta::Failed(failure) => return Err(ApiError::of_model(failure)),
            _ => Vec::new(),
        };
        Ok(lines.into())
    }

    /// JSON lines have no comments, so an entry with empty text serves as the keep-alive.
    fn keep_alive(&mut self) -> Frame {
        self.line("", "").into()
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        if self.last.is_some() { Ok(Frame::default()) } else { Err(ended_early()) }
    }

    fn error(&mut self, error: &ApiError) -> Frame {
        line(&error_line(error)).into()
    }
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}
