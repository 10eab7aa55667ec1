//! OpenAI's API: `chat/completions`, the legacy `completions`, and `models`.
//!
//! Every field that this host has a use for is checked before anything is queued, with OpenAI's limits; unknown ones are
//! accepted. Streamed and whole answers are made by one state machine ([`choice`]) and differ in how its pieces are
//! written down ([`encoder`]). What local servers add to the API and this one too: `reasoning_content` in messages and
//! chunks, for what a model thinks, and comments in streams while nothing else is to be said.
//!
//! Legacy `functions`, `suffix`, images and audio are refused by name.

mod chat;
mod choice;
mod completions;
mod encoder;
mod error;
mod logprobs;
mod message_encoder;
mod messages;
mod models;
mod options;
mod response;
mod text_encoder;
mod tools;
mod usage;

pub(crate) use error::envelope;

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, ErrorCode, extensions,
    fields::{Field, document},
    validation,
};
use crate::{
    chat::{Client, Input, Request},
    prompt::{Chats, Prepared},
};
use encoder::{ChoiceEncoder, ResponseHead, fresh_id, now};
use message_encoder::MessageEncoder;
use response::{Deltas, ResponseBuilder, Style, join};
use text_encoder::TextEncoder;

/// How long generations are listened to before anything is promised, as a stream cannot take back its status: what a worker
/// refuses outright, as a full queue or a grammar that cannot be enforced, is no stream.
const FIRST_WORD: Duration = Duration::from_millis(100);

/// `POST /v1/chat/completions`.
pub(crate) async fn chat_completions(chats: &Arc<Chats>, call: ApiRequest) -> ApiResponse {
    answered(chat(chats, &call).await, &call.request_id)
}

/// `POST /v1/completions`.
pub(crate) async fn completions(chats: &Arc<Chats>, call: ApiRequest) -> ApiResponse {
    answered(text(chats, &call).await, &call.request_id)
}

/// `GET /v1/models`.
pub(crate) fn models(chats: &Arc<Chats>) -> ApiResponse {
    whole(models::list(&chats.fleet().listed()).to_string())
}

/// `GET /v1/models/ID`.
pub(crate) fn model(chats: &Arc<Chats>, id: &str, request_id: &str) -> ApiResponse {
    let found = chats.fleet().find_listed(id).ok_or_else(|| {
        let message = format!("there is no model '{}'; GET /v1/models lists them", super::fields::Quote(id));
        ApiError { field: Some("model".to_owned()), ..ApiError::new(ErrorCode::NotFound, message) }
    });
    answered(found.map(|model| whole(models::entry(&model).to_string())), request_id)
}

async fn chat(chats: &Chats, call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let body = document(&call.body)?;
    let body = Field::root(&body);
    let asked = chat::read(&body)?;
    let place = asked.stream.then(|| call.places.take()).transpose()?;
    let request = complete(&body, asked.request, &call.client)?;
    let forms = || Box::new(MessageEncoder::new(request.logprobs.is_some())) as Box<dyn ChoiceEncoder>;
    let round = Plan {
        id: fresh_id("chatcmpl"),
        object: if asked.stream { "chat.completion.chunk" } else { "chat.completion" },
        forms: std::iter::repeat_with(forms).take(asked.choices).collect(),
        copies: asked.choices,
        shown: asked.choices,
        include_usage: asked.include_usage,
    };
    let round = round.start(chats, vec![request]).await?;
    match place {
        Some(place) => Ok(round.stream(place)),
        None => round.whole().await,
    }
}

async fn text(chats: &Chats, call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let body = document(&call.body)?;
    let body = Field::root(&body);
    let asked = completions::read(&body)?;
    let place = asked.stream.then(|| call.places.take()).transpose()?;
    let requests = asked.requests.into_iter().map(|request| complete(&body, request, &call.client));
    let requests = requests.collect::<Result<Vec<Request>, ApiError>>()?;
    let form = |request: &Request| {
        let echo = if let (true, Input::Text(text)) = (asked.echo, &request.input) { Some(text.clone()) } else { None };
        Box::new(TextEncoder::new(echo, asked.logprobs)) as Box<dyn ChoiceEncoder>
    };
    let plan = Plan {
        id: fresh_id("cmpl"),
        object: "text_completion",
        forms: requests.iter().flat_map(|request| (0..asked.copies).map(|_| form(request))).collect(),
        copies: asked.copies,
        shown: asked.choices,
        include_usage: asked.include_usage,
    };
    let round = plan.start(chats, requests).await?;
    match place {
        Some(place) => Ok(round.stream(place)),
        None => round.whole().await,
    }
}

/// Adds what stands beside the API's own fields.
fn complete(body: &Field<'_>, request: Request, client: &Client) -> Result<Request, ApiError> {
    let mut request = Request { client: client.clone(), ..request };
    extensions::read(body, &mut request)?;
    Ok(request)
}

/// How an answer is to be written, before anything is known of its model.
struct Plan {
    id: String,
    object: &'static str,
    forms: Vec<Box<dyn ChoiceEncoder>>,
    copies: usize,
    shown: usize,
    include_usage: bool,
}

impl Plan {
    /// Prepares everything, so that a prompt that does not fit is told before work begins, and then starts all of it.
    async fn start(self, chats: &Chats, requests: Vec<Request>) -> Result<ResponseBuilder, ApiError> {
        let model = requests.first().map(|request| request.model.clone()).unwrap_or_default();
        let mut prepared: Vec<Prepared> = Vec::with_capacity(requests.len());
        for request in requests {
            validation::check(chats, &request).await?;
            prepared.push(chats.prepare(request).await.map_err(error::of_failure)?);
        }
        let fingerprint = prepared.first().map(Prepared::fingerprint).unwrap_or_default();
        let fingerprint = shorten(fingerprint);
        let frame = ResponseHead { id: self.id, object: self.object, created: now(), model, fingerprint };
        let input_tokens = prepared.iter().map(Prepared::input_tokens).collect();
        // The range of choices makes the cast exact.
        let choices = prepared.iter().flat_map(|one| (0..self.copies).map(|place| one.choice(place as u32)));
        let choices: Vec<Prepared> = choices.collect();
        let Self { forms, copies, shown, include_usage, .. } = self;
        let started = choices.into_iter().map(Prepared::start).collect::<Result<Vec<_>, _>>();
        let mut deltas = Deltas::new();
        let until = Instant::now() + FIRST_WORD;
        for (place, mut generation) in started.map_err(error::of_failure)?.into_iter().enumerate() {
            generation.listen(until).await.map_err(error::of_failure)?;
            join(&mut deltas, place, generation);
        }
        Ok(ResponseBuilder::new(Style { frame, forms, copies, shown, input_tokens, include_usage }, deltas))
    }
}

/// A fingerprint of the length that clients of this API are used to.
fn shorten(fingerprint: &str) -> String {
    let digest = Sha256::digest(fingerprint.as_bytes());
    digest[..5].iter().fold("fp_".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn whole(body: String) -> ApiResponse {
    ApiResponse::Full { status: 200, media_type: "application/json", body: body.into_bytes() }
}

fn answered(result: Result<ApiResponse, ApiError>, request_id: &str) -> ApiResponse {
    result.unwrap_or_else(|problem| {
        let (status, body) = envelope(&problem, request_id);
        ApiResponse::Full { status, media_type: "application/json", body }
    })
}
