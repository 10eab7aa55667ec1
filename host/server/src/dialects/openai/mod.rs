//! OpenAI's API: `chat/completions`, the legacy `completions`, and `models`.
//!
//! Every field that this host has a use for is checked before anything is queued, with OpenAI's limits; unknown ones are
//! accepted. Streamed and whole answers are made by one state machine ([`choice`]) and differ in how its pieces are
//! written down ([`encoder`]). What local servers add to the API and this one too: `reasoning_content` in messages and
//! chunks, for what a model thinks, and comments in streams while nothing else is to be said.
//!
//! Legacy `functions` and `suffix` are refused by name; an image or a sound becomes a note in the prompt.

mod chat;
mod choice;
mod completions;
mod encoder;
mod error;
#[cfg(test)]
mod fuzz_tests;
mod logprobs;
mod message_encoder;
mod messages;
pub(crate) mod options;
mod response;
mod text_encoder;
mod tools;
mod usage;

pub(crate) use encoder::now;
pub(crate) use error::{body as error_body, envelope};

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, extensions,
    fields::Field,
    fresh_id,
    stream::{self, FIRST_EVENT, Generations},
    validation,
};
use crate::{
    chat::{Input, Request},
    requests::{Chats, Prepared},
};
use encoder::{ChoiceEncoder, ResponseHead};
use message_encoder::MessageEncoder;
use response::{ResponseBuilder, Style};
use text_encoder::TextEncoder;

/// `POST /v1/chat/completions`.
pub(crate) async fn chat_completions(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|call, body| {
        let chat::ParsedRequest { request, choices, stream, include_usage } = chat::read(body)?;
        Ok(chat::ParsedRequest { request: complete(body, request, call)?, choices, stream, include_usage })
    });
    let (asked, warnings) = read.await?;
    let request = asked.request;
    let encoder = || Box::new(MessageEncoder::new(request.logprobs.is_some())) as Box<dyn ChoiceEncoder>;
    let plan = Plan {
        id: fresh_id("chatcmpl-"),
        object: if asked.stream { "chat.completion.chunk" } else { "chat.completion" },
        encoders: std::iter::repeat_with(encoder).take(asked.choices).collect(),
        copies: asked.choices,
        shown: asked.choices,
        include_usage: asked.include_usage,
    };
    let answer = plan.answer(&chats, &call, vec![request], asked.stream).await?;
    Ok(answer.with_warnings(warnings))
}

/// `POST /v1/completions`.
pub(crate) async fn completions(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|call, body| {
        let mut asked = completions::read(body)?;
        let requests = asked.requests.into_iter().map(|request| complete(body, request, call));
        asked.requests = requests.collect::<Result<Vec<Request>, ApiError>>()?;
        Ok(asked)
    });
    let (mut asked, _) = read.await?;
    let requests = std::mem::take(&mut asked.requests);
    let encoder = |request: &Request| {
        let echo = if let (true, Input::Text(text)) = (asked.echo, &request.input) { Some(text.clone()) } else { None };
        Box::new(TextEncoder::new(echo, asked.logprobs)) as Box<dyn ChoiceEncoder>
    };
    let plan = Plan {
        id: fresh_id("cmpl-"),
        object: "text_completion",
        encoders: requests.iter().flat_map(|request| (0..asked.copies).map(|_| encoder(request))).collect(),
        copies: asked.copies,
        shown: asked.choices,
        include_usage: asked.include_usage,
    };
    plan.answer(&chats, &call, requests, asked.stream).await
}

/// Adds what stands beside the API's own fields.
fn complete(body: &Field<'_>, request: Request, call: &ApiRequest) -> Result<Request, ApiError> {
    let max_tokens = request.max_tokens.or(call.shared.settings.max_tokens);
    let mut request = Request { client: call.client(), max_tokens, ..request };
    extensions::read(body, &mut request)?;
    Ok(request)
}

/// How an answer is to be written, before anything is known of its model.
struct Plan {
    id: String,
    object: &'static str,
    encoders: Vec<Box<dyn ChoiceEncoder>>,
    copies: usize,
    shown: usize,
    include_usage: bool,
}

impl Plan {
    /// Prepares everything, so that a prompt that does not fit is an error before work begins, and then starts all of it.
    async fn answer(
        self,
        chats: &Chats,
        call: &ApiRequest,
        requests: Vec<Request>,
        stream: bool,
    ) -> Result<ApiResponse, ApiError> {
        let permit = stream.then(|| call.stream_permit()).transpose()?;
        let model = requests.first().map(|request| request.model.clone()).unwrap_or_default();
        let mut prepared: Vec<Prepared> = Vec::with_capacity(requests.len());
        for request in requests {
            validation::check(chats, &request)?;
            prepared.push(chats.prepare(request).await.map_err(error::of_failure)?);
        }
        let fingerprint = shorten(prepared.first().map(Prepared::fingerprint).unwrap_or_default());
        let head = ResponseHead { id: self.id, object: self.object, created: now(), model, fingerprint };
        let input_tokens = prepared.iter().map(Prepared::input_tokens).collect();
        // The range of choices makes the cast exact.
        let choices = prepared.iter().flat_map(|one| (0..self.copies).map(|place| one.choice(place as u32)));
        let started = Generations::start(call, choices.collect(), Instant::now() + FIRST_EVENT).await;
        let generations = started.map_err(error::of_failure)?;
        let Self { encoders, copies, shown, include_usage, .. } = self;
        let builder = ResponseBuilder::new(Style { head, encoders, copies, shown, input_tokens, include_usage });
        match permit {
            Some(permit) => Ok(ApiResponse::events(stream::frames(builder, generations), permit)),
            None => builder.full(generations).await,
        }
    }
}

/// A fingerprint of the length that clients of this API are used to.
fn shorten(fingerprint: &str) -> String {
    let digest = format!("{:x}", Sha256::digest(fingerprint.as_bytes()));
    format!("fp_{}", &digest[..10])
}
