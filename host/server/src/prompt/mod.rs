//! Between a conversation and tokens: the processes that render and tokenize (`pool`), and how a model writes tool calls and
//! reasoning.
//! [`Chats`] turns a [`Request`](crate::chat::Request) into a job for the fleet, and the job's events into
//! [`Delta`](crate::chat::Delta)s.

mod chats;
mod convention;
pub mod formats;
mod generation;
pub mod measures;
mod pool;
mod sampling;
mod size;

pub use chats::{Chats, Prepared};
pub use generation::Generation;
