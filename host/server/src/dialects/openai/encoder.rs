//! Encoding of answers: the entries of `choices`, as chunks or as a whole, and the object around them.

use serde_json::{Value, json};

use super::choice::ChoiceDelta;

/// Encodes one choice, either piece by piece with `chunks`, or with `keep` for every piece and `whole` at the end.
pub(super) trait ChoiceEncoder: Send {
    /// Entries of `choices` for this piece, each for its own chunk.
    fn chunks(&mut self, index: usize, piece: ChoiceDelta) -> Vec<Value>;
    fn keep(&mut self, piece: ChoiceDelta);
    /// The entry of `choices` for all kept pieces.
    fn whole(self: Box<Self>, index: usize) -> Value;
}

/// Fields common to all chunks of an answer.
#[derive(Clone, Debug)]
pub(super) struct ResponseHead {
    pub(super) id: String,
    /// `chat.completion`, `chat.completion.chunk` or `text_completion`.
    pub(super) object: &'static str,
    /// Creation time, in seconds since 1970.
    pub(super) created: u64,
    /// The model name from the client.
    pub(super) model: String,
    /// `system_fingerprint`; equal for equal weights.
    pub(super) fingerprint: String,
}

impl ResponseHead {
    pub(super) fn body(&self, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        })
    }
}

pub(super) fn event(data: &Value) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

/// Current time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
