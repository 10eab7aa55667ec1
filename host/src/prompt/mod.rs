//! Between a conversation and tokens: a model's chat template, its tokenizer, and how it writes tool calls and reasoning.
//! [`Chats`] turns a [`Request`] into a job for the fleet, and the job's events into [`Delta`]s.

use std::sync::Arc;

use crate::{
    chat::{Delta, Request},
    fleet::Fleet,
    job::{Failure, FailureCode},
};

/// What dialects talk to.
#[derive(Debug)]
pub struct Chats {
    fleet: Arc<Fleet>,
}

/// A request that is rendered, tokenized, counted and checked, and not yet queued.
#[derive(Debug)]
pub struct Prepared {
    input_tokens: u32,
}

/// An answer while it is written. Dropping it cancels the work.
#[derive(Debug)]
pub struct Generation {}

impl Chats {
    /// Serves this fleet.
    pub fn new(fleet: Arc<Fleet>) -> Self {
        Self { fleet }
    }

    /// The fleet behind it.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Renders, tokenizes and checks; the model need not be loaded. A prompt that leaves no room for a token is
    /// [`FailureCode::TooLong`] with the message `prompt is too long: N tokens > M maximum`.
    pub async fn prepare(&self, _request: Request) -> Result<Prepared, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }
}

impl Prepared {
    /// Tokens of the prompt, exactly.
    pub fn input_tokens(&self) -> u32 {
        self.input_tokens
    }

    /// Equal for equal weights and tokenizer.
    pub fn fingerprint(&self) -> &str {
        ""
    }

    /// Queues it.
    pub fn start(self) -> Result<Generation, Failure> {
        Err(Failure::new(FailureCode::Unsupported, "to be written"))
    }
}

impl Generation {
    /// The next piece; none after the last one.
    pub async fn next(&mut self) -> Option<Delta> {
        None
    }
}
