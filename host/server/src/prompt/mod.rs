//! Between a conversation and tokens: a model's chat template, its tokenizer, and how it writes tool calls and reasoning.
//! [`Chats`] turns a [`Request`](crate::chat::Request) into a job for the fleet, and the job's events into
//! [`Delta`](crate::chat::Delta)s.

mod chats;
mod convention;
pub mod formats;
mod generation;
pub mod measures;
mod sampling;
mod script;
mod size;
mod template;
mod tokens;

pub use chats::{Chats, Prepared};
pub use generation::Generation;
pub use script::Scripts;
