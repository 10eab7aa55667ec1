//! Problems as Anthropic's API tells them.

use serde_json::{Value, json};

use crate::dialects::{Problem, ProblemKind};

/// The status and the body for a problem.
pub(crate) fn envelope(problem: &Problem, request_id: &str) -> (u16, Vec<u8>) {
    let (status, _) = kind(problem.kind);
    (status, error(problem, request_id).to_string().into_bytes())
}

/// The field of requests that leave the conversation to the server.
pub(super) const THREAD: &str = "thread";

/// The body, which is an event's data as well.
pub(super) fn error(problem: &Problem, request_id: &str) -> Value {
    let (_, kind) = kind(problem.kind);
    let mut error = json!({ "type": kind, "message": problem.message });
    if problem.field.as_deref() == Some(THREAD) {
        // By this the vendor's clients know to send the whole conversation instead.
        error["details"] = json!({ "error_code": "thread_unsupported_request", "unsupported": [THREAD] });
    }
    json!({ "type": "error", "error": error, "request_id": request_id })
}

fn kind(kind: ProblemKind) -> (u16, &'static str) {
    match kind {
        ProblemKind::InvalidRequest | ProblemKind::TooLong => (400, "invalid_request_error"),
        ProblemKind::Authentication => (401, "authentication_error"),
        ProblemKind::Permission => (403, "permission_error"),
        ProblemKind::NotFound => (404, "not_found_error"),
        ProblemKind::Method => (405, "invalid_request_error"),
        ProblemKind::Conflict => (409, "invalid_request_error"),
        ProblemKind::Timeout => (408, "timeout_error"),
        ProblemKind::TooLarge => (413, "request_too_large"),
        ProblemKind::MediaType => (415, "invalid_request_error"),
        ProblemKind::Internal => (500, "api_error"),
        ProblemKind::Upstream => (502, "api_error"),
        // Both make the vendor's clients come back later.
        ProblemKind::Overloaded | ProblemKind::Unavailable => (529, "overloaded_error"),
    }
}
