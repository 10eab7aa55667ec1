//! Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`. Its SDKs choose an exception by the
//! status, and clients recognise a full context by the code.

use serde_json::{Value, json};

use crate::dialects::{ApiError, ErrorCode};
use pensieve_protocol::job::Failure;

pub(crate) fn envelope(error: &ApiError, request_id: &str) -> (u16, Vec<u8>) {
    let mut body = json!({ "error": body(error) });
    if !request_id.is_empty() {
        body["request_id"] = request_id.into();
    }
    (class(error).0, body.to_string().into_bytes())
}

/// The error object, for a body or a stream that breaks off.
pub(crate) fn body(error: &ApiError) -> Value {
    let (_, kind, code) = class(error);
    json!({ "message": error.to_string(), "type": kind, "param": error.field, "code": code })
}

pub(crate) fn status(error: &ApiError) -> u16 {
    class(error).0
}

/// Converts a failure; a prompt that is too long is attributed to `messages`.
pub(super) fn of_failure(failure: Failure) -> ApiError {
    let error = ApiError::of_model(failure);
    if error.code == ErrorCode::TooLong { ApiError { field: Some("messages".to_owned()), ..error } } else { error }
}

/// Status, type and code.
fn class(error: &ApiError) -> (u16, &'static str, Option<&'static str>) {
    let invalid = "invalid_request_error";
    match error.code {
        ErrorCode::InvalidRequest => (400, invalid, None),
        ErrorCode::Authentication => (401, invalid, Some("invalid_api_key")),
        ErrorCode::Permission => (403, "permission_error", Some("permission_denied")),
        ErrorCode::NotFound if error.field.as_deref() == Some("model") => (404, invalid, Some("model_not_found")),
        ErrorCode::NotFound if error.field.is_some() => (404, invalid, Some("not_found")),
        ErrorCode::NotFound => (404, invalid, Some("unknown_url")),
        ErrorCode::Conflict => (409, invalid, Some("already_exists")),
        ErrorCode::Method => (405, invalid, Some("method_not_supported")),
        ErrorCode::MediaType => (415, invalid, Some("unsupported_media_type")),
        ErrorCode::TooLarge => (413, invalid, Some("request_too_large")),
        ErrorCode::TooLong => (400, invalid, Some("context_length_exceeded")),
        ErrorCode::Overloaded | ErrorCode::KeyLimit => (429, "rate_limit_error", Some("rate_limit_exceeded")),
        ErrorCode::Unavailable => (503, "server_error", Some("server_unavailable")),
        ErrorCode::Timeout => (408, invalid, Some("request_timeout")),
        ErrorCode::Internal => (500, "server_error", None),
        ErrorCode::Upstream => (502, "server_error", Some("bad_gateway")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use pensieve_protocol::job::FailureCode;

    fn check(error: &ApiError, status: u16, expect: Value) {
        let (found, body) = envelope(error, "req_1");
        assert_eq!(found, status);
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({"error": expect, "request_id": "req_1"}));
    }

    #[test]
    fn clients_find_the_field_and_the_code() {
        check(
            &ApiError::field("temperature", "should be a number from 0 to 2, not 3"),
            400,
            json!({"message": "temperature: should be a number from 0 to 2, not 3", "type": "invalid_request_error",
                "param": "temperature", "code": null}),
        );
        check(
            &of_failure(Failure::new(FailureCode::TooLong, "prompt is too long: 9 tokens > 8 maximum")),
            400,
            json!({"message": "prompt is too long: 9 tokens > 8 maximum", "type": "invalid_request_error",
                "param": "messages", "code": "context_length_exceeded"}),
        );
        check(
            &of_failure(Failure::new(FailureCode::NotFound, "there is no model 'x'")),
            404,
            json!({"message": "there is no model 'x'", "type": "invalid_request_error", "param": "model",
                "code": "model_not_found"}),
        );
        check(
            &of_failure(Failure::new(FailureCode::Busy, "too many are waiting")),
            429,
            json!({"message": "too many are waiting", "type": "rate_limit_error", "param": null,
                "code": "rate_limit_exceeded"}),
        );
        check(
            &of_failure(Failure::new(FailureCode::Draining, "the server is about to end")),
            503,
            json!({"message": "the server is about to end", "type": "server_error", "param": null,
                "code": "server_unavailable"}),
        );
        check(
            &ApiError::new(ErrorCode::Authentication, "wrong key"),
            401,
            json!({"message": "wrong key", "type": "invalid_request_error", "param": null, "code": "invalid_api_key"}),
        );
        check(
            &ApiError::new(ErrorCode::NotFound, "no such route"),
            404,
            json!({"message": "no such route", "type": "invalid_request_error", "param": null, "code": "unknown_url"}),
        );
        check(
            &of_failure(Failure::new(FailureCode::WorkerLost, "the worker ended")),
            500,
            json!({"message": "the worker ended", "type": "server_error", "param": null, "code": null}),
        );
    }
}
