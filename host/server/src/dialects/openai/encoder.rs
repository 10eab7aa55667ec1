//! How answers are written: the entries of `choices`, as chunks or as a whole, and what stands around them.

use serde_json::{Value, json};

use super::choice::ChoiceDelta;

/// Writes one choice of an answer. One that is streamed is asked for chunks, one that is not keeps all pieces.
pub(super) trait ChoiceEncoder: Send {
    /// The entries of `choices` that say this piece, each for a chunk of its own.
    fn chunks(&mut self, index: usize, piece: ChoiceDelta) -> Vec<Value>;
    fn keep(&mut self, piece: ChoiceDelta);
    /// The entry of `choices` that says all that was kept.
    fn whole(self: Box<Self>, index: usize) -> Value;
}

/// What all chunks of an answer, or the whole of it, have in common.
#[derive(Clone, Debug)]
pub(super) struct ResponseHead {
    pub(super) id: String,
    /// `chat.completion` or `chat.completion.chunk` or `text_completion`.
    pub(super) object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub(super) created: u64,
    /// The model, as the client called it.
    pub(super) model: String,
    /// Equal for equal weights.
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

/// Now, in seconds since 1970.
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
