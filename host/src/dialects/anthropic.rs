//! Anthropic's envelope.

use serde_json::json;

use super::{Problem, ProblemKind};

/// The status and the body for a problem.
pub(crate) fn envelope(problem: &Problem, request_id: &str) -> (u16, Vec<u8>) {
    let (status, kind) = match problem.kind {
        ProblemKind::InvalidRequest | ProblemKind::TooLong => (400, "invalid_request_error"),
        ProblemKind::Method => (405, "invalid_request_error"),
        ProblemKind::MediaType => (415, "invalid_request_error"),
        ProblemKind::Authentication => (401, "authentication_error"),
        ProblemKind::Permission => (403, "permission_error"),
        ProblemKind::NotFound => (404, "not_found_error"),
        ProblemKind::TooLarge => (413, "request_too_large"),
        ProblemKind::Overloaded => (529, "overloaded_error"),
        ProblemKind::Timeout => (408, "timeout_error"),
        ProblemKind::Internal => (500, "api_error"),
    };
    let error = json!({ "type": kind, "message": problem.message });
    (status, json!({ "type": "error", "error": error, "request_id": request_id }).to_string().into_bytes())
}
