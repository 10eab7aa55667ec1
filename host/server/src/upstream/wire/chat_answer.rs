//! Streams of chat completions and completions as deltas. Chunks come from another server: what they lack is taken as absent,
//! and what they must not have ends the answer.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    super::failure,
    bounded::{self, Few, FewOf},
    pieces::{self, Pieces},
    unknown::UnknownFields,
};
use crate::{
    chat::{Delta, TokenLogprob},
    fleet::Secret,
    ids::fresh_id,
};
use pensieve_protocol::job::{Failure, Finish, Usage};

/// Calls in one answer.
const CALLS_MAX: usize = 256;
/// Bytes of one answer: more than any context holds.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Tokens of one chunk.
const TOKENS_MAX: usize = 4096;
/// Alternatives per token.
const TOP_MAX: usize = 64;

/// The parts of a request that the reader of its answer needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The model's id here, for errors.
    pub(crate) model: String,
    pub(crate) key: Option<Secret>,
    /// The client's stop strings, in its order.
    pub(crate) stops: Vec<String>,
    /// The limit of tokens was lowered because the context has no room for more.
    pub(crate) clamped: bool,
    pub(crate) logprobs: bool,
    /// Tokens of the prompt as far as they can be told; used if the server reports none.
    pub(crate) prompt: u32,
    /// The client speaks the server's own API, and gets the fields that are not known here.
    pub(crate) passes_unknown: bool,
}

#[derive(Debug)]
pub(crate) struct ChatReader {
    expected: Expected,
    /// The server's index of the call that is open.
    call: Option<u64>,
    /// The server's id of that call, if it has one.
    call_id: Option<String>,
    calls: usize,
    bytes: usize,
    pieces: u32,
    finish: Option<Finish>,
    usage: Option<Usage>,
    unknown: UnknownFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Chunk<'a> {
    /// Only one is ever asked for.
    #[serde(borrow)]
    choices: Option<Few<Choice<'a>, 1>>,
    usage: Option<ChunkUsage>,
    timings: Option<Timings>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<ChunkDelta<'a>>,
    text: Option<String>,
    finish_reason: Option<String>,
    /// vLLM's: the stop string or token.
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    /// SGLang's.
    #[serde(borrow)]
    matched_stop: Option<&'a RawValue>,
    /// Read only if they were asked for.
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChunkDelta<'a> {
    /// A text, or a list of pieces.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Few<Call, CALLS_MAX>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Call {
    index: Option<u64>,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChunkUsage {
    prompt_tokens: Option<f64>,
    completion_tokens: Option<f64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<f64>,
}

/// llama.cpp's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Timings {
    cache_n: Option<f64>,
}

