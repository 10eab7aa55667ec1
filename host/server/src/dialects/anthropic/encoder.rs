//! Converts deltas to events in the order that every client accepts: one block is open at a time, indices ascend, and
//! nothing follows the end. A message that is not streamed is assembled from the same events.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    content::CALL_PREFIX,
    events::{Block, Diagnostics, Event, Piece, REPETITION, Report, Stop},
};
use crate::{
    chat::{AppliedEdit, Delta, add_fields},
    dialects::{ApiError, ErrorCode},
};
use pensieve_protocol::job::Finish;

/// The part of a message that is known before generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) id: String,
    /// The model name from the client.
    pub(super) model: String,
    pub(super) input_tokens: u32,
    /// Edits of the conversation; `None` if the request asks for none.
    pub(super) edits: Option<Vec<AppliedEdit>>,
    pub(super) diagnostics: Diagnostics,
}

#[derive(Debug)]
pub(super) struct MessageEncoder {
    head: Head,
    stops: Vec<String>,
    open: Option<Open>,
    /// Index of the open block, or of the next one.
    index: usize,
    has_called: bool,
    report: Report,
    is_over: bool,
}

#[derive(Debug)]
enum Open {
    Text,
    Thinking(Sha256),
    Call { has_arguments: bool },
}

impl MessageEncoder {
    pub(super) fn new(head: Head, stops: Vec<String>) -> Self {
        let report = Report { edits: head.edits.clone(), ..Report::default() };
        Self { head, stops, open: None, index: 0, has_called: false, report, is_over: false }
    }

