//! Errors of upstreams, in this server's terms: which of them are the client's, which the operator's, and what they say about
//! the server that sent them. Texts of upstreams are bounded and escaped, and the key is taken out, which some repeat.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::Value;

use super::{
    balancer::Outcome,
    client::{Broken, Stage},
};
use crate::fleet::Secret;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
};

/// Limit of an upstream's message in characters.
const MESSAGE_CHARS_MAX: usize = 1000;
/// Words of the engines' messages about a prompt that does not fit.
const TOO_LONG: [&str; 7] = [
    "context length",
    "context size",
    "context window",
    "maximum context",
    "prompt is too long",
    "exceed_context_size",
    "longer than the model",
];

/// A request that a server did not answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refused {
    pub(super) failure: Failure,
    pub(super) outcome: Outcome,
    /// Another server might answer it.
    pub(super) elsewhere: bool,
    /// The request itself may have made the server fail.
    pub(super) is_suspect: bool,
}

/// A server that could not be reached, or does not behave as one. The reason is for the log: it has addresses.
pub(super) fn broken(model: &str, why: &Broken) -> Refused {
    tracing::debug!(model, "an upstream failed: {}", Outside::new(why.why.as_str()));
    let message = format!("the upstream of model '{model}' failed");
    let failure =
        Failure::new(FailureCode::Unreachable, message).with_help("try again later; the server's log has more");
    Refused { failure, outcome: Outcome::Failed, elsewhere: true, is_suspect: why.stage != Stage::Unsent }
}

/// The reason behind a status other than success.
pub(super) fn of_status(
    model: &str,
    status: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
    key: Option<&Secret>,
) -> Refused {
    let said = message(body, key);
    let failed = |code, message: String| Failure::new(code, message).private();
    let mut is_suspect = false;
    let (failure, outcome, elsewhere) = match status.as_u16() {
        // No client causes these, and another server may be set up as it should.
        401 | 403 => {
            let message = format!("the upstream of model '{model}' refuses this server's key");
            let help = "set upstream_key_env or upstream_key_file in its [[models]]";
            (Failure::new(FailureCode::Unreachable, message).with_help(help), Outcome::Unknown, true)
        }
        402 => {
            let message = format!("the upstream of model '{model}' wants to be paid first: {said}");
            let help = "see to the account that the key of its [[models]] belongs to";
            (failed(FailureCode::Unreachable, message).with_help(help), Outcome::Unknown, true)
        }
        404 => {
            let message = format!("the upstream of model '{model}' does not have it, or not this API: {said}");
            let help = "set upstream_model in its [[models]], and see that the URL ends in /v1";
            (failed(FailureCode::Unreachable, message).with_help(help), Outcome::Unknown, true)
        }
        408 | 429 | 503 | 529 => {
            let message = format!("the upstream of model '{model}' is busy: {said}");
            let failure = Failure { retry_after, ..failed(FailureCode::Busy, message) };
            (failure, Outcome::Busy { retry_after }, true)
        }
        400..=499 => {
            let failure = if is_too_long(body) {
                failed(FailureCode::TooLong, too_long(&said))
            } else {
                failed(FailureCode::Invalid, format!("the upstream of model '{model}': {said}"))
            };
            (failure, Outcome::Answered, false)
        }
        502 | 504 => {
            is_suspect = true;
            let message = format!("the upstream of model '{model}' failed: {said}");
            (failed(FailureCode::Unreachable, message), Outcome::Failed, true)
        }
        _ if is_too_long(body) => (failed(FailureCode::TooLong, too_long(&said)), Outcome::Answered, false),
        // The request may be the reason, and must not make the server one that is left out.
        other => {
            is_suspect = true;
            let message = format!("the upstream of model '{model}' answered {other}: {said}");
            (failed(FailureCode::Unreachable, message), Outcome::Unknown, true)
        }
    };
    Refused { failure, outcome, elsewhere, is_suspect }
}

/// An error in the middle of a stream.
pub(super) fn in_stream(model: &str, error: &Value, key: Option<&Secret>) -> Failure {
    let body = error.to_string();
    let said = message(body.as_bytes(), key);
    let failure = if is_too_long(body.as_bytes()) {
        Failure::new(FailureCode::TooLong, too_long(&said))
    } else if matches!(error["code"].as_u64(), Some(400 | 413 | 415 | 422)) {
        // Engines find out about some requests only once their answer has begun.
        Failure::new(FailureCode::Invalid, format!("the upstream of model '{model}': {said}"))
    } else {
        Failure::new(FailureCode::Unreachable, format!("the upstream of model '{model}' broke off: {said}"))
    };
    failure.private()
}

/// An upstream's refusal of a long prompt, with the words by which clients know one (see [`prompt_too_long`]).
///
/// [`prompt_too_long`]: crate::chat::prompt_too_long
fn too_long(said: &str) -> String {
    let lower = said.to_lowercase();
    let mut message =
        if lower.contains("prompt is too long") { said.to_owned() } else { format!("prompt is too long: {said}") };
    if !lower.contains("maximum context length") {
        message += "; it is beyond this model's maximum context length";
    }
    message
}

