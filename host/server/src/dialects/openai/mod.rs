//! OpenAI's API: `chat/completions`, the legacy `completions`, and `models`.
//!
//! Every supported field is checked against OpenAI's limits before anything is queued; unknown ones are ignored.
//! Streamed and whole answers come from one state machine ([`choice`]) and differ only in their encoding ([`encoder`]).
//! Like other local servers this one adds `reasoning_content` to messages and chunks, and comments to streams as
//! keep-alives.
//!
//! Legacy `functions` are refused; images and audio become a note in the prompt. Fields of vLLM and llama.cpp are read
//! where there is a counterpart. A field that nothing reads is named in a warning.

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

pub(crate) use chat::TOP_LOGPROBS_MAX;
pub(crate) use encoder::now;
pub(crate) use error::{body as error_body, envelope, status as error_status};
pub(crate) use logprobs::content as logprobs_of;

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
    chat::{Form, Input, Request},
    fleet::Fleet,
    requests::{Chats, Prepared},
};
use encoder::{ChoiceEncoder, ResponseHead};
use message_encoder::MessageEncoder;
use response::{ResponseBuilder, Style};
use text_encoder::TextEncoder;

/// `POST /v1/chat/completions`.
pub(crate) async fn chat_completions(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let fleet = chats.fleet().clone();
    let read = call.read_conversation(&chats, move |call, body| {
        let parsed = chat::read(body)?;
        let request = with_unknown(body, complete(body, parsed.request, call)?, &fleet);
        Ok(chat::ParsedRequest { request, ..parsed })
    });
    let (mut parsed, mut warnings) = read.await?;
    let mut request = parsed.request;
    if let Input::Chat(conversation) = &mut request.input {
        parsed.custom.enforce(&chats, &request.client, &mut conversation.tools, &mut warnings).await?;
    }
    let custom = Arc::new(parsed.custom);
    let encoder =
        || Box::new(MessageEncoder::new(request.logprobs.is_some(), custom.clone())) as Box<dyn ChoiceEncoder>;
    let plan = Plan {
        id: fresh_id("chatcmpl-"),
        object: if parsed.stream { "chat.completion.chunk" } else { "chat.completion" },
        encoders: std::iter::repeat_with(encoder).take(parsed.choices).collect(),
        copies: parsed.choices,
        shown: parsed.choices,
        include_usage: parsed.include_usage,
    };
    let answer = plan.answer(&chats, &call, vec![request], parsed.stream).await?;
    Ok(answer.with_warnings(warnings))
}

/// `POST /v1/completions`.
pub(crate) async fn completions(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let fleet = chats.fleet().clone();
    let read = call.read(move |call, body| {
        let mut parsed = completions::read(body)?;
        let requests = parsed.requests.into_iter().map(|request| complete(body, request, call));
        let requests = requests.collect::<Result<Vec<Request>, ApiError>>()?;
        parsed.requests = requests.into_iter().map(|request| with_unknown(body, request, &fleet)).collect();
        Ok(parsed)
    });
    let (mut parsed, warnings) = read.await?;
    let requests = std::mem::take(&mut parsed.requests);
    let encoder = |request: &Request| {
        let echo = match &request.input {
            Input::Text(text) | Input::Infill { prefix: text, .. } if parsed.echo => Some(text.clone()),
            _ => None,
        };
        Box::new(TextEncoder::new(echo, parsed.logprobs)) as Box<dyn ChoiceEncoder>
    };
    let plan = Plan {
        id: fresh_id("cmpl-"),
        object: "text_completion",
        encoders: requests.iter().flat_map(|request| (0..parsed.copies).map(|_| encoder(request))).collect(),
        copies: parsed.copies,
        shown: parsed.choices,
        include_usage: parsed.include_usage,
    };
    let answer = plan.answer(&chats, &call, requests, parsed.stream).await?;
    Ok(answer.with_warnings(warnings))
}

/// Adds the client, the default of `max_tokens` and our extensions.
fn complete(body: &Field<'_>, request: Request, call: &ApiRequest) -> Result<Request, ApiError> {
    let mut request = request.or_usual_limit(call.shared.settings.max_tokens);
    request.client = call.client();
    extensions::read(body, &mut request)?;
    Ok(request)
}

/// Adds the fields that nothing has read, if an upstream may know them; otherwise they are named in warnings.
fn with_unknown(body: &Field<'_>, request: Request, fleet: &Fleet) -> Request {
    match fleet.elsewhere(&request.model) {
        Ok(Some(_)) => Request { unknown: options::unknown(body), form: Form::Chat, ..request },
        _ => {
            options::note_unknown(body);
            request
        }
    }
}

/// How to encode an answer, before its model is known.
struct Plan {
    id: String,
    object: &'static str,
    encoders: Vec<Box<dyn ChoiceEncoder>>,
    copies: usize,
    shown: usize,
    include_usage: bool,
}

impl Plan {
    /// Prepares all requests before starting any, so that a prompt that does not fit is an error before work begins.
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
        let choices = prepared.iter().flat_map(|one| (0..self.copies).map(|place| one.choice(place as u32))).collect();
        // What is sent is not kept any longer than it is needed.
        drop(prepared);
        let started = Generations::start(call, choices, Instant::now() + FIRST_EVENT).await;
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
