//! OpenAI's Responses API: `POST /v1/responses`, with and without streaming, and stored responses.
//!
//! Deliberate deviations from the original:
//! - Tools that run on OpenAI's servers (`web_search`, `file_search`, `mcp`, …) are dropped with a warning, which is also in the
//!   answer's `metadata`. A `namespace` of tools is flattened, and restored in calls.
//! - A custom tool becomes a function with one string. The `regex` or `lark` grammar of its format is shown to the model, and
//!   enforced if it can be converted to one regular expression; otherwise a warning gives the reason.
//! - `encrypted_content` of a reasoning item is the reasoning in base64: this server has no secrets from its client.
//! - An answer that ends at the model's own limit is `completed` if it is usable, as Codex drops `incomplete` turns. If the
//!   client has set `max_output_tokens`, it is `incomplete`.
//! - `background`, `conversation` and `prompt` templates are refused.

mod echo;
mod encoder;
mod input;
mod replay;
mod request;
mod store;
mod stored;
mod tools;

#[cfg(test)]
mod tests;

pub(crate) use store::ResponseStore;
pub(crate) use stored::{delete, input_items, retrieve};

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, ErrorCode,
    fields::{Field, value_of},
    fresh_id, openai,
    stream::{self, EventEncoder, FIRST_EVENT, Generations},
    validation,
};
use crate::{
    chat::{Input, Request, Role},
    requests::{Chats, Prepared},
};
use encoder::{Head, ResponseEncoder, StoreTarget};
use pensieve_protocol::job::Failure;
use request::ResponseRequest;

/// Attempts at truncation for `truncation: "auto"` before the request is refused as too long.
const TRUNCATIONS_MAX: usize = 8;

/// `POST /v1/responses`.
pub(crate) async fn create(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (ParsedRequest { response: mut parsed, items, inputs }, mut warnings) = call.read(read).await?;
    enforce(&chats, &mut parsed, &mut warnings).await?;
    let permit = parsed.stream.then(|| call.stream_permit()).transpose()?;
    let prepared = prepare(&chats, &call, parsed.request, parsed.truncate, &mut warnings).await?;
    let head = Head {
        id: fresh_id("resp_"),
        created: openai::now(),
        echo: call.memory.bytes(parsed.echo.with_warnings(&warnings))?,
        is_limited: parsed.is_limited,
        with_encrypted: parsed.with_encrypted,
    };
    let store = items.map(|items| StoreTarget { shared: call.shared.clone(), client: call.client().id, items, inputs });
    let mut encoder = ResponseEncoder::new(head, parsed.tools, store);
    let generations = Generations::start(&call, vec![prepared], Instant::now() + FIRST_EVENT).await;
    let mut generations = generations.map_err(ApiError::of_model)?;
    if let Some(permit) = permit {
        return Ok(ApiResponse::events(stream::frames(encoder, generations), permit).with_warnings(warnings));
    }
    while let Some((choice, delta)) = generations.gather().await? {
        encoder.delta(choice, delta)?;
    }
    let response = encoder.into_response().ok_or_else(stream::ended_early)?;
    Ok(ApiResponse::text("application/json", response).with_warnings(warnings))
}

/// `POST /v1/responses/input_tokens`: counts the prompt that the same response would have.
pub(crate) async fn input_tokens(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (ParsedRequest { response: mut parsed, .. }, mut warnings) = call.read(read).await?;
    enforce(&chats, &mut parsed, &mut warnings).await?;
    let tokens = chats.count(parsed.request).await.map_err(ApiError::of_model)?;
    let body = json!({ "object": "response.input_tokens", "input_tokens": tokens });
    Ok(ApiResponse::json(&body).with_warnings(warnings))
}

/// Errors in OpenAI's form with this API's codes: Codex retries `server_is_overloaded`, but gives up a turn at a plain
/// 429.
pub(crate) fn envelope(error: &ApiError, request_id: &str) -> (u16, Vec<u8>) {
    if matches!(error.code, ErrorCode::Overloaded | ErrorCode::Unavailable) {
        let mut body = openai::error_body(error);
        body["type"] = "server_error".into();
        body["code"] = "server_is_overloaded".into();
        return (503, json!({ "error": body, "request_id": request_id }).to_string().into_bytes());
    }
    openai::envelope(error, request_id)
}

