//! What server and worker say to each other about one generation: a [`Job`] goes down, [`Event`]s come back. Plain data
//! and token ids, so that the server never needs a plugin or a model to understand it, and a worker never needs to know
//! which API a client speaks.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::grammar::Spec;

pub const STOP_BYTES_MAX: usize = 1024;

/// One generation to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Unique on its worker.
    pub id: u64,
    /// Who asks: clients take turns.
    pub client: u64,
    /// Keeps the cached prompts of one API key out of reach of others.
    pub salt: Vec<u8>,
    /// Token ids of the prompt.
    pub tokens: Vec<u32>,
    pub max_tokens: u32,
    /// How long it may take in all, from its arrival at the worker.
    pub deadline: Option<Duration>,
    pub seed: u64,
    /// The sampler chain (sampling parameters included); empty for greedy decoding.
    pub stages: Vec<StageSpec>,
    /// Tokens that end the generation, besides those that end a turn.
    pub stop_tokens: Vec<u32>,
    /// Whether to go on after a token that ends a turn, as a measurement does.
    pub ignore_end_of_turn: bool,
    /// Byte strings that end the generation and are not shown.
    pub stops: Vec<Vec<u8>>,
    /// Report the log-probability of every token, and of this many of the most likely alternatives.
    pub logprobs: Option<u8>,
    pub grammar: Option<Spec>,
    pub adapter: Option<AdapterUse>,
}

/// One stage of a sampling chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpec {
    pub sampler: String,
    /// Its parameters, a JSON object; empty for none.
    pub parameters: String,
    /// The field of the request that names it, for errors; empty if none does.
    pub field: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterUse {
    /// The name that it was attached by.
    pub name: String,
    /// The strength; 1 is as trained.
    pub scale: f32,
}

/// What became of a job. Every job that a worker takes ends with [`Event::Finished`] or [`Event::Failed`], and nothing
/// follows that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Its prompt is about to be computed.
    Started {
        prompt_tokens: u32,
        /// Of those, how many need not be computed.
        reused_tokens: u32,
    },
    /// How far its prompt is.
    Prompt {
        /// Tokens that are computed or reused.
        computed: u32,
        total: u32,
    },
    Tokens(Tokens),
    Finished {
        reason: Finish,
        usage: Usage,
    },
    /// The job failed; no usage is known.
    Failed(Failure),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// All new tokens, those that end the generation included.
    pub ids: Vec<u32>,
    /// The bytes that may be shown now. They lag behind the ids while they may yet become a stop string; special tokens
    /// have none.
    pub bytes: Vec<u8>,
    /// One per id, if the job asked for them.
    pub logprobs: Vec<TokenLogprobs>,
}

/// How likely a token was before any sampler or grammar had a say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    pub logprob: f32,
    /// The most likely tokens in its place, the most likely first.
    pub top: Vec<(u32, f32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finish {
    EndOfTurn,
    Length,
    /// The stop string at this place of the job is complete.
    StopString(u32),
    StopToken(u32),
    Deadline,
    Cancelled,
    /// The model's context, or the memory for it, is full.
    ContextFull,
    GrammarDone,
    Repetition,
}

/// Token counts of a job, as clients are told them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt: u32,
    /// Of those, how many were taken over from earlier jobs.
    pub reused: u32,
    /// Tokens generated, up to and with the one that ended it.
    pub generated: u32,
}

/// What went wrong, to what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
    /// The field of the request that is at fault; empty if none is.
    pub field: String,
    /// After how long it makes sense to try again, where that is known.
    pub retry_after: Option<Duration>,
    /// Whether the message repeats what a client wrote, so that no log may have it.
    pub is_private: bool,
}

/// Which party can act on a failure: the client, the operator, or a plugin's author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCode {
    Invalid,
    /// The prompt is longer than the model's context or memory.
    TooLong,
    NotFound,
    Unsupported,
    /// Too many others are waiting.
    Busy,
    /// The worker takes no new jobs, because it is about to end.
    Draining,
    Plugin,
    NotANumber,
    /// A plugin did not come back in time.
    Stalled,
    /// The worker's process ended without a report.
    WorkerLost,
    Internal,
    Forbidden,
    Conflict,
    /// Another server, which the request needs, does not answer as it should.
    Unreachable,
    /// The model's workers died too often, and it is not loaded for a while.
    Quarantined,
}

impl Failure {
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            help: String::new(),
            field: String::new(),
            retry_after: None,
            is_private: false,
        }
    }

    /// Adds the field of the request that is at fault.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// Keeps the message out of logs, since it repeats what a client wrote.
    #[must_use]
    pub fn private(self) -> Self {
        Self { is_private: true, ..self }
    }

    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

impl Event {
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}
