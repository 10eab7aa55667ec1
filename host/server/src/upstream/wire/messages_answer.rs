//! Streams of Anthropic's Messages as deltas.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{super::failure, bounded, chat_answer::Expected, unknown::UnknownFields};
use crate::{chat::Delta, ids::fresh_id};
use pensieve_protocol::job::{Failure, Finish, Usage};

/// Blocks in one answer.
const BLOCKS_MAX: usize = 1024;
/// Bytes of one answer: more than any context holds.
const ANSWER_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct MessagesReader {
    expected: Expected,
    blocks: usize,
    bytes: usize,
    /// A call is open.
    is_call: bool,
    finish: Option<Finish>,
    usage: Usage,
    unknown: UnknownFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event<'a> {
    r#type: String,
    message: Option<Message>,
    content_block: Option<Block>,
    delta: Option<EventDelta>,
    usage: Option<EventUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    usage: Option<EventUsage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Block {
    r#type: String,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventDelta {
    text: Option<String>,
    thinking: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventUsage {
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl MessagesReader {
    pub(crate) fn new(expected: Expected) -> Self {
        let usage = Usage { prompt: expected.prompt, ..Usage::default() };
        let unknown = UnknownFields::default();
        Self { expected, blocks: 0, bytes: 0, is_call: false, finish: None, usage, unknown }
    }

    /// Reads the data of one event. Returns true after the last one.
    pub(crate) fn read(&mut self, data: &[u8], deltas: &mut Vec<Delta>) -> Result<bool, Failure> {
        self.bytes += data.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(self.nonsense("sent an answer without an end"));
        }
        let event: Event<'_> =
            serde_json::from_slice(data).map_err(|_| self.nonsense("sent what is no event of an answer"))?;
        if self.expected.passes_unknown {
            self.unknown.event(data, self.expected.key.as_ref());
        }
        match event.r#type.as_str() {
            "message_start" => self.count(event.message.and_then(|message| message.usage)),
            "content_block_start" => {
                self.blocks += 1;
                if self.blocks > BLOCKS_MAX {
                    return Err(self.nonsense("sent too many blocks"));
                }
                let block = event.content_block.unwrap_or_default();
                self.is_call = block.r#type == "tool_use";
                if self.is_call {
                    let Some(name) = block.name else {
                        return Err(self.nonsense("called a tool without a name"));
                    };
                    deltas.push(Delta::ToolCall { id: fresh_id(""), name });
                }
            }
            "content_block_delta" => {
                let delta = event.delta.unwrap_or_default();
                let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
                if let Some(text) = filled(delta.text) {
                    deltas.push(Delta::Text { text, logprobs: Vec::new() });
                } else if let Some(thought) = filled(delta.thinking) {
                    deltas.push(Delta::Thinking(thought));
                } else if let Some(json) = filled(delta.partial_json).filter(|_| self.is_call) {
                    deltas.push(Delta::ToolArguments(json));
                }
            }
            "message_delta" => {
                self.count(event.usage);
                self.finish = Some(self.reason(&event.delta.unwrap_or_default())?);
            }
            "message_stop" => return Ok(true),
            "error" => {
                let error = bounded::error(event.error);
                return Err(failure::in_stream(&self.expected.model, &error, self.expected.key.as_ref()));
            }
            // `ping`, `content_block_stop`, and what comes later.
            _ => {}
        }
        Ok(false)
    }

    /// Fields that belong to the end.
    pub(crate) fn unknown(&mut self) -> Option<Delta> {
        self.unknown.take()
    }

    /// The last delta. An answer without a reason for its end was cut off.
    pub(crate) fn finish(&self) -> Result<Delta, Failure> {
        match self.finish {
            Some(reason) => Ok(Delta::Finished { reason, usage: self.usage }),
            None => Err(self.nonsense("broke off in the middle of its answer")),
        }
    }

    fn reason(&self, delta: &EventDelta) -> Result<Finish, Failure> {
        Ok(match delta.stop_reason.as_deref().unwrap_or_default() {
            "max_tokens" if self.expected.clamped => Finish::ContextFull,
            "max_tokens" => Finish::Length,
            "model_context_window_exceeded" => Finish::ContextFull,
            "refusal" => Finish::Refused,
            "pause_turn" => Finish::Paused,
            "stop_sequence" => {
                let stop = delta.stop_sequence.as_deref();
                let place = self.expected.stops.iter().position(|own| Some(own.as_str()) == stop);
                place.and_then(|place| u32::try_from(place).ok()).map_or(Finish::EndOfTurn, Finish::StopString)
            }
            "" => return Err(self.nonsense("ended its answer without a reason")),
            _ => Finish::EndOfTurn,
        })
    }

    /// The API counts what comes from a cache apart.
    fn count(&mut self, usage: Option<EventUsage>) {
        let Some(usage) = usage else { return };
        let tokens = |count: Option<u64>| count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        if let Some(input) = tokens(usage.input_tokens) {
            let reused = tokens(usage.cache_read_input_tokens).unwrap_or(0);
            let written = tokens(usage.cache_creation_input_tokens).unwrap_or(0);
            self.usage.prompt = input.saturating_add(reused).saturating_add(written);
            self.usage.reused = reused;
        }
        if let Some(output) = tokens(usage.output_tokens) {
            self.usage.generated = output;
        }
    }

    fn nonsense(&self, what: &str) -> Failure {
        failure::nonsense(&self.expected.model, what)
    }
}

#[cfg(test)]
#[path = "messages_answer_tests.rs"]
mod tests;
