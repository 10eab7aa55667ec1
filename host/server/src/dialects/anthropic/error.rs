//! Errors in the form of Anthropic's API.

use serde_json::{Value, json};

use crate::dialects::{ApiError, ErrorCode};

pub(crate) fn envelope(error: &ApiError, request_id: &str) -> (u16, Vec<u8>) {
    let (status, _) = kind(error.code);
    (status, body(error, request_id).to_string().into_bytes())
}

/// The field of requests that keep the conversation on the server.
pub(super) const THREAD: &str = "thread";

/// The error object, used as a body and as an event's data.
pub(super) fn body(error: &ApiError, request_id: &str) -> Value {
    let (_, kind) = kind(error.code);
    let mut body = json!({ "type": kind, "message": error.to_string() });
    if error.field.as_deref() == Some(THREAD) {
        // Tells Anthropic's clients to send the whole conversation instead.
        body["details"] = json!({ "error_code": "thread_unsupported_request", "unsupported": [THREAD] });
    }
    json!({ "type": "error", "error": body, "request_id": request_id })
}

fn kind(kind: ErrorCode) -> (u16, &'static str) {
    match kind {
        ErrorCode::InvalidRequest | ErrorCode::TooLong => (400, "invalid_request_error"),
        ErrorCode::Authentication => (401, "authentication_error"),
        ErrorCode::Permission => (403, "permission_error"),
        ErrorCode::NotFound => (404, "not_found_error"),
        ErrorCode::Method => (405, "invalid_request_error"),
        ErrorCode::Conflict => (409, "invalid_request_error"),
        ErrorCode::Timeout => (408, "timeout_error"),
        ErrorCode::TooLarge => (413, "request_too_large"),
        ErrorCode::MediaType => (415, "invalid_request_error"),
        ErrorCode::KeyLimit => (429, "rate_limit_error"),
        ErrorCode::Internal => (500, "api_error"),
        ErrorCode::Upstream => (502, "api_error"),
        // Anthropic's clients retry both later.
        ErrorCode::Overloaded | ErrorCode::Unavailable => (529, "overloaded_error"),
    }
}
