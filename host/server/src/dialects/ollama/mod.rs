//! Ollama's API: `/api/chat`, `/api/generate` and the routes about models, as lines of JSON.
//!
//! Deliberate deviations from the original:
//! - Models are named by their ids; a `:latest` suffix is ignored. Without `keep_alive` a model stays in memory as
//!   configured, usually until another one needs the space.
//! - `options` for Ollama's own engine (`num_gpu`, `num_thread`, `mirostat`, …) are accepted and ignored.
//! - `raw` prompts and `template` are refused or ignored where the model's own template applies.
//! - `/api/pull` downloads like `pensieve pull`; the model is served once the configuration or the command line names it.

mod details;
mod encoder;
mod keep_alive;
mod models;
mod pull;
mod request;

#[cfg(test)]
mod tests;

pub(crate) use models::{ps, show, tags, version};
pub(crate) use pull::pull;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, ErrorCode,
    fields::Field,
    stream::{self, EventEncoder, FIRST_EVENT, Generations},
    validation,
};
use crate::{chat::Request, fleet::KeepAlive, requests::Chats};
use encoder::{LineEncoder, Shape};
use request::OllamaRequest;

const LINES: &str = "application/x-ndjson";

/// `POST /api/chat`.
pub(crate) async fn chat(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read_conversation(&chats, |_, body| request::chat(body)).await?;
    let answer = answer(&chats, &call, parsed, Shape::Chat).await?;
    Ok(answer.with_warnings(warnings))
}

/// `POST /api/generate`.
pub(crate) async fn generate(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read_conversation(&chats, |_, body| request::generate(body)).await?;
    let answer = answer(&chats, &call, parsed, Shape::Generate).await?;
    Ok(answer.with_warnings(warnings))
}

/// The form of an error: `{"error": "…"}`.
pub(crate) fn envelope(error: &ApiError) -> (u16, Vec<u8>) {
    let status = match error.code {
        ErrorCode::InvalidRequest | ErrorCode::TooLong => 400,
        ErrorCode::Authentication => 401,
        ErrorCode::Permission => 403,
        ErrorCode::NotFound => 404,
        ErrorCode::Method => 405,
        ErrorCode::Timeout => 408,
        ErrorCode::Conflict => 409,
        ErrorCode::TooLarge => 413,
        ErrorCode::MediaType => 415,
        ErrorCode::KeyLimit => 429,
        ErrorCode::Internal => 500,
        ErrorCode::Upstream => 502,
        ErrorCode::Overloaded | ErrorCode::Unavailable => 503,
    };
    (status, error_line(error).to_string().into_bytes())
}

/// A model's name without the tag that Ollama's clients add by themselves.
pub(super) fn model_name(name: &str) -> &str {
    name.strip_suffix(":latest").filter(|name| !name.is_empty()).unwrap_or(name)
}

fn error_line(error: &ApiError) -> Value {
    json!({ "error": error.to_string() })
}

async fn answer(
    chats: &Chats,
    call: &ApiRequest,
    parsed: OllamaRequest,
    shape: Shape,
) -> Result<ApiResponse, ApiError> {
    let OllamaRequest { request, name, stream, with_thinking, keep } = parsed;
    let permit = stream.then(|| call.stream_permit()).transpose()?;
    let Some(request) = request else {
        // Without a prompt a client only wants the model to be in memory, or not.
        let model = validation::model_name(call, model_name(&name));
        chats.permit(&call.client(), model).map_err(ApiError::of_model)?;
        let target = chats.fleet().target(model).await.map_err(ApiError::of_model)?;
        let mut body = shape.entry(&name, "", "");
        body["done"] = true.into();
        let goes = keep == Some(KeepAlive::For(Duration::ZERO));
        body["done_reason"] = if goes { "unload" } else { "load" }.into();
        if !goes {
            chats.fleet().load(&target).await.map_err(ApiError::of_model)?;
        }
        stay(chats, model, keep)?;
        return Ok(ApiResponse::json(&body));
    };
    let model = validation::model_name(call, model_name(&name)).to_owned();
    let request = request.or_usual_limit(call.shared.settings.max_tokens);
    let request = Request { client: call.client(), model: model.clone(), ..request };
    validation::check(chats, &request)?;
    let prepared = chats.prepare(request).await.map_err(ApiError::of_model)?;
    let generations = Generations::start(call, vec![prepared], Instant::now() + FIRST_EVENT).await;
    let mut generations = generations.map_err(ApiError::of_model)?;
    // Once the answer has begun, as an idle model that shall not stay goes at once.
    stay(chats, &model, keep)?;
    let mut encoder = LineEncoder::new(name, shape, with_thinking);
    if let Some(permit) = permit {
        return Ok(ApiResponse::stream(LINES, stream::frames(encoder, generations), permit));
    }
    while let Some((choice, delta)) = generations.gather().await? {
        encoder.delta(choice, delta)?;
    }
    Ok(ApiResponse::json(&encoder.into_whole().ok_or_else(stream::ended_early)?))
}

/// Names those of a body's `options` that have an effect elsewhere, and none here.
pub(super) fn note_unknown_options(body: &Field<'_>) -> Result<(), ApiError> {
    request::note_unknown_options(&body.get("options"))
}

/// The `keep_alive` of a body.
pub(crate) fn keep_alive_of(body: &Field<'_>) -> Result<Option<KeepAlive>, ApiError> {
    keep_alive::read(body)
}

pub(crate) fn stay(chats: &Chats, model: &str, keep: Option<KeepAlive>) -> Result<(), ApiError> {
    match keep {
        Some(_) => chats.fleet().keep_alive(model, keep).map_err(ApiError::of_model),
        None => Ok(()),
    }
}
