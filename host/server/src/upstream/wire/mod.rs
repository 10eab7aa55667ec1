//! Wire formats: requests in the terms of an upstream, and its answers in those of this server.

pub(super) mod chat_answer;
pub(super) mod chat_request;
pub(super) mod messages_answer;
pub(super) mod messages_request;

mod bounded;
mod content;
mod pieces;
mod unknown;

use std::sync::Arc;

use crate::{chat::Image, fleet::UpstreamKind};
use pensieve_protocol::job::{Failure, FailureCode};

/// The server's side of a request: how it is called there, and by which kind of program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addressee<'a> {
    /// The model's id here, for errors.
    pub(super) id: &'a str,
    /// The model's name there.
    pub(super) model: &'a str,
    pub(super) kind: UpstreamKind,
    /// It is OpenAI's own API.
    pub(super) is_openai: bool,
    pub(super) images: &'a [Arc<Image>],
}

impl Addressee<'_> {
    /// Error for what this kind of upstream has no words for.
    fn cannot(&self, what: &str, field: &str) -> Failure {
        let message = format!("the upstream of model '{}' ({}) cannot {what}", self.id, self.kind.name());
        let failure = Failure::new(FailureCode::Unsupported, message);
        if field.is_empty() { failure } else { failure.at(field) }
    }
}
