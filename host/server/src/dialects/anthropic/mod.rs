//! Anthropic's API: messages, whole and streamed, the counting of tokens, and the list of models.
//!
//! What deviates from the original, on purpose:
//! - `max_tokens` beyond the room that is left is that room. `thinking.budget_tokens` is handed to the template as
//!   `thinking_budget`, which few heed, and `output_config.effort` as `reasoning_effort`.
//! - A signature of a thinking block is a digest of its text, since clients want one. Any signature is accepted, because
//!   conversations come here from other servers; redacted thinking is dropped, because it cannot be read here.
//! - Tools of types whose schemas are public (`bash_…`, `text_editor_…`, `memory_…`) are offered as ordinary tools with those
//!   schemas. Tools that only Anthropic's servers can run (`web_search_…`, `code_execution_…`) are left out with a warning,
//!   and an image or a document becomes a note in the prompt, unless a setting makes it an error.
//! - `cache_control` is accepted and means nothing: every prompt is cached for its client, so what is not read from
//!   the cache counts as plain input and nothing as its creation.
//! - A message with the role `system` stays where it is, though behind the results of calls that it stands before; and the
//!   billing line of Claude Code, which differs in every request, reaches no prompt.

mod billing;
mod content;
mod conversation;
mod encoder;
mod error;
mod events;
mod known_tools;
mod request;
mod tools;

#[cfg(test)]
mod tests;

pub(crate) use error::envelope;

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, Frame, fresh_id,
    stream::{self, EventEncoder, Generations},
    validation,
};
use crate::{
    chat::{Delta, Request},
    requests::Chats,
};
use encoder::{Head, MessageBuilder, MessageEncoder};
use events::Event;
use request::MessageRequest;

/// How long after its request a stream waits for the answer's first word, as it cannot take back its status: what a worker
/// refuses outright is no stream. A client should see one begin in 100 ms.
const FIRST_EVENT: Duration = Duration::from_millis(60);
/// How long it waits after a prompt that took long to be read.
const FIRST_EVENT_MIN: Duration = Duration::from_millis(20);

/// `POST /v1/messages`, and `/v1/messages/stream`, which streams whatever the body says.
pub(crate) async fn messages(
    chats: Arc<Chats>,
    call: ApiRequest,
    always_stream: bool,
) -> Result<ApiResponse, ApiError> {
    let first_event = Instant::now() + FIRST_EVENT;
    let (MessageRequest { request, stream }, warnings) = call.read(|_, body| request::message(body)).await?;
    let permit = (stream || always_stream).then(|| call.stream_permit()).transpose()?;
    let (name, stops) = (request.model.clone(), request.stops.clone());
    let model = validation::model_name(&call, &name).to_owned();
    let request = Request { client: call.client(), model, ..request };
    validation::check(&chats, &request)?;
    let prepared = chats.prepare(request).await?;
    let head = Head { id: fresh_id("msg_"), model: name, input_tokens: prepared.input_tokens() };
    let encoder = MessageEncoder::new(head, stops);
    let first_event = first_event.max(Instant::now() + FIRST_EVENT_MIN);
    let generations = Generations::start(&call, vec![prepared], first_event).await?;
    let answer = match permit {
        Some(permit) => {
            let encoder = MessageEvents { encoder, request_id: call.request_id };
            ApiResponse::events(stream::frames(encoder, generations), permit)
        }
        None => collect(encoder, generations).await?,
    };
    Ok(answer.with_warnings(warnings))
}

/// `POST /v1/messages/count_tokens`: renders the prompt that the same message would have, and counts it.
pub(crate) async fn count_tokens(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (request, warnings) = call.read(|_, body| request::count(body)).await?;
    let model = validation::model_name(&call, &request.model).to_owned();
    let tokens = chats.count(Request { client: call.client(), model, ..request }).await?;
    Ok(ApiResponse::json(&json!({ "input_tokens": tokens })).with_warnings(warnings))
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

/// The same events as a stream's, put together as a client would.
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
