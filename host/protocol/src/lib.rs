//! What the server process and the worker processes say to each other, as plain data.
//!
//! Jobs go to a worker and events come back, in the frames of [`wire`]; children that look at plugins and checkpoints in the
//! server's place answer [`questions`]. Nothing here runs foreign code, opens a model or knows a tensor, so that either
//! side can be rebuilt and tested without the other.

pub mod card;
pub mod checkpoint;
pub mod checkpoint_files;
pub mod conversation;
pub mod fence;
pub mod grammar;
pub mod job;
pub mod manifest;
pub mod outside;
pub mod path_policy;
pub mod prompt;
pub mod questions;
pub mod refusal;
pub mod share;
pub mod vocabulary;
pub mod wire;
