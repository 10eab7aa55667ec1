//! The messages between the server and its child processes, as plain data.
//!
//! Jobs go to a worker and events come back, in the frames of [`wire`]; children that inspect plugins and checkpoints on the
//! server's behalf answer [`questions`]. Nothing here runs plugin code, opens a model or knows tensors, so that either side
//! can be built and tested without the other.

pub mod awake;
pub mod card;
pub mod checkpoint;
pub mod checkpoint_files;
pub mod conversation;
pub mod decoding;
pub mod fence;
pub mod grammar;
pub mod job;
pub mod manifest;
pub mod media;
pub mod outside;
pub mod path_policy;
pub mod prompt;
pub mod python_numbers;
pub mod quarantine;
pub mod questions;
pub mod refusal;
pub mod rows;
pub mod share;
pub mod timeline;
pub mod towers;
pub mod vocabulary;
pub mod wire;
