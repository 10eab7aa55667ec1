//! OpenAI's envelope.

use serde_json::json;

use super::{Problem, ProblemKind};

/// The status and the body for a problem.
pub(crate) fn envelope(problem: &Problem, request_id: &str) -> (u16, Vec<u8>) {
    let (status, kind) = match problem.kind {
        ProblemKind::InvalidRequest | ProblemKind::TooLong => (400, "invalid_request_error"),
        ProblemKind::Method => (405, "invalid_request_error"),
        ProblemKind::MediaType => (415, "invalid_request_error"),
        ProblemKind::Authentication => (401, "invalid_request_error"),
        ProblemKind::Permission => (403, "permission_error"),
        ProblemKind::NotFound => (404, "invalid_request_error"),
        ProblemKind::TooLarge => (413, "invalid_request_error"),
        ProblemKind::Overloaded => (429, "rate_limit_error"),
        ProblemKind::Timeout => (408, "invalid_request_error"),
        ProblemKind::Internal => (500, "server_error"),
    };
    let error = json!({ "message": problem.message, "type": kind, "param": problem.field, "code": null });
    (status, json!({ "error": error, "request_id": request_id }).to_string().into_bytes())
}
