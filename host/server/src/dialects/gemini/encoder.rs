//! Answers as `GenerateContentResponse`: one object, or a stream of objects with the parts as they come, as server-sent
//! events or as the items of a JSON array. A function call is one part and is sent when its arguments are complete.

use serde_json::{Value, json};

use super::{error::body, logprobs::Logprobs};
use crate::{
    chat::{CacheReport, Delta, TokenLogprob},
    dialects::{
        ApiError, ErrorCode, Frame,
        stream::{EventEncoder, ended_early},
        usage::add_report,
    },
};
use pensieve_protocol::job::{Finish, Usage};

/// Parts of the answer that are known before generation, and what the client asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) id: String,
    /// The model name from the client.
    pub(super) model: String,
    pub(super) input_tokens: u32,
    pub(super) with_thoughts: bool,
    /// The number of alternatives per token, if log-probabilities are reported.
    pub(super) logprobs: Option<u8>,
}

/// How the objects of a stream are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Events,
    Array,
}

#[derive(Debug)]
pub(super) struct ContentEncoder {
    head: Head,
    form: Form,
    candidates: Vec<Candidate>,
    cache: Option<CacheReport>,
    has_sent: bool,
}

#[derive(Debug, Default)]
struct Candidate {
    /// Id, name and arguments so far of the call that is being received.
    call: Option<(String, String, String)>,
    parts: Vec<Value>,
    reason: Option<&'static str>,
    usage: Usage,
    logprobs: Logprobs,
}

impl ContentEncoder {
    pub(super) fn new(head: Head, form: Form, count: usize) -> Self {
        let candidates = std::iter::repeat_with(Candidate::default).take(count).collect();
        Self { head, form, candidates, cache: None, has_sent: false }
    }

    /// The whole answer, once it is complete.
    pub(super) fn into_whole(self) -> Result<Value, ApiError> {
        if self.candidates.iter().any(|candidate| candidate.reason.is_none()) {
            return Err(ended_early());
        }
        let mut whole = self.object(&[]);
        whole["usageMetadata"] = self.usage();
        let Self { head, candidates, .. } = self;
        let entries = candidates.into_iter().enumerate().map(|(index, candidate)| {
            let mut entry = entry(index, &candidate.parts);
            entry["finishReason"] = candidate.reason.into();
            if let Some(alternatives) = head.logprobs {
                candidate.logprobs.add_to(&mut entry, alternatives);
            }
            entry
        });
        whole["candidates"] = entries.collect();
        Ok(whole)
    }

    fn object(&self, candidates: &[Value]) -> Value {
        json!({ "candidates": candidates, "modelVersion": self.head.model, "responseId": self.head.id })
    }

    /// The counts so far; several candidates share the prompt.
    fn usage(&self) -> Value {
        let generated: u64 = self.candidates.iter().map(|candidate| u64::from(candidate.usage.generated)).sum();
        let cached = self.candidates.iter().map(|candidate| candidate.usage.reused).min().unwrap_or(0);
        // An upstream counts the prompt with its answer.
        let counted = self.candidates.iter().map(|candidate| candidate.usage.prompt).find(|prompt| *prompt > 0);
        let prompt = counted.unwrap_or(self.head.input_tokens);
        let mut usage = json!({
            "promptTokenCount": prompt,
            "candidatesTokenCount": generated,
            "totalTokenCount": u64::from(prompt) + generated,
            "promptTokensDetails": [{ "modality": "TEXT", "tokenCount": prompt }],
        });
        if cached > 0 {
            usage["cachedContentTokenCount"] = cached.into();
            usage["cacheTokensDetails"] = json!([{ "modality": "TEXT", "tokenCount": cached }]);
        }
        add_report(&mut usage, self.cache.as_ref());
        usage
    }

    fn frame(&mut self, object: &Value) -> Vec<u8> {
        match (self.form, std::mem::replace(&mut self.has_sent, true)) {
            (Form::Events, _) => format!("data: {object}\r\n\r\n").into_bytes(),
            (Form::Array, false) => format!("[{object}").into_bytes(),
            (Form::Array, true) => format!(",\r\n{object}").into_bytes(),
        }
    }

    /// The parts that a delta completes, with the log-probabilities of their text.
    fn take(&mut self, index: usize, delta: Delta) -> Result<(Vec<Value>, Vec<TokenLogprob>), ApiError> {
        let with_thoughts = self.head.with_thoughts;
        let candidate = &mut self.candidates[index];
        let mut logprobs = Vec::new();
        let parts = match delta {
            Delta::Text { text, logprobs: tokens } => {
                logprobs = tokens;
                let call = candidate.end_call();
                let text = (!text.is_empty()).then(|| json!({ "text": text }));
                call.into_iter().chain(text).collect()
            }
            Delta::Thinking(text) if with_thoughts && !text.is_empty() => {
                vec![json!({ "text": text, "thought": true })]
            }
            Delta::ToolCall { id, name } => {
                let before = candidate.end_call();
                candidate.call = Some((id, name, String::new()));
                before.into_iter().collect()
            }
            Delta::ToolArguments(text) => {
                if let Some((_, _, arguments)) = &mut candidate.call {
                    arguments.push_str(&text);
                }
                Vec::new()
            }
            Delta::Cache(report) => {
                self.cache.get_or_insert(report);
                Vec::new()
            }
            Delta::Finished { reason, usage } => candidate.finish(reason, usage)?,
            Delta::Failed(failure) => return Err(ApiError::of_model(failure)),
            _ => Vec::new(),
        };
        Ok((parts, logprobs))
    }

