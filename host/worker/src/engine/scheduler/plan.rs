//! Inputs and outputs of the scheduler: its limits, requests and why one is refused, plans and why a sequence ended. All of
//! it is plain data, so that a test can write down what it expects.

use std::{fmt, ops::Range, time::Duration};

#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most sequences that run at once. For a per-sequence model, no more than its states.
    pub sequences_max: usize,
    /// The most sequences that wait; more are refused.
    pub waiting_max: usize,
    /// The most tokens in a step; at least `sequences_max + chunk_min`.
    pub step_tokens_max: usize,
    /// The fewest prompt tokens in a step that has any, however slow the machine: prompts must get done. Above 1 it may
    /// break `stretch`: on two CPU cores a prompt token takes about a third of a single stream's step.
    pub chunk_min: usize,
    pub chunk_max: usize,
    /// The factor by which a prefill chunk may lengthen a step beside streams.
    pub stretch: f64,
    /// The target time of a step that serves only prompts: a cancellation waits for it.
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
    /// Its id, which no other sequence here has.
    pub sequence: u64,
    /// The client; clients take turns, and none may fill the queue but [`ONLY_CLIENT`](pensieve_protocol::share::ONLY_CLIENT).
    pub client: u64,
    /// Everything besides tokens that its keys and values depend on: see [`root`](crate::engine::blocks::BlockTable::root).
    pub salt: Vec<u8>,
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// When it is ended, on the clock of [`plan`](super::Scheduler::plan).
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
        /// Tokens that all blocks together hold.
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

/// Why the scheduler ended a sequence on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Deadline,
    /// It has grown beyond what all blocks together hold.
    NoRoom,
}

/// Some tokens of one sequence to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub sequence: u64,
    /// A range of its tokens; those before are computed.
    pub tokens: Range<usize>,
    /// They end where the next token is to be sampled.
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
