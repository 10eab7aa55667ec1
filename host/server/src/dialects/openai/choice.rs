//! Converts deltas to the pieces of one choice in OpenAI's API, streamed or not.
//!
//! The API has no blocks that open and close: text and reasoning simply continue, tool calls have an index, and the
//! finish reason says the rest.

use serde_json::Value;

use crate::{
    chat::{CacheReport, Delta, TokenLogprob},
    dialects::{ApiError, ErrorCode},
};
use pensieve_protocol::job::{Finish, Usage};

use super::error::of_failure;

/// The end of an answer that looped; [`end_entry`] says it in the API's words.
const REPETITION: &str = "repetition";

/// A piece of an answer in terms of this API.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChoiceDelta {
    /// More of the answer; may be empty if there are only log-probabilities.
    Text {
        text: String,
        /// One per token, if the request asked for them.
        logprobs: Vec<TokenLogprob>,
    },
    Reasoning(String),
    Call {
        /// The call's index in the answer.
        place: usize,
        id: String,
        name: String,
    },
    /// More of the JSON text of a call's arguments.
    Arguments {
        place: usize,
        text: String,
    },
    /// The answer is complete, with its finish reason.
    End(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct ChoiceState {
    calls: usize,
    has_thought: bool,
    usage: Option<Usage>,
    cache: Option<CacheReport>,
    logprob_sum: f64,
    logprob_count: u32,
}

impl ChoiceState {
    /// The piece for a delta; `None` if the delta has none in this API.
    pub(super) fn take(&mut self, delta: Delta) -> Result<Option<ChoiceDelta>, ApiError> {
        Ok(match delta {
            Delta::Loading { .. } | Delta::Started { .. } | Delta::Prompt { .. } | Delta::Compacted { .. } => None,
            // They stand beside a piece, not in one.
            Delta::Unknown(_) => None,
            Delta::Cache(report) => {
                self.cache = Some(report);
                None
            }
            Delta::Thinking(text) => {
                self.has_thought = true;
                (!text.is_empty()).then_some(ChoiceDelta::Reasoning(text))
            }
            Delta::Text { text, logprobs } => {
                self.logprob_sum += logprobs.iter().map(|token| f64::from(token.logprob)).sum::<f64>();
                self.logprob_count += logprobs.len() as u32;
                (!text.is_empty() || !logprobs.is_empty()).then_some(ChoiceDelta::Text { text, logprobs })
            }
            Delta::ToolCall { id, name } => {
                self.calls += 1;
                let id = if id.starts_with("call_") { id } else { format!("call_{id}") };
                Some(ChoiceDelta::Call { place: self.calls - 1, id, name })
            }
            Delta::ToolArguments(text) => {
                let place = self.calls.checked_sub(1).filter(|_| !text.is_empty());
                place.map(|place| ChoiceDelta::Arguments { place, text })
            }
            Delta::Finished { reason, usage } => {
                self.usage = Some(usage);
                Some(ChoiceDelta::End(self.reason(reason)?))
            }
            Delta::Failed(failure) => return Err(of_failure(failure)),
        })
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    pub(super) fn cache(&self) -> Option<&CacheReport> {
        self.cache.as_ref()
    }

    pub(super) fn has_thought(&self) -> bool {
        self.has_thought
    }

    /// Mean log-probability of its tokens.
    pub(super) fn likelihood(&self) -> f64 {
        if self.logprob_count == 0 { 0.0 } else { self.logprob_sum / f64::from(self.logprob_count) }
    }

    fn reason(&self, finish: Finish) -> Result<&'static str, ApiError> {
        Ok(match finish {
            Finish::EndOfTurn | Finish::StopString(_) | Finish::StopToken(_) | Finish::GrammarDone | Finish::Paused => {
                if self.calls > 0 {
                    "tool_calls"
                } else {
                    "stop"
                }
            }
            Finish::Repetition => REPETITION,
            Finish::Refused => "content_filter",
            Finish::Length | Finish::ContextFull | Finish::Deadline => "length",
            // A client that cancelled does not read this, so the server did.
            Finish::Cancelled => {
                return Err(ApiError::new(
                    ErrorCode::Unavailable,
                    "the server cancelled this answer; send the request again",
                ));
            }
        })
    }
}

/// Adds the reason for its end to a choice. A loop counts as the token limit, as clients know no other word for it, and
/// `stop_reason`, a field of other local servers', tells it apart.
pub(super) fn end_entry(entry: &mut Value, reason: Option<&str>) {
    if reason == Some(REPETITION) {
        entry["finish_reason"] = "length".into();
        entry["stop_reason"] = REPETITION.into();
    } else {
        entry["finish_reason"] = reason.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn finished(reason: Finish) -> Delta {
        Delta::Finished { reason, usage: Usage { prompt: 3, reused: 1, generated: 2 } }
    }

    fn text(text: &str) -> Delta {
        Delta::Text { text: text.into(), logprobs: Vec::new() }
    }

    #[test]
    fn calls_are_counted_and_named() {
        let deltas = [
            Delta::Started { reused_tokens: 1 },
            Delta::Thinking("hm".into()),
            text(""),
            text("so"),
            Delta::ToolCall { id: "a".into(), name: "add".into() },
            Delta::ToolArguments("{}".into()),
            Delta::ToolCall { id: "call_b".into(), name: "sub".into() },
            Delta::ToolArguments("{\"x\"".into()),
            Delta::ToolArguments(":1}".into()),
            finished(Finish::EndOfTurn),
        ];
        let mut progress = ChoiceState::default();
        let pieces: Vec<ChoiceDelta> =
            deltas.into_iter().filter_map(|delta| progress.take(delta).unwrap_or_default()).collect();
        let arguments = |place, text: &str| ChoiceDelta::Arguments { place, text: text.into() };
        let call = |place, id: &str, name: &str| ChoiceDelta::Call { place, id: id.into(), name: name.into() };
        let expect = vec![
            ChoiceDelta::Reasoning("hm".into()),
            ChoiceDelta::Text { text: "so".into(), logprobs: Vec::new() },
            call(0, "call_a", "add"),
            arguments(0, "{}"),
            call(1, "call_b", "sub"),
            arguments(1, "{\"x\""),
            arguments(1, ":1}"),
            ChoiceDelta::End("tool_calls"),
        ];
        assert_eq!(pieces, expect);
        assert!(progress.has_thought());
        assert_eq!(progress.usage(), Some(Usage { prompt: 3, reused: 1, generated: 2 }));
    }

    #[test]
    fn every_end_has_a_reason_that_clients_know() {
        let end = |finish| ChoiceState::default().take(finished(finish)).ok().flatten();
        for finish in [Finish::EndOfTurn, Finish::StopString(0), Finish::StopToken(7), Finish::GrammarDone] {
            assert_eq!(end(finish), Some(ChoiceDelta::End("stop")));
        }
        for finish in [Finish::Length, Finish::ContextFull, Finish::Deadline] {
            assert_eq!(end(finish), Some(ChoiceDelta::End("length")));
        }
        assert_eq!(end(Finish::Repetition), Some(ChoiceDelta::End(REPETITION)));
        assert_eq!(end(Finish::Refused), Some(ChoiceDelta::End("content_filter")));
        assert_eq!(end(Finish::Paused), Some(ChoiceDelta::End("stop")));
        let mut entry = json!({});
        end_entry(&mut entry, Some(REPETITION));
        assert_eq!(entry, json!({ "finish_reason": "length", "stop_reason": "repetition" }));
        assert_eq!(end(Finish::Cancelled), None);
        let mut called = ChoiceState { calls: 1, ..ChoiceState::default() };
        assert_eq!(called.take(finished(Finish::Length)), Ok(Some(ChoiceDelta::End("length"))));
    }
}
