//! Errors of requests, independent of any API. Each dialect formats them in its own way.

use std::{fmt, time::Duration};

use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::without_quoted,
};

/// Limit of the message, the help and the field's path, as the memory of an error response is not accounted for.
const TEXT_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub code: ErrorCode,
    /// States what happened, and to what; names the field that is at fault, if any.
    pub message: String,
    /// How to fix it; may be empty.
    pub help: String,
    pub field: Option<String>,
    /// When to retry, if known.
    pub retry_after: Option<Duration>,
    /// The message quotes more of the client's input than names, so it must not be logged.
    pub is_private: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    InvalidRequest,
    Authentication,
    /// The host, the origin or the source is not allowed.
    Permission,
    NotFound,
    /// The route does not support this method.
    Method,
    Conflict,
    /// The content type is not JSON.
    MediaType,
    TooLarge,
    /// The prompt does not fit the model.
    TooLong,
    /// Too many requests are waiting.
    Overloaded,
    /// The client's key may not use more now.
    KeyLimit,
    /// The server is shutting down, or the model is in quarantine.
    Unavailable,
    /// The body or the answer took too long.
    Timeout,
    Internal,
    /// An upstream server failed.
    Upstream,
}

impl ApiError {
    /// An error without a field.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: String::new(), field: None, retry_after: None, is_private: false }
    }

    /// An invalid value; the message is `FIELD: WHY`.
    pub fn field(field: impl Into<String>, why: impl fmt::Display) -> Self {
        let field = field.into();
        let message = format!("{field}: {why}");
        Self { field: Some(field), ..Self::new(ErrorCode::InvalidRequest, message) }
    }

    /// Converts a failure, attributing "not found" to the field `model`: nothing else in the request can be unknown.
    pub(crate) fn of_model(failure: Failure) -> Self {
        let is_unknown = failure.code == FailureCode::NotFound && failure.field.is_empty();
        let error = Self::from(failure);
        if is_unknown { Self { field: Some("model".to_owned()), ..error } } else { error }
    }
}

impl ApiError {
    /// Cuts all texts to `TEXT_BYTES_MAX`.
    pub(super) fn clipped(&self) -> Self {
        let clip = |text: &str| text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned();
        let (message, help) = (clip(&self.message), clip(&self.help));
        Self { message, help, field: self.field.as_deref().map(clip), ..*self }
    }

    /// The reason for the log, without the client's input: only the field for private messages, otherwise the message
    /// without its quoted parts.
    pub fn reason(&self) -> String {
        match (self.is_private, &self.field) {
            (true, Some(field)) => format!("{field}: cannot be used"),
            (true, None) => "something in the request cannot be used".to_owned(),
            (false, _) => without_quoted(self.message.lines().next().unwrap_or_default()),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "; {}", self.help) }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let code = match failure.code {
            FailureCode::Invalid | FailureCode::Unsupported => ErrorCode::InvalidRequest,
            FailureCode::TooLong => ErrorCode::TooLong,
            FailureCode::NotFound => ErrorCode::NotFound,
            FailureCode::Forbidden => ErrorCode::Permission,
            FailureCode::Conflict => ErrorCode::Conflict,
            FailureCode::Unreachable => ErrorCode::Upstream,
            FailureCode::Busy => ErrorCode::Overloaded,
            FailureCode::Draining | FailureCode::Quarantined => ErrorCode::Unavailable,
            FailureCode::Plugin
            | FailureCode::Device
            | FailureCode::NotANumber
            | FailureCode::Stalled
            | FailureCode::WorkerLost
            | FailureCode::Internal => ErrorCode::Internal,
        };
        let Failure { message, help, field, retry_after, is_private, .. } = failure;
        let message = if field.is_empty() { message } else { format!("{field}: {message}") };
        Self { code, message, help, field: Some(field).filter(|field| !field.is_empty()), retry_after, is_private }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_short_whatever_it_repeats() {
        let clipped = ApiError::field("é".repeat(1 << 20), "is long").clipped();
        let field = clipped.field.unwrap_or_default();
        assert!(clipped.message.len() <= TEXT_BYTES_MAX && (1..=TEXT_BYTES_MAX).contains(&field.len()));
        let short = ApiError { help: "do this".into(), ..ApiError::field("a", "is short") };
        assert_eq!(short.clipped(), short);
    }

    #[test]
    fn a_message_that_repeats_the_request_is_left_out_but_for_its_field() {
        let failure = || Failure::new(FailureCode::Invalid, "unexpected <secret>").at("tools.0.parameters");
        assert_eq!(ApiError::from(failure()).reason(), "tools.0.parameters: unexpected <secret>");
        let private = ApiError::from(failure().private());
        assert_eq!(private.reason(), "tools.0.parameters: cannot be used");
        assert_eq!(private.to_string(), "tools.0.parameters: unexpected <secret>", "its client reads all of it");
        assert_eq!(
            ApiError::field("response_format", "should be an object, not 5").reason(),
            "response_format: should be an object, not 5"
        );
    }
}
