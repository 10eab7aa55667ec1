//! Inputs and outputs of the scheduler: limits, requests and refusals, plans and ended sequences. All plain data, so
//! that a test can write down what it expects.

use std::{fmt, ops::Range, time::Duration};

#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Maximum number of running sequences; for a per-sequence model, at most its number of states.
    pub sequences_max: usize,
    /// Maximum number of waiting sequences; more are refused.
    pub waiting_max: usize,
    /// Maximum number of tokens in a step; at least `sequences_max + chunk_min`.
    pub step_tokens_max: usize,
    /// Minimum number of prompt tokens in a step that has any, however slow the machine: prompts must get done. Above 1
    /// it may break `stretch`: on two CPU cores a prompt token takes about a third of a single stream's step.
    pub chunk_min: usize,
    pub chunk_max: usize,
    /// Factor by which a prefill chunk may lengthen a step beside streams.
    pub stretch: f64,
    /// Target time of a step that serves only prompts; a cancellation has to wait for it.
    pub prefill_step: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            waiting_max: 1024,
            step_tokens_max: 1024,
            chunk_min: 4,
            chunk_max: 512,
            stretch: 2.25,
            prefill_step: Duration::from_millis(500),
        }
    }
}

/// A sequence to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique among the scheduler's sequences.
    pub sequence: u64,
    /// Clients take turns, and none but [`ONLY_CLIENT`](pensieve_protocol::share::ONLY_CLIENT) may fill the queue.
    pub client: u64,
    /// Everything besides tokens that keys and values depend on: see [`root`](crate::engine::blocks::BlockTable::root).
    pub salt: Vec<u8>,
    /// At least one token.
    pub prompt: Vec<u32>,
    /// When to end it, on the clock of [`plan`](super::Scheduler::plan).
    pub deadline: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The prompt is empty.
    Empty,
    Duplicate,
    Busy {
        waiting: usize,
    },
    /// It would not fit even alone.
    TooLong {
        prompt: usize,
        /// Tokens that fit in all blocks together.
        room: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the prompt has no tokens; send at least one"),
            Self::Duplicate => write!(f, "a sequence with this id is already running"),
            Self::Busy { waiting } => {
                write!(f, "{waiting} requests are already waiting for this model; try again later")
            }
            Self::TooLong { prompt, room } => {
                write!(f, "the prompt has {prompt} tokens, this model's memory holds {room}; ")?;
                write!(f, "shorten the prompt, or raise the model's kv_budget")
            }
        }
    }
}

impl std::error::Error for Refused {}

/// Why the scheduler ended a sequence by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Deadline,
    /// It has outgrown all blocks together.
    NoRoom,
}

/// A range of one sequence's tokens to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub sequence: u64,
    /// Tokens before the range are computed.
    pub tokens: Range<usize>,
    /// The range ends where the next token is to be sampled.
    pub logits: bool,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The spans to compute; empty if everything waits for imports.
    pub spans: Vec<Span>,
    /// Sequences that lost their blocks; the scheduler resumes them by itself.
    pub preempted: Vec<u64>,
    pub ended: Vec<(u64, Ended)>,
}

/// Prompt tokens that a sequence did not have to compute, by where they were cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    pub memory: usize,
    pub disk: usize,
}
