//! Anthropic's API: messages, with and without streaming, token counting, and the list of models.
//!
//! Deliberate deviations from the original:
//! - `max_tokens` is capped at what fits the context. `thinking.budget_tokens` and `output_config.effort` limit the
//!   reasoning, and are passed to the template as `thinking_budget` and `reasoning_effort`.
//! - The signature of a thinking block is a digest of its text, since clients require one. Any signature is accepted, because
//!   conversations may come from other servers; redacted thinking is dropped, because it cannot be decrypted here.
//! - Tools of types with public schemas (`bash_…`, `text_editor_…`, `memory_…`) are offered as ordinary tools with those
//!   schemas. Tools that only Anthropic's servers can run (`web_search_…`, `code_execution_…`) are dropped with a warning,
//!   and an image or document becomes a note in the prompt, unless a setting makes it an error.
//! - `cache_control` is accepted and ignored: every prompt is cached for its client, so tokens that are not read from the cache
//!   count as plain input, and none as cache creation.
//! - Tools with `defer_loading` are written where a `tool_reference` names them. If only Anthropic's own search could find
//!   them, which is not served, they are loaded like others.
//! - A request whose last text begins by forbidding calls gets none, as Claude Code's summaries need.
//! - A message with the role `system` keeps its position, but moves after the results of pending tool calls. Claude Code's
//!   billing line, which differs in every request, is removed from prompts.

mod billing;
mod content;
mod context_management;
mod conversation;
mod deferred;
mod encoder;
mod error;
mod events;
mod known_tools;
mod no_calls;
mod request;
mod tools;

#[cfg(test)]
mod tests;

pub(crate) use error::envelope;

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, Frame,
    compaction::Start,
    fresh_id,
    stream::{self, EventEncoder, Generations},
    validation,
};
use crate::{
    chat::{Delta, Form, Request},
    requests::{Chats, Fitted},
};
use encoder::{Head, MessageBuilder, MessageEncoder};
use events::{Diagnostics, Event};
use request::MessageRequest;

/// How long after the request to wait for a first event before the status is sent, so that a worker's immediate refusal
/// gets its own status. Clients should see a stream start within 100 ms.
const FIRST_EVENT: Duration = Duration::from_millis(60);
/// Minimum wait if reading the prompt took long.
const FIRST_EVENT_MIN: Duration = Duration::from_millis(20);

/// `POST /v1/messages`, and `/v1/messages/stream`, which always streams.
pub(crate) async fn messages(
    chats: Arc<Chats>,
    call: ApiRequest,
    always_stream: bool,
) -> Result<ApiResponse, ApiError> {
    let first_event = Instant::now() + FIRST_EVENT;
    let (MessageRequest { request, stream, manages, diagnosed }, warnings) =
        call.read_conversation(&chats, |_, body| request::message(body)).await?;
    let permit = (stream || always_stream).then(|| call.stream_permit()).transpose()?;
    let (name, stops) = (request.model.clone(), request.stops.clone());
    let model = validation::model_name(&call, &name).to_owned();
    let request = Request { client: call.client(), model, form: Form::Messages, ..request };
    validation::check(&chats, &request)?;
    let Fitted { request, applied, compaction } = chats.fit(request, 0).await?;
    let start = Start::prepare(&chats, request, compaction).await?;
    let (id, input_tokens) = (fresh_id("msg_"), start.input_tokens());
    let diagnostics = diagnosed.map_or(Diagnostics::NotAsked, |previous| {
        Diagnostics::Asked(start.divergence(Some(previous.as_str()).filter(|id| !id.is_empty()), &id))
    });
    let edits = manages.then_some(applied);
    let encoder = MessageEncoder::new(Head { id, model: name, input_tokens, edits, diagnostics }, stops);
    let first_event = first_event.max(Instant::now() + FIRST_EVENT_MIN);
    let generations = start.generations(&call, first_event).await?;
    let answer = match permit {
        Some(permit) => {
            let encoder = MessageEvents { encoder, request_id: call.request_id };
            ApiResponse::events(stream::frames(encoder, generations), permit)
        }
        None => collect(encoder, generations).await?,
    };
    Ok(answer.with_warnings(warnings))
}

/// `POST /v1/messages/count_tokens`: counts the tokens of the prompt that the same message would have.
pub(crate) async fn count_tokens(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let ((request, manages), mut warnings) = call.read_conversation(&chats, |_, body| request::count(body)).await?;
    let model = validation::model_name(&call, &request.model).to_owned();
    let request = Request { client: call.client(), model, ..request };
    if !manages {
        let tokens = chats.count(request).await?.told(&mut warnings);
        return Ok(ApiResponse::json(&json!({ "input_tokens": tokens })).with_warnings(warnings));
    }
    let original = chats.count(request.clone()).await?.told(&mut warnings);
    let edited = chats.fit(request, 0).await?;
    let tokens = if edited.applied.is_empty() { original } else { chats.count(edited.request).await?.tokens };
    let management = json!({ "original_input_tokens": original });
    let body = json!({ "input_tokens": tokens, "context_management": management });
    Ok(ApiResponse::json(&body).with_warnings(warnings))
}

struct MessageEvents {
    encoder: MessageEncoder,
    request_id: String,
}

impl MessageEvents {
    fn frame(&self, events: &[Event]) -> Frame {
        events.iter().flat_map(|event| event.frame(&self.request_id)).collect::<Vec<u8>>().into()
    }
}

impl EventEncoder for MessageEvents {
    fn begin(&mut self) -> Frame {
        self.frame(&self.encoder.begin())
    }

    fn delta(&mut self, _choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        let events = self.encoder.take(delta)?;
        Ok(self.frame(&events))
    }

    fn keep_alive(&mut self) -> Frame {
        self.frame(&[Event::Ping])
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        if self.encoder.is_over() { Ok(Frame::default()) } else { Err(stream::ended_early()) }
    }

    fn error(&mut self, error: &ApiError) -> Frame {
        self.frame(&[Event::Error(error.clone())])
    }
}

/// Assembles a message from the events of a stream, as a client would.
async fn collect(mut encoder: MessageEncoder, mut generations: Generations) -> Result<ApiResponse, ApiError> {
    let mut message = MessageBuilder::default();
    encoder.begin().into_iter().for_each(|event| message.add(event));
    while let Some((_, delta)) = generations.gather().await? {
        encoder.take(delta)?.into_iter().for_each(|event| message.add(event));
    }
    if !encoder.is_over() {
        return Err(stream::ended_early());
    }
    Ok(ApiResponse::json(&message.json()))
}