    /// Events that are sent before prefill.
    pub(super) fn begin(&self) -> Vec<Event> {
        let Head { id, model, input_tokens, diagnostics, .. } = self.head.clone();
        vec![Event::MessageStart { id, model, input_tokens, diagnostics }, Event::Ping]
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn take(&mut self, delta: Delta) -> Result<Vec<Event>, ApiError> {
        let mut out = Vec::new();
        match delta {
            Delta::Loading { .. } | Delta::Started { .. } | Delta::Prompt { .. } => {}
            Delta::Cache(report) => self.report.cache = Some(report),
            Delta::Unknown(unknown) => self.report.unknown.add(*unknown),
            Delta::Text { text, .. } => {
                if !text.is_empty() {
                    if !matches!(self.open, Some(Open::Text)) {
                        self.open(Open::Text, Block::Text, &mut out);
                    }
                    out.push(self.piece(Piece::Text(text)));
                }
            }
            Delta::Thinking(text) => {
                if !text.is_empty() {
                    if !matches!(self.open, Some(Open::Thinking(_))) {
                        self.open(Open::Thinking(Sha256::new()), Block::Thinking, &mut out);
                    }
                    if let Some(Open::Thinking(digest)) = &mut self.open {
                        digest.update(&text);
                    }
                    out.push(self.piece(Piece::Thinking(text)));
                }
            }
            Delta::ToolCall { id, name } => {
                self.has_called = true;
                let block = Block::ToolUse { id: format!("{CALL_PREFIX}{id}"), name };
                self.open(Open::Call { has_arguments: false }, block, &mut out);
            }
            Delta::ToolArguments(text) => {
                if let Some(Open::Call { has_arguments }) = &mut self.open
                    && !text.is_empty()
                {
                    *has_arguments = true;
                    out.push(self.piece(Piece::Json(text)));
                }
            }
            Delta::Finished { reason, usage } => {
                let stop = self.stop(reason)?;
                self.report.usage = usage;
                self.end(stop, &mut out);
            }
            Delta::Compacted { summary, usage, is_last } => {
                self.report.compaction = Some(usage);
                self.close(&mut out);
                out.push(Event::BlockStart { index: self.index, block: Block::Compaction });
                out.extend([self.piece(Piece::Compaction(summary)), Event::BlockStop { index: self.index }]);
                self.index += 1;
                if is_last {
                    self.end(Stop { reason: "compaction", sequence: None }, &mut out);
                }
            }
            Delta::Failed(failure) => return Err(failure.into()),
        }
        Ok(out)
    }

    fn end(&mut self, stop: Stop, out: &mut Vec<Event>) {
        self.close(out);
        out.extend([Event::MessageDelta { stop, report: std::mem::take(&mut self.report) }, Event::MessageStop]);
        self.is_over = true;
    }

    fn piece(&self, piece: Piece) -> Event {
        Event::BlockDelta { index: self.index, piece }
    }

    fn open(&mut self, open: Open, block: Block, out: &mut Vec<Event>) {
        self.close(out);
        self.open = Some(open);
        out.push(Event::BlockStart { index: self.index, block });
    }

    fn close(&mut self, out: &mut Vec<Event>) {
        let last = match self.open.take() {
            None => return,
            Some(Open::Text | Open::Call { has_arguments: true }) => None,
            Some(Open::Thinking(digest)) => Some(Piece::Signature(format!("{:x}", digest.finalize()))),
            // Clients parse the collected text, and an empty one is not valid JSON.
            Some(Open::Call { has_arguments: false }) => Some(Piece::Json("{}".into())),
        };
        out.extend(last.map(|piece| self.piece(piece)));
        out.push(Event::BlockStop { index: self.index });
        self.index += 1;
    }

    fn stop(&self, finish: Finish) -> Result<Stop, ApiError> {
        let because = |reason| Ok(Stop { reason, sequence: None });
        match finish {
            Finish::StopString(place) => {
                let sequence = usize::try_from(place).ok().and_then(|place| self.stops.get(place));
                match sequence {
                    Some(sequence) => Ok(Stop { reason: "stop_sequence", sequence: Some(sequence.clone()) }),
                    None => because("end_turn"),
                }
            }
            Finish::EndOfTurn | Finish::StopToken(_) | Finish::GrammarDone => {
                because(if self.has_called { "tool_use" } else { "end_turn" })
            }
            Finish::Length => because("max_tokens"),
            Finish::Refused => because("refusal"),
            Finish::Paused => because("pause_turn"),
            Finish::Repetition => because(REPETITION),
            Finish::ContextFull => because("model_context_window_exceeded"),
            Finish::Deadline => Err(ApiError::new(ErrorCode::Timeout, "the answer took longer than it may")),
            Finish::Cancelled => Err(ApiError::new(ErrorCode::Internal, "the answer was cancelled")),
        }
    }
}

/// Assembles a message from its events.
#[derive(Debug, Default)]
pub(super) struct MessageBuilder {
    id: String,
    model: String,
    blocks: Vec<(Block, String, String)>,
    stop: Option<Stop>,
    report: Report,
    diagnostics: Diagnostics,
}

impl MessageBuilder {
    /// Adds an event. Errors are not part of a message; they are returned instead of it.
    pub(super) fn add(&mut self, event: Event) {
        match event {
            Event::MessageStart { id, model, diagnostics, .. } => {
                (self.id, self.model, self.diagnostics) = (id, model, diagnostics);
            }
            Event::BlockStart { block, .. } => self.blocks.push((block, String::new(), String::new())),
            Event::BlockDelta { piece, .. } => {
                if let Some((_, text, signature)) = self.blocks.last_mut() {
                    match piece {
                        Piece::Text(more) | Piece::Thinking(more) | Piece::Json(more) => text.push_str(&more),
                        Piece::Signature(more) => signature.push_str(&more),
                        Piece::Compaction(summary) => text.push_str(&summary.unwrap_or_default()),
                    }
                }
            }
            Event::MessageDelta { stop, report } => (self.stop, self.report) = (Some(stop), report),
            Event::Ping | Event::BlockStop { .. } | Event::MessageStop | Event::Error(_) => {}
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null,
        });
        self.report.write(&mut message);
        self.diagnostics.write(&mut message);
        if let Some(stop) = &self.stop {
            stop.write(&mut message);
        }
        let is_cut = message["stop_reason"] != "tool_use";
        message["content"] = self.blocks.iter().map(|block| block_json(block, is_cut)).collect();
        add_fields(self.report.unknown.answer.clone(), &mut message);
        add_fields(self.report.unknown.message.clone(), &mut message);
        message
    }
}

fn block_json((block, text, signature): &(Block, String, String), is_cut: bool) -> Value {
    match block {
        Block::Compaction => {
            let content = Some(text).filter(|text| !text.is_empty());
            json!({ "type": "compaction", "content": content, "encrypted_content": null })
        }
        Block::Text => json!({ "type": "text", "text": text }),
        Block::Thinking => json!({ "type": "thinking", "thinking": text, "signature": signature }),
        Block::ToolUse { id, name } => {
            let parsed = if text.is_empty() { Ok(json!({})) } else { serde_json::from_str(text) };
            let input = match parsed {
                Ok(input @ Value::Object(_)) => input,
                // Truncated arguments are not valid JSON; the stop reason shows that the message is incomplete.
                _ if is_cut => json!({}),
                // Clients would run the tool without arguments.
                _ => {
                    tracing::warn!(name, "the arguments of a call are no JSON object; it is shown as text");
                    return json!({ "type": "text", "text": format!("{name}({text})") });
                }
            };
            json!({ "type": "tool_use", "id": id, "name": name, "input": input })
        }
    }
}