/// A request with the conversation that it continues.
#[derive(Debug)]
struct ParsedRequest {
    response: ResponseRequest,
    /// All input items as a JSON list; `None` if the response is not to be stored.
    items: Option<Bytes>,
    inputs: usize,
}

/// Reads the body. With `previous_response_id` the stored conversation comes before the request's own input.
fn read(call: &ApiRequest, body: &Field<'_>) -> Result<ParsedRequest, ApiError> {
    let mut items = input::items(&body.get("input"))?;
    if let Some(previous) = body.get("previous_response_id").present() {
        let id = previous.text(input::ID_BYTES_MAX)?;
        let stored =
            stored::find(call, id).map_err(|error| ApiError { field: Some(previous.path().to_owned()), ..error })?;
        // Charged, as the store may drop the text while it is being read.
        let text = call.memory.bytes(stored.items)?;
        if let Value::Array(before) = value_of(&text, &call.memory)? {
            items.splice(..0, before);
        }
    }
    // All items are read as one list, so that errors have a path into the conversation that the client knows.
    let inputs = items.len();
    let list = Value::Array(items);
    let mut response = request::read(body, &body.with_value("input", &list))?;
    let items = response.store.then(|| call.memory.bytes(list.to_string())).transpose()?;
    let model = validation::model_name(call, &response.request.model).to_owned();
    let max_tokens = response.request.max_tokens.or(call.shared.settings.max_tokens);
    response.request = Request { client: call.client(), model, max_tokens, ..response.request };
    super::extensions::read(body, &mut response.request)?;
    Ok(ParsedRequest { response, items, inputs })
}

/// Enforces the formats of custom tools.
async fn enforce(chats: &Chats, parsed: &mut ResponseRequest, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    let Input::Chat(conversation) = &mut parsed.request.input else { return Ok(()) };
    parsed.tools.enforce(chats, &parsed.request.client, &mut conversation.tools, warnings).await
}

/// Prepares a request. With `truncation: "auto"` the oldest turns are dropped until the rest fits.
async fn prepare(
    chats: &Chats,
    call: &ApiRequest,
    mut request: Request,
    truncate: bool,
    warnings: &mut Vec<String>,
) -> Result<Prepared, ApiError> {
    validation::check(chats, &request)?;
    if !truncate {
        return chats.prepare(request).await.map_err(too_long_at_input);
    }
    for _ in 0..TRUNCATIONS_MAX {
        let error = match chats.prepare(request.clone()).await {
            Ok(prepared) => return Ok(prepared),
            Err(failure) => ApiError::of_model(failure),
        };
        if error.code != ErrorCode::TooLong || !shorten(&mut request) {
            return Err(at_input(error));
        }
        if !warnings.iter().any(|warning| warning.starts_with("truncation:")) {
            warnings.push("truncation: the oldest turns were left out, since the conversation is too long".to_owned());
        }
    }
    let prepared = chats.prepare(request).await.map_err(too_long_at_input);
    prepared
        .inspect(|prepared| tracing::debug!(tokens = prepared.input_tokens(), request = call.request_id, "truncated"))
}

fn too_long_at_input(failure: Failure) -> ApiError {
    at_input(ApiError::of_model(failure))
}

/// Attributes a prompt that is too long to `input`.
fn at_input(error: ApiError) -> ApiError {
    let field = if error.code == ErrorCode::TooLong { Some("input".to_owned()) } else { error.field };
    ApiError { field, ..error }
}

/// Drops the oldest quarter of the turns, up to a user turn. False if nothing can be dropped.
fn shorten(request: &mut Request) -> bool {
    let Input::Chat(conversation) = &mut request.input else { return false };
    let turns = &mut conversation.turns;
    let first = turns.len().div_ceil(4);
    let is_start = |place: &usize| {
        let turn = &turns[*place];
        turn.role == Role::User && !turn.parts.iter().any(|part| matches!(part, crate::chat::Part::ToolResult { .. }))
    };
    let Some(start) = (first.max(1)..turns.len()).find(is_start) else { return false };
    turns.drain(..start);
    true
}
