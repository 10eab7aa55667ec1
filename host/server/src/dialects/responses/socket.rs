//! Responses over a WebSocket: each message of the client asks for one, whose events come back as messages.
//!
//! A response that is not to be stored can be named in `previous_response_id` as long as it is the last one of its
//! connection; an attempt to go on from it that fails forgets it.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::{create, error_body};
use crate::{
    dialects::{
        ApiBody, ApiError, ApiRequest, ErrorCode, Frame, FrameStream, Shared, StreamPermit, stream::ended_early,
    },
    requests::Chats,
};

const CREATE: &str = "response.create";
const FAILED: &str = r#"{"type":"response.failed""#;

/// The memory of a connection: its last response, if that is not stored for all.
pub(crate) struct Conversation {
    shared: Arc<Shared>,
    /// Owns the responses that are not to be stored.
    local: u64,
}

/// A response in the making.
pub(crate) struct Answer {
    frames: FrameStream,
    _permit: StreamPermit,
    previous: Option<String>,
}

#[derive(Deserialize)]
struct Asked {
    #[serde(rename = "type")]
    kind: String,
    previous_response_id: Option<String>,
}

impl Conversation {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, local: fastrand::u64(1..) }
    }

    /// Starts the response that a message asks for.
    pub(crate) async fn answer(&self, chats: Arc<Chats>, call: ApiRequest) -> Result<Answer, ApiError> {
        let wrong = |why: String| ApiError::new(ErrorCode::InvalidRequest, why);
        // A list would be taken for the fields in their order.
        let first = call.body.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|first| b"[\"tfn-0123456789".contains(first)) {
            return Err(wrong("a message should be a JSON object".to_owned()));
        }
        let asked: Asked = serde_json::from_slice(&call.body)
            .map_err(|error| wrong(format!("a message should be a JSON object with a type: {error}")))?;
        if asked.kind != CREATE {
            return Err(ApiError::field("type", format_args!("should be '{CREATE}', the only message served")));
        }
        let previous = asked.previous_response_id;
        match create(chats, ApiRequest { local: Some(self.local), ..call }).await.map(|response| response.body) {
            Ok(ApiBody::Stream(frames, permit)) => Ok(Answer { frames, _permit: permit, previous }),
            Ok(ApiBody::Full(_)) => Err(ended_early()),
            Err(error) => {
                self.forget(previous.as_deref());
                Err(error)
            }
        }
    }

    /// The messages of a frame.
    pub(crate) fn messages(&self, answer: &Answer, frame: Frame) -> Vec<String> {
        let bytes = frame.concat();
        let events = String::from_utf8_lossy(&bytes);
        let messages: Vec<String> = events.split("\n\n").filter_map(data).map(str::to_owned).collect();
        if messages.iter().any(|message| message.starts_with(FAILED)) {
            self.forget(answer.previous.as_deref());
        }
        messages
    }

    fn forget(&self, previous: Option<&str>) {
        if let Some(previous) = previous {
            self.shared.responses.remove(self.local, previous);
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.shared.responses.remove_others(self.local, "");
    }
}

impl Answer {
    pub(crate) fn frames(&mut self) -> &mut FrameStream {
        &mut self.frames
    }
}

/// The data of a server-sent event.
fn data(event: &str) -> Option<&str> {
    event.lines().find_map(|line| line.strip_prefix("data: "))
}

/// Status and message of an error outside of any response.
pub(crate) fn refused(error: &ApiError) -> (u16, String) {
    let (status, mut body) = error_body(&error.clipped());
    if body["code"].is_null() {
        body["code"] = body["type"].clone();
    }
    (status, json!({ "type": "error", "status": status, "error": body }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_message_without_its_name() {
        assert_eq!(data("event: a\ndata: {\"b\":1}"), Some("{\"b\":1}"));
        assert_eq!(data(": ping"), None);
        assert_eq!(data(""), None);
    }

    #[test]
    fn every_error_has_a_code() {
        let (status, text) = refused(&ApiError::field("type", "is wrong"));
        assert_eq!(status, 400);
        assert!(text.contains(r#""code":"invalid_request_error""#), "{text}");
    }
}
