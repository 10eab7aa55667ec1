//! The routes of stored responses.

use serde_json::{Value, json};

use super::{replay, store::Stored};
use crate::dialects::{ApiError, ApiRequest, ApiResponse, ErrorCode, fields::Quote};

/// How many items are listed at once, unless the client says otherwise.
const ITEMS: usize = 20;
const ITEMS_MAX: usize = 100;

/// `GET /v1/responses/ID`. With `stream=true` it is the events in which the response came, from behind `starting_after` on.
pub(crate) fn retrieve(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let stored = find(call, &call.id)?;
    if parameter(call, "stream").as_deref() != Some("true") {
        return Ok(ApiResponse::json(&stored.response));
    }
    let after = parameter(call, "starting_after").map(|text| {
        text.parse().map_err(|_| ApiError::field("starting_after", "should be the sequence number of an event"))
    });
    Ok(ApiResponse::text("text/event-stream", replay::events(&stored.response, after.transpose()?)))
}

/// `GET /v1/responses/ID/input_items`, the newest first unless `order=asc`.
pub(crate) fn input_items(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let stored = find(call, &call.id)?;
    let mut data = stored.items;
    data.truncate(stored.inputs);
    match parameter(call, "order").as_deref() {
        None | Some("desc") => data.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "should be 'asc' or 'desc'")),
    }
    if let Some(after) = parameter(call, "after") {
        let place = data.iter().position(|item| item["id"] == after.as_str());
        let place = place.ok_or_else(|| ApiError::field("after", "is the id of no item of this response"))?;
        data.drain(..=place);
    }
    let limit = parameter(call, "limit").map_or(Some(ITEMS), |text| text.parse().ok());
    let limit = limit.filter(|limit| (1..=ITEMS_MAX).contains(limit));
    let limit = limit.ok_or_else(|| ApiError::field("limit", format_args!("should be from 1 to {ITEMS_MAX}")))?;
    let has_more = data.len() > limit;
    data.truncate(limit);
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
    Ok(ApiResponse::json(&json!({
        "object": "list", "first_id": id(data.first()), "last_id": id(data.last()), "has_more": has_more, "data": data,
    })))
}

/// `DELETE /v1/responses/ID`.
pub(crate) fn delete(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    find(call, &call.id)?;
    call.shared.responses.remove(call.client().id, &call.id);
    Ok(ApiResponse::json(&json!({ "id": call.id, "object": "response", "deleted": true })))
}

pub(super) fn find(call: &ApiRequest, id: &str) -> Result<Stored, ApiError> {
    call.shared.responses.get(call.client().id, id).ok_or_else(|| {
        let message = format!("there is no response '{}'", Quote(id));
        let help = "responses are kept in memory unless the request says \"store\": false, and the oldest go first";
        ApiError { help: help.to_owned(), field: Some("id".to_owned()), ..ApiError::new(ErrorCode::NotFound, message) }
    })
}

/// A parameter of the query; an empty one is none.
fn parameter(call: &ApiRequest, name: &str) -> Option<String> {
    let fields = call.query.split('&').filter_map(|field| field.split_once('='));
    let value = fields.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()?;
    let text = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
    (!text.is_empty()).then(|| text.into_owned())
}
