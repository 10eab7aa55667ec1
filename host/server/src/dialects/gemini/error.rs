//! Errors in Google's form: `{"error": {"code", "message", "status", "details"}}`. Its SDKs show the status, and the
//! Gemini CLI waits as long as `RetryInfo` says.

use serde_json::{Value, json};

use crate::dialects::{ApiError, ErrorCode};

pub(crate) fn envelope(error: &ApiError) -> (u16, Vec<u8>) {
    (class(error.code).0, body(error).to_string().into_bytes())
}

/// The body of an error, and the last event of a stream that breaks off.
pub(super) fn body(error: &ApiError) -> Value {
    let (code, status) = class(error.code);
    let mut details = Vec::new();
    if let Some(field) = &error.field {
        details.push(json!({
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{ "field": field, "description": error.message }],
        }));
    }
    if let Some(after) = error.retry_after {
        let delay = format!("{}s", after.as_millis().div_ceil(1000).max(1));
        details.push(json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay }));
    }
    json!({ "error": { "code": code, "message": error.to_string(), "status": status, "details": details } })
}

fn class(code: ErrorCode) -> (u16, &'static str) {
    match code {
        ErrorCode::InvalidRequest | ErrorCode::TooLong => (400, "INVALID_ARGUMENT"),
        ErrorCode::Authentication => (401, "UNAUTHENTICATED"),
        ErrorCode::Permission => (403, "PERMISSION_DENIED"),
        ErrorCode::NotFound => (404, "NOT_FOUND"),
        ErrorCode::Method => (405, "UNIMPLEMENTED"),
        ErrorCode::Conflict => (409, "ALREADY_EXISTS"),
        ErrorCode::TooLarge => (413, "INVALID_ARGUMENT"),
        ErrorCode::MediaType => (415, "INVALID_ARGUMENT"),
        ErrorCode::Overloaded | ErrorCode::KeyLimit => (429, "RESOURCE_EXHAUSTED"),
        ErrorCode::Internal => (500, "INTERNAL"),
        ErrorCode::Upstream => (502, "UNAVAILABLE"),
        ErrorCode::Unavailable => (503, "UNAVAILABLE"),
        ErrorCode::Timeout => (504, "DEADLINE_EXCEEDED"),
    }
}
