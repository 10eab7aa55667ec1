//! Problems as Anthropic's API tells them.

use serde_json::{Value, json};

use crate::dialects::{ApiError, ErrorCode};

pub(crate) fn envelope(problem: &ApiError, request_id: &str) -> (u16, Vec<u8>) {
    let (status, _) = kind(problem.code);
    (status, body(problem, request_id).to_string().into_bytes())
}

/// The field of requests that leave the conversation to the server.
pub(super) const THREAD: &str = "thread";

/// The body, which is an event's data as well.
pub(super) fn body(problem: &ApiError, request_id: &str) -> Value {
    let (_, kind) = kind(problem.code);
    let mut error = json!({ "type": kind, "message": problem.to_string() });
    if problem.field.as_deref() == Some(THREAD) {
        // By this the vendor's clients know to send the whole conversation instead.
        error["details"] = json!({ "error_code": "thread_unsupported_request", "unsupported": [THREAD] });
    }
    json!({ "type": "error", "error": error, "request_id": request_id })
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
        ErrorCode::Internal => (500, "api_error"),
        ErrorCode::Upstream => (502, "api_error"),
        // Both make the vendor's clients come back later.
        ErrorCode::Overloaded | ErrorCode::Unavailable => (529, "overloaded_error"),
    }
}