/// Of chat completions, or of completions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logprobs {
    content: Option<Few<Token, TOKENS_MAX>>,
    tokens: Option<Few<String, TOKENS_MAX>>,
    token_logprobs: Option<Few<Option<f32>, TOKENS_MAX>>,
    top_logprobs: Option<Few<Option<FewOf<Option<f32>, TOP_MAX>>, TOKENS_MAX>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Token {
    token: String,
    bytes: Option<Vec<u8>>,
    logprob: Option<f32>,
    top_logprobs: Option<Few<Alternative, TOP_MAX>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Alternative {
    token: String,
    bytes: Option<Vec<u8>>,
    logprob: Option<f32>,
}

impl ChatReader {
    pub(crate) fn new(expected: Expected) -> Self {
        Self {
            expected,
            call: None,
            call_id: None,
            calls: 0,
            bytes: 0,
            pieces: 0,
            finish: None,
            usage: None,
            unknown: UnknownFields::default(),
        }
    }

    /// Reads the data of one event. Returns true after the last one.
    pub(crate) fn read(&mut self, data: &[u8], deltas: &mut Vec<Delta>) -> Result<bool, Failure> {
        if data == b"[DONE]" {
            return Ok(true);
        }
        self.bytes += data.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(self.nonsense("sent an answer without an end"));
        }
        let chunk: Chunk<'_> =
            serde_json::from_slice(data).map_err(|_| self.nonsense("sent what is no chunk of an answer"))?;
        if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
            let error = bounded::error(Some(error));
            return Err(failure::in_stream(&self.expected.model, &error, self.expected.key.as_ref()));
        }
        if let Some(usage) = chunk.usage {
            self.count(&usage, chunk.timings.as_ref());
        }
        let place = deltas.len();
        if let Some(choice) = chunk.choices.unwrap_or_default().items.into_iter().next() {
            self.choice(choice, deltas)?;
        }
        if self.expected.passes_unknown {
            self.unknown.chunk(data, self.expected.key.as_ref());
            // By themselves they are no piece of an answer.
            if deltas.len() > place
                && let Some(unknown) = self.unknown.take()
            {
                deltas.insert(place, unknown);
            }
        }
        Ok(false)
    }

    /// Fields that belong to the end.
    pub(crate) fn unknown(&mut self) -> Option<Delta> {
        self.unknown.take()
    }

    /// The last delta. An answer without a reason for its end was cut off.
    pub(crate) fn finish(&self) -> Result<Delta, Failure> {
        let Some(reason) = self.finish else { return Err(self.nonsense("broke off in the middle of its answer")) };
        let estimated = Usage { prompt: self.expected.prompt, reused: 0, generated: self.pieces };
        Ok(Delta::Finished { reason, usage: self.usage.unwrap_or(estimated) })
    }

    fn choice(&mut self, choice: Choice<'_>, deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        let delta = choice.delta.unwrap_or_default();
        let Pieces { text, thoughts } = match delta.content {
            Some(content) => pieces::read(content).ok_or_else(|| self.nonsense("sent content in another form"))?,
            None => Pieces::default(),
        };
        let thoughts = delta.reasoning_content.or(delta.reasoning).or(thoughts);
        if let Some(thought) = thoughts.filter(|text| !text.is_empty()) {
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::Thinking(thought));
        }
        let text = text.or(choice.text).or(delta.refusal).unwrap_or_default();
        let logprobs = match choice.logprobs.filter(|_| self.expected.logprobs) {
            Some(logprobs) => self.likelihoods(logprobs)?,
            None => Vec::new(),
        };
        if !text.is_empty() || !logprobs.is_empty() {
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::Text { text, logprobs });
        }
        let calls = delta.tool_calls.unwrap_or_default();
        if calls.has_more {
            return Err(self.nonsense("called too many tools"));
        }
        for call in calls.items {
            self.call(call, deltas)?;
        }
        if let Some(reason) = choice.finish_reason {
            self.finish = Some(self.reason(&reason, choice.stop_reason.or(choice.matched_stop))?);
        }
        Ok(())
    }

    fn call(&mut self, call: Call, deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        let Function { name, arguments } = call.function.unwrap_or_default();
        let name = name.filter(|name| !name.is_empty());
        // Without an index, a name begins the next call.
        let index = call.index.or(self.call.filter(|_| name.is_none())).unwrap_or(self.calls as u64);
        let id = call.id.filter(|id| !id.is_empty());
        // Google's server gives all calls one index.
        let is_another = name.is_some() && id.is_some() && self.call_id.is_some() && id != self.call_id;
        if self.call != Some(index) || is_another {
            let Some(name) = name else {
                return Err(
                    self.nonsense("sent arguments of a call that it did not name, or went back to an earlier one")
                );
            };
            self.calls += 1;
            if self.calls > CALLS_MAX {
                return Err(self.nonsense("called too many tools"));
            }
            (self.call, self.call_id) = (Some(index), id);
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::ToolCall { id: fresh_id(""), name });
        }
        if let Some(arguments) = arguments.filter(|text| !text.is_empty()) {
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::ToolArguments(arguments));
        }
        Ok(())
    }

    fn reason(&self, reason: &str, stop: Option<&RawValue>) -> Result<Finish, Failure> {
        Ok(match reason {
            "length" if self.expected.clamped => Finish::ContextFull,
            "length" => Finish::Length,
            // Mistral's.
            "model_length" => Finish::ContextFull,
            // The last one is DeepSeek's.
            "abort" | "error" | "insufficient_system_resource" => {
                return Err(self.nonsense("ended its answer early"));
            }
            "repetition" => Finish::Repetition,
            "content_filter" | "refusal" => Finish::Refused,
            "pause_turn" => Finish::Paused,
            _ => {
                let stop: Option<String> = stop.and_then(|stop| serde_json::from_str(stop.get()).ok());
                let place = stop.and_then(|stop| self.expected.stops.iter().position(|own| *own == stop));
                let place = place.and_then(|place| u32::try_from(place).ok());
                place.map_or(Finish::EndOfTurn, Finish::StopString)
            }
        })
    }

    fn count(&mut self, usage: &ChunkUsage, timings: Option<&Timings>) {
        // Some servers count in other numbers, and llama.cpp says -1 for "not known".
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked or saturates")]
        let tokens = |count: Option<f64>| count.filter(|count| *count >= 0.0).map(|count| count as u32);
        let cached = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let cached = cached.or_else(|| timings.and_then(|timings| timings.cache_n));
        let prompt = tokens(usage.prompt_tokens).unwrap_or(self.expected.prompt);
        self.usage = Some(Usage {
            prompt,
            reused: tokens(cached).unwrap_or(0).min(prompt),
            generated: tokens(usage.completion_tokens).unwrap_or(self.pieces),
        });
    }

    fn likelihoods(&self, logprobs: &RawValue) -> Result<Vec<TokenLogprob>, Failure> {
        let read: Logprobs = serde_json::from_str(logprobs.get())
            .map_err(|_| self.nonsense("sent log-probabilities in another form"))?;
        let is_long = read.content.as_ref().is_some_and(|list| list.has_more)
            || read.tokens.as_ref().is_some_and(|list| list.has_more);
        if is_long {
            return Err(self.nonsense("sent too many tokens at once"));
        }
        Ok(likelihoods(read))
    }

    fn nonsense(&self, what: &str) -> Failure {
        failure::nonsense(&self.expected.model, what)
    }
}

