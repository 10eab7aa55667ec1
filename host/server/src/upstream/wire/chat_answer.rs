//! Streams of chat completions and completions as deltas. Chunks come from another server: what they lack is taken as absent,
//! and what they must not have ends the answer.

use serde::Deserialize;
use serde_json::Value;

use super::super::failure;
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
/// Alternatives per token.
const TOP_MAX: usize = 64;

/// What is known of a request when its answer is read.
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
}

#[derive(Debug)]
pub(crate) struct ChatReader {
    expected: Expected,
    /// The server's index of the call that is open.
    call: Option<u64>,
    calls: usize,
    bytes: usize,
    pieces: u32,
    finish: Option<Finish>,
    usage: Option<Usage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<ChunkUsage>,
    timings: Option<Timings>,
    error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Option<ChunkDelta>,
    text: Option<String>,
    finish_reason: Option<String>,
    /// vLLM's: the stop string or token.
    stop_reason: Option<Value>,
    /// SGLang's.
    matched_stop: Option<Value>,
    logprobs: Option<Logprobs>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChunkDelta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Call {
    index: Option<u64>,
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
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

/// llama.cpp's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Timings {
    cache_n: Option<u64>,
}

/// Of chat completions, or of completions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logprobs {
    content: Option<Vec<Token>>,
    tokens: Option<Vec<String>>,
    token_logprobs: Option<Vec<Option<f32>>>,
    top_logprobs: Option<Vec<Option<serde_json::Map<String, Value>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Token {
    token: String,
    bytes: Option<Vec<u8>>,
    logprob: Option<f32>,
    top_logprobs: Option<Vec<Token>>,
}

impl ChatReader {
    pub(crate) fn new(expected: Expected) -> Self {
        Self { expected, call: None, calls: 0, bytes: 0, pieces: 0, finish: None, usage: None }
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
        let chunk: Chunk =
            serde_json::from_slice(data).map_err(|_| self.nonsense("sent what is no chunk of an answer"))?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(failure::in_stream(&self.expected.model, &error, self.expected.key.as_ref()));
        }
        if let Some(usage) = chunk.usage {
            self.count(&usage, chunk.timings.as_ref());
        }
        // Only one choice is ever asked for.
        if let Some(choice) = chunk.choices.unwrap_or_default().into_iter().next() {
            self.choice(choice, deltas)?;
        }
        Ok(false)
    }

    /// The last delta. An answer without a reason for its end was cut off.
    pub(crate) fn finish(&self) -> Result<Delta, Failure> {
        let Some(reason) = self.finish else { return Err(self.nonsense("broke off in the middle of its answer")) };
        let estimated = Usage { prompt: self.expected.prompt, reused: 0, generated: self.pieces };
        Ok(Delta::Finished { reason, usage: self.usage.unwrap_or(estimated) })
    }

    fn choice(&mut self, choice: Choice, deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        let delta = choice.delta.unwrap_or_default();
        if let Some(thought) = delta.reasoning_content.or(delta.reasoning).filter(|text| !text.is_empty()) {
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::Thinking(thought));
        }
        let text = delta.content.or(choice.text).or(delta.refusal).unwrap_or_default();
        let logprobs = choice.logprobs.filter(|_| self.expected.logprobs).map(likelihoods).unwrap_or_default();
        if !text.is_empty() || !logprobs.is_empty() {
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::Text { text, logprobs });
        }
        for call in delta.tool_calls.unwrap_or_default() {
            self.call(call, deltas)?;
        }
        if let Some(reason) = choice.finish_reason {
            self.finish = Some(self.reason(&reason, choice.stop_reason.or(choice.matched_stop).as_ref())?);
        }
        Ok(())
    }

    fn call(&mut self, call: Call, deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        let Function { name, arguments } = call.function.unwrap_or_default();
        let name = name.filter(|name| !name.is_empty());
        // Without an index, a name begins the next call.
        let index = call.index.or(self.call.filter(|_| name.is_none())).unwrap_or(self.calls as u64);
        if self.call != Some(index) {
            let Some(name) = name else {
                return Err(
                    self.nonsense("sent arguments of a call that it did not name, or went back to an earlier one")
                );
            };
            self.calls += 1;
            if self.calls > CALLS_MAX {
                return Err(self.nonsense("called too many tools"));
            }
            self.call = Some(index);
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::ToolCall { id: fresh_id(""), name });
        }
        if let Some(arguments) = arguments.filter(|text| !text.is_empty()) {
            self.pieces = self.pieces.saturating_add(1);
            deltas.push(Delta::ToolArguments(arguments));
        }
        Ok(())
    }

    fn reason(&self, reason: &str, stop: Option<&Value>) -> Result<Finish, Failure> {
        Ok(match reason {
            "length" if self.expected.clamped => Finish::ContextFull,
            "length" => Finish::Length,
            "abort" | "error" => return Err(self.nonsense("ended its answer early")),
            "repetition" => Finish::Repetition,
            _ => {
                let is_it =
                    |stop: &Value| self.expected.stops.iter().position(|own| stop.as_str() == Some(own.as_str()));
                let place = stop.and_then(is_it).and_then(|place| u32::try_from(place).ok());
                place.map_or(Finish::EndOfTurn, Finish::StopString)
            }
        })
    }

    fn count(&mut self, usage: &ChunkUsage, timings: Option<&Timings>) {
        let tokens = |count: Option<u64>| count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let cached = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let cached = cached.or_else(|| timings.and_then(|timings| timings.cache_n));
        let prompt = tokens(usage.prompt_tokens).unwrap_or(self.expected.prompt);
        self.usage = Some(Usage {
            prompt,
            reused: tokens(cached).unwrap_or(0).min(prompt),
            generated: tokens(usage.completion_tokens).unwrap_or(self.pieces),
        });
    }

    fn nonsense(&self, what: &str) -> Failure {
        failure::nonsense(&self.expected.model, what)
    }
}

fn likelihoods(logprobs: Logprobs) -> Vec<TokenLogprob> {
    if let Some(content) = logprobs.content {
        return content.into_iter().map(likelihood).collect();
    }
    let mut tops = logprobs.top_logprobs.unwrap_or_default().into_iter();
    let numbers = logprobs.token_logprobs.unwrap_or_default();
    let tokens = logprobs.tokens.unwrap_or_default().into_iter().zip(numbers);
    let of =
        |token: String, logprob: f32| TokenLogprob { bytes: token.into_bytes(), logprob, ..TokenLogprob::default() };
    tokens
        .map(|(token, logprob)| {
            let top = tops.next().flatten().unwrap_or_default().into_iter().take(TOP_MAX);
            #[allow(clippy::cast_possible_truncation, reason = "a logarithm needs no more digits")]
            let mut top: Vec<TokenLogprob> =
                top.map(|(token, number)| of(token, number.as_f64().unwrap_or(-9999.0) as f32)).collect();
            top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
            TokenLogprob { top, ..of(token, logprob.unwrap_or(0.0)) }
        })
        .collect()
}

/// Ids of another server's tokens say nothing here.
fn likelihood(token: Token) -> TokenLogprob {
    let top = token.top_logprobs.unwrap_or_default().into_iter().take(TOP_MAX);
    let top = top.map(|token| likelihood(Token { top_logprobs: None, ..token })).collect();
    let bytes = token.bytes.unwrap_or_else(|| token.token.into_bytes());
    TokenLogprob { id: 0, bytes, logprob: token.logprob.unwrap_or(-9999.0), top }
}

#[cfg(test)]
#[path = "chat_answer_tests.rs"]
mod tests;
