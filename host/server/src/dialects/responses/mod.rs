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
//! - `conversation` and `prompt` templates are refused.

mod background;
mod compact;
mod echo;
mod encoder;
mod input;
mod item;
mod numbering;
mod replay;
mod request;
mod socket;
mod store;
mod stored;
mod summary;
mod tools;

#[cfg(test)]
mod tests;

pub(crate) use background::Background;
pub(crate) use compact::compact;
pub(crate) use socket::{Conversation as SocketConversation, refused};
pub(crate) use store::ResponseStore;
pub(crate) use stored::{cancel, delete, input_items, retrieve};

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, ErrorCode,
    compaction::Start,
    fields::{Field, value_of},
    fresh_id, openai,
    stream::{self, EventEncoder, FIRST_EVENT},
    validation,
};
use crate::{
    chat::{AppliedEdit, ContextEdit, Input, Request},
    requests::{Chats, Fitted, Prepared},
};
use encoder::{Head, ResponseEncoder, StoreTarget};
use pensieve_protocol::job::Failure;
use request::ResponseRequest;

/// The field that names a stored response to go on from.
const PREVIOUS: &str = "previous_response_id";

/// `POST /v1/responses`.
pub(crate) async fn create(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = |call: &ApiRequest, body: &Field<'_>| read(call, body, call.local.is_some());
    let (ParsedRequest { response: mut parsed, items, inputs }, mut warnings) =
        call.read_conversation(&chats, read).await?;
    enforce(&chats, &mut parsed, &mut warnings).await?;
    let is_streamed = parsed.stream || call.local.is_some();
    let is_background = parsed.background;
    let permit = (is_streamed || is_background).then(|| call.stream_permit()).transpose()?;
    let start = begin(&chats, parsed.request, &mut warnings).await?;
    let head = Head {
        id: fresh_id("resp_"),
        created: openai::now(),
        echo: call.memory.bytes(parsed.echo.with_warnings(&warnings))?,
        is_background,
        is_limited: parsed.is_limited,
        with_encrypted: parsed.with_encrypted,
    };
    let local = call.local.filter(|_| !parsed.store);
    let (owner, is_local) = (local.unwrap_or(call.client().id), local.is_some());
    let store = items.map(|items| StoreTarget { shared: call.shared.clone(), owner, is_local, items, inputs });
    let mut encoder = ResponseEncoder::new(head, parsed.tools, store);
    let generations = start.generations(&call, Instant::now() + FIRST_EVENT).await;
    let mut generations = generations.map_err(ApiError::of_model)?;
    if let Some(permit) = permit {
        if is_background {
            let answer = background::start(&call, encoder, generations, permit, is_streamed)?;
            return Ok(answer.with_warnings(warnings));
        }
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
    let (ParsedRequest { response: mut parsed, .. }, mut warnings) =
        call.read_conversation(&chats, |call, body| read(call, body, false)).await?;
    enforce(&chats, &mut parsed, &mut warnings).await?;
    let tokens = chats.count(parsed.request).await.map_err(ApiError::of_model)?.told(&mut warnings);
    let body = json!({ "object": "response.input_tokens", "input_tokens": tokens });
    Ok(ApiResponse::json(&body).with_warnings(warnings))
}

/// Errors in OpenAI's form with this API's codes: Codex retries `server_is_overloaded`, but gives up a turn at a plain
/// 429.
pub(crate) fn envelope(error: &ApiError, request_id: &str) -> (u16, Vec<u8>) {
    let (status, body) = error_body(error);
    (status, json!({ "error": body, "request_id": request_id }).to_string().into_bytes())
}

/// Status and error object.
fn error_body(error: &ApiError) -> (u16, Value) {
    let (mut status, mut body) = (openai::error_status(error), openai::error_body(error));
    if matches!(error.code, ErrorCode::Overloaded | ErrorCode::Unavailable) {
        status = 503;
        body["type"] = "server_error".into();
        body["code"] = "server_is_overloaded".into();
    } else if error.code == ErrorCode::NotFound && error.field.as_deref() == Some(PREVIOUS) {
        status = 400;
        body["code"] = "previous_response_not_found".into();
    }
    (status, body)
}

/// A request with the conversation that it continues.
#[derive(Debug)]
struct ParsedRequest {
    response: ResponseRequest,
    /// All input items as a JSON list, if they are needed.
    items: Option<Bytes>,
    inputs: usize,
}

/// Reads the body. With `previous_response_id` the stored conversation comes before the request's own input. The items are
/// kept for a response that is to be stored, and where the caller needs them.
fn read(call: &ApiRequest, body: &Field<'_>, with_items: bool) -> Result<ParsedRequest, ApiError> {
    let mut items = input::items(&body.get("input"))?;
    if let Some(previous) = body.get(PREVIOUS).present() {
        let id = previous.text(input::ID_BYTES_MAX)?;
        let stored =
            stored::find(call, id).map_err(|error| ApiError { field: Some(previous.path().to_owned()), ..error })?;
        if stored::is_running(&stored.response) {
            let help = "wait until GET /v1/responses/ID says 'completed', or cancel it";
            let error =
                previous.invalid("names a response that is still in progress, so it has no answer to go on from");
            return Err(ApiError { help: help.to_owned(), ..error });
        }
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
    let items = (response.store || with_items).then(|| call.memory.bytes(list.to_string())).transpose()?;
    let model = validation::model_name(call, &response.request.model).to_owned();
    let request = response.request.or_usual_limit(call.shared.settings.max_tokens);
    response.request = Request { client: call.client(), model, ..request };
    super::extensions::read(body, &mut response.request)?;
    request::note_unknown(body);
    Ok(ParsedRequest { response, items, inputs })
}

/// Enforces the formats of custom tools.
async fn enforce(chats: &Chats, parsed: &mut ResponseRequest, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    let Input::Chat(conversation) = &mut parsed.request.input else { return Ok(()) };
    parsed.tools.custom.enforce(chats, &parsed.request.client, &mut conversation.tools, warnings).await
}

/// Prepares a request, or the summary that comes first if its `context_management` asks for one.
async fn begin(chats: &Arc<Chats>, request: Request, warnings: &mut Vec<String>) -> Result<Start, ApiError> {
    if !request.context.iter().any(|edit| matches!(edit, ContextEdit::Compact(_))) {
        return prepare(chats, request, warnings).await.map(|prepared| Start::Answer(Box::new(prepared)));
    }
    validation::check(chats, &request)?;
    let Fitted { request, compaction, .. } = chats.fit(request, 0).await.map_err(ApiError::of_model)?;
    Start::prepare(chats, request, compaction).await.map_err(too_long_at_input)
}

/// Prepares a request. With `truncation: "auto"` the oldest turns are left out if the conversation does not fit.
async fn prepare(chats: &Chats, request: Request, warnings: &mut Vec<String>) -> Result<Prepared, ApiError> {
    validation::check(chats, &request)?;
    let (prepared, applied) = chats.prepare_fitting(request).await.map_err(too_long_at_input)?;
    let truncated = applied.iter().find_map(|edit| match edit {
        AppliedEdit::Truncated { turns, .. } => Some(turns),
        _ => None,
    });
    if let Some(turns) = truncated {
        warnings
            .push(format!("truncation: the {turns} oldest turns were left out, since the conversation is too long"));
    }
    Ok(prepared)
}

fn too_long_at_input(failure: Failure) -> ApiError {
    at_input(ApiError::of_model(failure))
}

/// Attributes a prompt that is too long to `input`.
fn at_input(error: ApiError) -> ApiError {
    let field = if error.code == ErrorCode::TooLong { Some("input".to_owned()) } else { error.field };
    ApiError { field, ..error }
}