    /// Adds a delta to the whole answer.
    pub(super) fn keep(&mut self, index: usize, delta: Delta) -> Result<(), ApiError> {
        let (parts, logprobs) = self.take(index, delta)?;
        let candidate = &mut self.candidates[index];
        candidate.logprobs.add(&logprobs);
        parts.into_iter().for_each(|part| candidate.keep(part));
        Ok(())
    }
}

impl Candidate {
    fn end_call(&mut self) -> Option<Value> {
        let (id, name, arguments) = self.call.take()?;
        let parsed = if arguments.is_empty() { Ok(json!({})) } else { serde_json::from_str::<Value>(&arguments) };
        Some(match parsed {
            Ok(parsed @ Value::Object(_)) => json!({ "functionCall": { "id": id, "name": name, "args": parsed } }),
            // This API has no place for them, and clients would run the function without.
            _ => {
                tracing::warn!(name, "the arguments of a call are no JSON object; it is shown as text");
                json!({ "text": format!("{name}({arguments})") })
            }
        })
    }

    /// The last parts. There is always one, as clients read the last object's text.
    fn finish(&mut self, reason: Finish, usage: Usage) -> Result<Vec<Value>, ApiError> {
        self.usage = usage;
        self.reason = Some(match reason {
            Finish::EndOfTurn | Finish::StopToken(_) | Finish::StopString(_) | Finish::GrammarDone | Finish::Paused => {
                "STOP"
            }
            Finish::Refused => "SAFETY",
            Finish::Length | Finish::Repetition | Finish::ContextFull | Finish::Deadline => "MAX_TOKENS",
            Finish::Cancelled => {
                let message = "the server cancelled this answer; send the request again";
                return Err(ApiError::new(ErrorCode::Unavailable, message));
            }
        });
        // An incomplete call is dropped.
        let is_incomplete = |arguments: &str| serde_json::from_str::<Value>(arguments).is_err();
        if self.reason != Some("STOP") {
            self.call.take_if(|(_, _, arguments)| is_incomplete(arguments));
        }
        Ok(vec![self.end_call().unwrap_or_else(|| json!({ "text": "" }))])
    }

    /// Adds a part, text to the text before it.
    fn keep(&mut self, part: Value) {
        let is_thought = |part: &Value| part.get("thought").is_some();
        if let Some(text) = part["text"].as_str()
            && let Some(last) = self.parts.last_mut()
        {
            if text.is_empty() {
                return;
            }
            if is_thought(last) == is_thought(&part)
                && let Some(Value::String(before)) = last.get_mut("text")
            {
                before.push_str(text);
                return;
            }
        }
        self.parts.push(part);
    }
}

fn entry(index: usize, parts: &[Value]) -> Value {
    json!({ "content": { "role": "model", "parts": parts }, "index": index })
}

impl EventEncoder for ContentEncoder {
    fn begin(&mut self) -> Frame {
        Frame::default()
    }

    fn delta(&mut self, choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        let (parts, tokens) = self.take(choice, delta)?;
        if parts.is_empty() && tokens.is_empty() {
            return Ok(Frame::default());
        }
        let mut entry = entry(choice, &parts);
        if let Some(alternatives) = self.head.logprobs.filter(|_| !tokens.is_empty()) {
            let mut logprobs = Logprobs::default();
            logprobs.add(&tokens);
            logprobs.add_to(&mut entry, alternatives);
        }
        let reason = self.candidates[choice].reason;
        if reason.is_some() {
            entry["finishReason"] = reason.into();
        }
        let mut object = self.object(&[entry]);
        if self.candidates.iter().all(|candidate| candidate.reason.is_some()) {
            object["usageMetadata"] = self.usage();
        }
        Ok(self.frame(&object).into())
    }

    /// Google's JavaScript SDK takes no comments between events, so an object without candidates is sent.
    fn keep_alive(&mut self) -> Frame {
        match self.form {
            Form::Events => {
                let object = json!({
                    "usageMetadata": { "promptTokenCount": self.head.input_tokens },
                    "modelVersion": self.head.model, "responseId": self.head.id,
                });
                self.frame(&object).into()
            }
            // White space, which may stand between the items of an array.
            Form::Array => "\n".into(),
        }
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        if self.candidates.iter().any(|candidate| candidate.reason.is_none()) {
            return Err(ended_early());
        }
        Ok(if self.form == Form::Array { "]".into() } else { Frame::default() })
    }

    /// In a stream of events the SDKs recognize an error that is no event, as Google's servers write it.
    fn error(&mut self, error: &ApiError) -> Frame {
        let body = body(&error.clipped());
        match self.form {
            Form::Events => format!("{body}\r\n\r\n").into_bytes().into(),
            Form::Array => {
                let mut bytes = self.frame(&body);
                bytes.push(b']');
                bytes.into()
            }
        }
    }
}
