//! The dialect without a model: bodies to requests, and deltas to events.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bodies;
mod boundaries;
mod context_management;
mod conversations;
mod deferred;
#[path = "../../../../../../tests/src/anthropic/order.rs"]
mod order;
mod sequences;

use serde_json::{Value, json};

use super::request;
use crate::{
    chat::{Conversation, Input, Request},
    dialects::{
        ApiError,
        fields::{Document, Notes},
    },
};

/// A valid body with these additional fields.
fn body(fields: &Value) -> Vec<u8> {
    let mut body = json!({
        "model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}],
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string().into_bytes()
}

/// Parses the bytes of a body.
fn message(body: &[u8]) -> Result<request::MessageRequest, ApiError> {
    request::message(&Document::unlimited(body, Notes::default())?.root())
}

fn read(fields: &Value) -> Result<Request, ApiError> {
    message(&body(fields)).map(|asked| asked.request)
}

fn conversation(fields: &Value) -> Conversation {
    match read(fields).unwrap().input {
        Input::Chat(conversation) => conversation,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refuses(fields: &Value, expected: &str) {
    assert_eq!(read(fields).map(|_| ()).unwrap_err().message, expected);
}