/// An answer that no server of its kind should send.
pub(super) fn nonsense(model: &str, what: &str) -> Failure {
    let message = format!("the upstream of model '{model}' {what}");
    Failure::new(FailureCode::Unreachable, message).with_help("send the request again")
}

fn is_too_long(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(16 << 10)]).to_lowercase();
    text.contains("context_length_exceeded") || TOO_LONG.iter().any(|words| text.contains(words))
}

/// The message of an error, wherever the server's kind has it.
fn message(body: &[u8], key: Option<&Secret>) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let found = parsed.as_ref().and_then(|body| {
        let places = ["/error/message", "/message", "/error", "/detail", "/object/message"];
        places.iter().find_map(|place| body.pointer(place)?.as_str())
    });
    let text = match (found, &parsed) {
        (Some(text), _) => text.to_owned(),
        (None, Some(body)) => body.to_string(),
        // A page of a proxy, most likely.
        (None, None) => "an answer that is not JSON".to_owned(),
    };
    let key = key.map(|key| String::from_utf8_lossy(key.reveal()).into_owned()).filter(|key| !key.is_empty());
    let text = key.map_or_else(|| text.clone(), |key| text.replace(&key, "…"));
    Outside::new(text).at_most(MESSAGE_CHARS_MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> Refused {
        let status = StatusCode::from_u16(status).unwrap_or_default();
        of_status("big", status, Some(Duration::from_secs(7)), body.as_bytes(), Some(&Secret::new("sk-1")))
    }

    #[test]
    fn whose_fault_an_error_is_follows_from_status_and_words() {
        let check = |status, body: &str, code, outcome, elsewhere| {
            let Refused { failure, outcome: is, elsewhere: goes, .. } = refused(status, body);
            assert_eq!((failure.code, is, goes), (code, outcome, elsewhere), "{status} {body}");
        };
        let busy = Outcome::Busy { retry_after: Some(Duration::from_secs(7)) };
        check(400, r#"{"error":{"message":"bad tools"}}"#, FailureCode::Invalid, Outcome::Answered, false);
        let vllm = r#"{"object":"error","message":"This model's maximum context length is 2048 tokens."}"#;
        check(400, vllm, FailureCode::TooLong, Outcome::Answered, false);
        let llama = r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"too large"}}"#;
        check(400, llama, FailureCode::TooLong, Outcome::Answered, false);
        for status in [401, 402, 403, 404] {
            check(status, "", FailureCode::Unreachable, Outcome::Unknown, true);
        }
        check(429, "", FailureCode::Busy, busy, true);
        check(500, "<html>", FailureCode::Unreachable, Outcome::Unknown, true);
        check(502, "", FailureCode::Unreachable, Outcome::Failed, true);
        let suspects = [401, 402, 404, 429, 500, 502, 503].map(|status| refused(status, "").is_suspect);
        assert_eq!(suspects, [false, false, false, false, true, true, false]);
    }

    #[test]
    fn a_refusal_of_a_long_prompt_has_the_words_that_clients_look_for() {
        let check = |said: &str, expected: &str| {
            let body = serde_json::json!({ "error": { "message": said } });
            assert_eq!(refused(400, &body.to_string()).failure.message, expected);
            let in_stream = in_stream("big", &body["error"], None);
            assert_eq!((in_stream.code, in_stream.message.as_str()), (FailureCode::TooLong, expected));
        };
        let anthropic = "prompt is too long: 9 tokens > 8 maximum";
        check(anthropic, &format!("{anthropic}; it is beyond this model's maximum context length"));
        let vllm = "This model's maximum context length is 8 tokens.";
        check(vllm, &format!("prompt is too long: {vllm}"));
        let llama = "the request exceeds the available context size";
        check(llama, &format!("prompt is too long: {llama}; it is beyond this model's maximum context length"));
    }

    #[test]
    fn an_error_in_a_stream_may_be_the_clients() {
        let check = |code: Value, expected| {
            let failure = in_stream("big", &serde_json::json!({ "message": "bad regex", "code": code }), None);
            assert_eq!((failure.code, failure.is_private), (expected, true), "{code}");
        };
        check(400.into(), FailureCode::Invalid);
        check(422.into(), FailureCode::Invalid);
        check(500.into(), FailureCode::Unreachable);
        check("400".into(), FailureCode::Unreachable);
        check(Value::Null, FailureCode::Unreachable);
    }

    #[test]
    fn a_message_is_short_and_has_no_key() {
        let text = refused(400, r#"{"error":{"message":"wrong key sk-1 \u001b[31m"}}"#).failure.message;
        assert_eq!(text, "the upstream of model 'big': wrong key … \\u{1b}[31m");
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(1 << 18));
        assert!(refused(400, &long).failure.message.len() < 1100);
        assert!(!format!("{:?}", refused(401, r#"{"error":{"message":"sk-1"}}"#)).contains("sk-1"));
    }
}
