//! Inputs and outputs of the scheduler: limits, requests and refusals, plans and ended sequences. All plain data, so
//! that a test can write down what it expects.

use std::{fmt, ops::Range, time::Duration};

use crate::engine::blocks::{ItemSpan, run_around};

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
    /// Maximum number of prompt tokens in a step, however fast the machine.
    pub chunk_max: usize,
    /// Factor by which a prefill chunk may lengthen a step beside streams.
    pub stretch: f64,
    /// Target time of a step that serves only prompts; a cancellation has to wait for it. Weights are unpacked once per step:
    /// with half a second, a prompt of 512 tokens on one CPU core took a fifth to a half longer.
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
            prefill_step: Duration::from_secs(1),
        }
    }
}

/// How a sequence's tokens are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// In chunks; what others have computed of it is reused, and what it leaves is kept for others.
    #[default]
    Shared,
    /// In chunks, from the first token: an output of every token is needed.
    Alone,
    /// The same, in one chunk.
    Whole,
}

/// A sequence to run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Unique among the scheduler's sequences.
    pub sequence: u64,
    /// Clients take turns, and none but [`ONLY_CLIENT`](pensieve_protocol::share::ONLY_CLIENT) may fill the queue.
    pub client: u64,
    /// Everything besides tokens that keys and values depend on: see [`root`](crate::engine::blocks::BlockTable::root).
    pub salt: Vec<u8>,
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Items in the prompt, in order and disjoint.
    pub items: Vec<ItemSpan>,
    /// Ranges of the prompt that are computed in one step each, in order and disjoint.
    pub runs: Vec<Range<usize>>,
    pub reading: Reading,
    /// A row is made of it instead of text.
    pub row: bool,
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
    /// Tokens that see each other are more than a step can hold.
    RunTooLong {
        run: usize,
        most: usize,
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
            Self::RunTooLong { run, most } => {
                write!(
                    f,
                    "an item in the prompt takes {run} tokens that are computed in one step, and a step holds {most}; "
                )?;
                write!(f, "send a smaller one, or raise the model's kv_budget")
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

/// A prompt that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt<'a> {
    /// Its index among the running sequences.
    pub(super) index: usize,
    /// Tokens to read now.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Ranges that are computed in one step each.
    pub(super) runs: &'a [Range<usize>],
}

impl Prompt<'_> {
    /// How many of up to `most` tokens to compute from token `from` on. A run is computed if it fits into what is left of
    /// a chunk, or if its prompt `is_due`.
    fn fitting(&self, from: usize, most: usize, rest: usize, is_due: bool) -> usize {
        let end = from + most.min(rest).min(self.end - from);
        match run_around(self.runs, end) {
            None => end - from,
            Some(run) if run.start > from => run.start - from,
            Some(run) if run.len() <= rest || is_due && rest > 0 => run.end - from,
            Some(_) => 0,
        }
    }
}

/// The last token at or before `end` before which a step may end, given that it begins at `start`.
pub(super) fn round_down(runs: &[Range<usize>], start: usize, end: usize) -> usize {
    run_around(runs, end).map_or(end, |run| run.start.max(start))
}

/// Distributes a chunk's tokens over prompts, oldest first; returns how many found a prompt. A run longer than a chunk gets a
/// step as soon as its prompt is the oldest.
pub(super) fn split(chunk: usize, prompts: &[Prompt<'_>], lengths: &mut [usize]) -> usize {
    let Some(&oldest) = prompts.first() else { return 0 };
    let mut by_left = prompts.to_vec();
    by_left.sort_by_key(|prompt| prompt.end - prompt.start);
    let (mut rest, mut given) = (chunk, 0);
    let mut give = |prompt: Prompt<'_>, most: usize, is_due: bool| {
        let from = prompt.start + lengths[prompt.index];
        let tokens = if from < prompt.end { prompt.fitting(from, most, rest, is_due) } else { 0 };
        lengths[prompt.index] += tokens;
        rest = rest.saturating_sub(tokens);
        given += tokens;
    };
    give(oldest, chunk.div_ceil(2), true);
    for prompt in by_left {
        give(prompt, chunk, false);
    }
    given
}
