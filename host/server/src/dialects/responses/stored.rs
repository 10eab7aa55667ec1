//! Routes of stored responses.

use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{background::Followed, numbering::Progress, replay::Replay, store::StoredResponse};
use crate::dialects::{
    ApiError, ApiRequest, ApiResponse, ErrorCode, Frame, StreamPermit, fields::Quote, stream::ended_early,
};

/// Default page size.
const ITEMS: usize = 20;
const ITEMS_MAX: usize = 100;

/// `GET /v1/responses/ID`. With `stream=true` it replays the response's events after `starting_after`, and goes on with
/// those of an answer that is being made.
pub(crate) async fn retrieve(call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let stored = find(&call, &call.id)?;
    match parameter(&call, "stream").as_deref() {
        None | Some("false") => return Ok(ApiResponse::text("application/json", stored.response)),
        Some("true") => {}
        Some(_) => return Err(ApiError::field("stream", "should be 'true' or 'false'")),
    }
    let after = parameter(&call, "starting_after").map(|text| {
        text.parse().map_err(|_| ApiError::field("starting_after", "should be the sequence number of an event"))
    });
    let after = after.transpose()?;
    let permit = call.stream_permit()?;
    let followed = call.shared.background.follow(call.client().id, &call.id).await;
    // Parsing a long response takes a while.
    let replayed = tokio::task::spawn_blocking(move || replay(&call, followed, after, permit));
    replayed
        .await
        .unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "this server failed to read the response")))
}

fn replay(
    call: &ApiRequest,
    followed: Option<Followed>,
    after: Option<u64>,
    permit: StreamPermit,
) -> Result<ApiResponse, ApiError> {
    if let Some(Followed { progress, frames }) = followed {
        let response = call.memory.bytes(progress.response)?;
        let before = Replay::of_running(Progress { response, ..progress }, after)?;
        return Ok(ApiResponse::events(Box::pin(stream::iter(before).chain(frames)), permit));
    }
    // An answer that was being made a moment ago is stored by now.
    let stored = find(call, &call.id)?;
    if is_running(&stored.response) {
        return Err(ended_early());
    }
    // Charged, as the store may drop it while it is being sent.
    let response = call.memory.bytes(stored.response)?;
    let replay = Replay::new(response, stored.numbering, after)?;
    Ok(ApiResponse::events(Box::pin(stream::iter(replay)), permit))
}

/// `POST /v1/responses/ID/cancel`.
pub(crate) async fn cancel(call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let owner = call.client().id;
    if call.shared.background.stop(owner, &call.id).await {
        return retrieve(call).await;
    }
    let stored = find(&call, &call.id)?;
    if serde_json::from_slice(&stored.response).is_ok_and(|Stored { background }| background) {
        return Ok(ApiResponse::text("application/json", stored.response));
    }
    let help = "an answer that is not in the background ends when its connection is closed";
    let error = ApiError::field("id", "this response was not generated in the background");
    Err(ApiError { help: help.to_owned(), ..error })
}

/// `GET /v1/responses/ID/input_items`, the newest first unless `order=asc`.
pub(crate) async fn input_items(call: ApiRequest) -> Result<ApiResponse, ApiError> {
    // Parsing a long list takes a while.
    let listed = tokio::task::spawn_blocking(move || list_items(&call));
    listed.await.unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "this server failed to list the items")))
}

fn list_items(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let stored = find(call, &call.id)?;
    // Charged as a whole, as the store may drop them while this slice keeps the buffer alive.
    let items = call.memory.bytes(stored.items)?;
    let _list_memory = call.memory.hold(items.len())?;
    let mut data: Vec<&RawValue> = serde_json::from_slice(&items).unwrap_or_default();
    data.truncate(stored.inputs);
    match parameter(call, "order").as_deref() {
        None | Some("desc") => data.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "should be 'asc' or 'desc'")),
    }
    if let Some(after) = parameter(call, "after") {
        let place = data.iter().position(|item| id_of(item).as_deref() == Some(&after));
        let place = place.ok_or_else(|| ApiError::field("after", "is the id of no item of this response"))?;
        data.drain(..=place);
    }
    let limit = parameter(call, "limit").map_or(Some(ITEMS), |text| text.parse().ok());
    let limit = limit.filter(|limit| (1..=ITEMS_MAX).contains(limit));
    let limit = limit.ok_or_else(|| ApiError::field("limit", format_args!("should be from 1 to {ITEMS_MAX}")))?;
    let has_more = data.len() > limit;
    data.truncate(limit);
    let id = |item: Option<&&RawValue>| item.and_then(|item| id_of(item));
    let head = json!({
        "object": "list", "first_id": id(data.first()), "last_id": id(data.last()), "has_more": has_more, "data": [],
    });
    let mut list = Frame::from(head.to_string().trim_end_matches("]}").to_owned());
    for (place, item) in data.into_iter().enumerate() {
        list.push(if place > 0 { "," } else { "" });
        list.push(items.slice_ref(item.get().as_bytes()));
    }
    list.push("]}");
    Ok(ApiResponse::text("application/json", list))
}

fn id_of(item: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Item {
        id: String,
    }
    serde_json::from_str::<Item>(item.get()).ok().map(|item| item.id)
}

/// `DELETE /v1/responses/ID`. An answer that is being made stores its last state when it is stopped, so that comes first.
pub(crate) async fn delete(call: ApiRequest) -> Result<ApiResponse, ApiError> {
    find(&call, &call.id)?;
    call.shared.background.stop(call.client().id, &call.id).await;
    call.shared.responses.remove(call.client().id, &call.id);
    Ok(ApiResponse::json(&json!({ "id": call.id, "object": "response", "deleted": true })))
}

pub(super) fn find(call: &ApiRequest, id: &str) -> Result<StoredResponse, ApiError> {
    let local = || call.local.and_then(|local| call.shared.responses.get(local, id));
    call.shared.responses.get(call.client().id, id).or_else(local).ok_or_else(|| {
        let message = format!("there is no response '{}'", Quote(id));
        let help = "responses are kept in memory unless the request says \"store\": false, and the oldest go first";
        ApiError { help: help.to_owned(), field: Some("id".to_owned()), ..ApiError::new(ErrorCode::NotFound, message) }
    })
}

/// True while a stored response is being generated.
pub(super) fn is_running(response: &[u8]) -> bool {
    serde_json::from_slice(response).is_ok_and(|State { status }| status == "in_progress")
}

#[derive(Deserialize)]
struct Stored {
    background: bool,
}

#[derive(Deserialize)]
struct State {
    status: String,
}

/// A query parameter; an empty one counts as absent.
fn parameter(call: &ApiRequest, name: &str) -> Option<String> {
    let fields = call.query.split('&').filter_map(|field| field.split_once('='));
    let value = fields.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()?;
    let text = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
    (!text.is_empty()).then(|| text.into_owned())
}
