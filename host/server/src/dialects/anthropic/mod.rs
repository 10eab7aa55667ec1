//! Anthropic's API: messages, whole and streamed, the counting of tokens, and the list of models.
//!
//! What deviates from the original, on purpose:
//! - `max_tokens` beyond the room that is left is that room. `thinking.budget_tokens` is handed to the template as
//!   `thinking_budget`, which few heed, and `output_config.effort` as `reasoning_effort`.
//! - A signature of a thinking block is a digest of its text, since clients want one. Any signature is accepted, because
//!   conversations come here from other servers; redacted thinking is dropped, because nobody here can read it.
//! - Tools are the client's own. Those that run on Anthropic's servers (`web_search_…`) or are known to its models by type
//!   alone (`bash_…`) are refused by name, and so are images and documents.
//! - `cache_control` is accepted and means nothing: every prompt is cached, whoever asks for it, so what is not read from
//!   the cache counts as plain input and nothing as its creation.
//! - A message with the role `system` stays where it is, though behind the results of calls that it stands before; and the
//!   billing line of Claude Code, which differs in every request, reaches no prompt.

mod billing;
mod content;
mod conversation;
mod encoder;
mod error;
mod events;
mod feed;
mod models;
mod request;
mod tools;

#[cfg(test)]
mod tests;

pub(crate) use error::envelope;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ApiError, ApiRequest, ApiResponse, ErrorCode, fields::Quote, validation};
use crate::{
    chat::Request,
    prompt::{Chats, Generation},
};
use encoder::{Head, MessageBuilder, MessageEncoder};
use feed::Feed;
use request::MessageRequest;

/// How long after its request a stream waits for the answer's first word, as it cannot take back its status: what a worker
/// refuses outright is no stream. A client should see one begin in 100 ms.
const FIRST_WORD: Duration = Duration::from_millis(60);
/// How long it waits after a prompt that took long to be read.
const FIRST_WORD_MIN: Duration = Duration::from_millis(20);

/// `POST /v1/messages`, and `/v1/messages/stream`, which streams whatever the body says.
pub(crate) async fn messages(chats: &Arc<Chats>, call: ApiRequest, always_stream: bool) -> ApiResponse {
    let request_id = call.request_id.clone();
    let answer = answer(chats, call, always_stream).await;
    answer.unwrap_or_else(|problem| refusal(&problem, &request_id))
}

/// `POST /v1/messages/count_tokens`: renders the prompt that the same message would have, and counts it.
pub(crate) async fn count_tokens(chats: &Arc<Chats>, call: ApiRequest) -> ApiResponse {
    let request_id = call.request_id.clone();
    match count(chats, call).await {
        Ok(tokens) => whole(&json!({ "input_tokens": tokens })),
        Err(problem) => refusal(&problem, &request_id),
    }
}

/// `GET /v1/models`.
pub(crate) fn models(chats: &Arc<Chats>) -> ApiResponse {
    whole(&models::list(&chats.fleet().listed()))
}

/// `GET /v1/models/ID`. Names that only the default model answers for are no models.
pub(crate) fn model(chats: &Arc<Chats>, id: &str, request_id: &str) -> ApiResponse {
    match chats.fleet().find_listed(id) {
        Some(model) => whole(&models::entry(&model)),
        None => {
            let message = format!("there is no model '{}'; GET /v1/models lists what there is", Quote(id));
            refusal(&ApiError::new(ErrorCode::NotFound, message), request_id)
        }
    }
}

async fn answer(chats: &Chats, call: ApiRequest, always_stream: bool) -> Result<ApiResponse, ApiError> {
    let first_word = Instant::now() + FIRST_WORD;
    let ApiRequest { body, client, request_id, places, .. } = call;
    let asked = read(move || request::message(&body)).await?;
    let MessageRequest { request, stream } = asked;
    let place = (stream || always_stream).then(|| places.take()).transpose()?;
    let request = Request { client, ..request };
    validation::check(chats, &request).await?;
    let (model, stops) = (request.model.clone(), request.stops.clone());
    let prepared = chats.prepare(request).await?;
    let head = Head { id: fresh_id("msg"), model, input_tokens: prepared.input_tokens() };
    let encoder = MessageEncoder::new(head, stops);
    let mut generation = prepared.start()?;
    if let Some(place) = place {
        generation.listen(first_word.max(Instant::now() + FIRST_WORD_MIN)).await?;
        let pieces = Feed::new(encoder, generation, request_id).pieces();
        return Ok(ApiResponse::Stream { media_type: "text/event-stream", pieces, place });
    }
    collect(encoder, generation).await
}

/// The same events as a stream's, put together as a client would.
async fn collect(mut encoder: MessageEncoder, mut generation: Generation) -> Result<ApiResponse, ApiError> {
    let mut message = MessageBuilder::default();
    for event in encoder.begin() {
        message.add(event)?;
    }
    while !encoder.is_over() {
        let events = match generation.next().await {
            Some(delta) => encoder.take(delta),
            None => encoder.break_off(),
        };
        for event in events {
            message.add(event)?;
        }
    }
    Ok(whole(&message.json()))
}

async fn count(chats: &Chats, call: ApiRequest) -> Result<u32, ApiError> {
    let ApiRequest { body, client, .. } = call;
    let request = read(move || request::count(&body)).await?;
    Ok(chats.count(Request { client, ..request }).await?)
}

/// Reads a body where it holds nobody up: a large one takes a while.
async fn read<T: Send + 'static>(reader: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    let read = tokio::task::spawn_blocking(reader).await;
    read.unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "this server failed to read the body")))
}

fn whole(body: &Value) -> ApiResponse {
    ApiResponse::Full { status: 200, media_type: "application/json", body: body.to_string().into_bytes() }
}

fn refusal(problem: &ApiError, request_id: &str) -> ApiResponse {
    let (status, body) = envelope(problem, request_id);
    ApiResponse::Full { status, media_type: "application/json", body }
}

fn fresh_id(kind: &str) -> String {
    let letters: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
    format!("{kind}_{letters}")
}