fn likelihoods(logprobs: Logprobs) -> Vec<TokenLogprob> {
    if let Some(content) = logprobs.content {
        return content.items.into_iter().map(likelihood).collect();
    }
    let mut tops = logprobs.top_logprobs.unwrap_or_default().items.into_iter();
    let numbers = logprobs.token_logprobs.unwrap_or_default().items;
    let tokens = logprobs.tokens.unwrap_or_default().items.into_iter().zip(numbers);
    let of =
        |token: String, logprob: f32| TokenLogprob { bytes: token.into_bytes(), logprob, ..TokenLogprob::default() };
    tokens
        .map(|(token, logprob)| {
            let top = tops.next().flatten().map(|FewOf(top)| top).unwrap_or_default().into_iter();
            let mut top: Vec<TokenLogprob> = top.map(|(token, number)| of(token, number.unwrap_or(-9999.0))).collect();
            top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
            TokenLogprob { top, ..of(token, logprob.unwrap_or(0.0)) }
        })
        .collect()
}

/// Ids of another server's tokens say nothing here.
fn likelihood(token: Token) -> TokenLogprob {
    let of = |token: String, bytes: Option<Vec<u8>>, logprob: Option<f32>| TokenLogprob {
        bytes: bytes.unwrap_or_else(|| token.into_bytes()),
        logprob: logprob.unwrap_or(-9999.0),
        ..TokenLogprob::default()
    };
    let top = token.top_logprobs.unwrap_or_default().items.into_iter();
    let top = top.map(|top| of(top.token, top.bytes, top.logprob)).collect();
    TokenLogprob { top, ..of(token.token, token.bytes, token.logprob) }
}

#[cfg(test)]
#[path = "chat_answer_tests.rs"]
mod tests;
