//! One generation on the wire: a [`Job`] goes to the worker, [`Event`]s come back. Both hold plain data and token ids, so the
//! server needs no plugin or model to read them, and a worker does not need to know which API a client uses.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{grammar::Spec, media::PromptItem, timeline::Timeline};

pub const STOP_BYTES_MAX: usize = 1024;

/// One generation to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Unique on its worker.
    pub id: u64,
    /// The client, for fair scheduling among clients.
    pub client: u64,
    /// Separates the prefix cache by API key.
    pub salt: Vec<u8>,
    /// Token ids of the prompt.
    pub tokens: Vec<u32>,
    /// Images and sounds in the prompt, in order of their tokens, which are disjoint.
    pub media: Vec<PromptItem>,
    pub max_tokens: u32,
    /// Time limit from arrival at the worker to the last token.
    pub deadline: Option<Duration>,
    pub seed: u64,
    /// The sampler chain with its parameters; empty for greedy decoding.
    pub stages: Vec<StageSpec>,
    /// Tokens that end the generation, besides those that end a turn.
    pub stop_tokens: Vec<u32>,
    /// Continues after end-of-turn tokens, for benchmarks.
    pub ignore_end_of_turn: bool,
    /// Byte strings that end the generation and are not shown.
    pub stops: Vec<Vec<u8>>,
    /// Report the log-probability of every token, and of this many of the most likely alternatives.
    pub logprobs: Option<u8>,
    pub grammar: Option<Spec>,
    /// `None` for an answer without recognisable reasoning.
    pub thinking: Option<Box<Thinking>>,
    pub adapter: Option<AdapterUse>,
    /// Asks for a row instead of text. Nothing is generated then.
    pub row: Option<RowWish>,
    /// Asks for a record of what the worker's threads do until the job ends.
    pub timeline: bool,
}

/// The pooled hidden rows of a job's tokens, after what follows pooling in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowWish {
    /// The row is cut to this many values, and normalized if the model's rows are.
    pub width: u32,
}

/// How the reasoning of an answer is recognised, and how it is concluded when it is too long or runs in circles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinking {
    /// Marker that opens it, special tokens by name.
    pub open: String,
    pub close: String,
    /// The prompt has opened it.
    pub begun: bool,
    /// It may be opened anywhere and more than once, rather than only at the start of the answer.
    pub anywhere: bool,
    /// Number of its tokens, including those that conclude it; `None` for no limit.
    pub budget: Option<u32>,
    /// Tokens that conclude it and begin what follows.
    pub conclusion: Vec<u32>,
    /// The same for reasoning that is opened again after a conclusion.
    pub again: Vec<u32>,
}

/// One stage of a sampling chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpec {
    pub sampler: String,
    /// A JSON object; empty for none.
    pub parameters: String,
    /// The request field that it comes from, for errors; empty if there is none.
    pub field: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterUse {
    /// The name that it was attached under.
    pub name: String,
    /// The strength; 1 is as trained.
    pub scale: f32,
}

/// Progress and result of a job. Every job that a worker accepts ends with [`Event::Finished`], [`Event::Failed`] or
/// [`Event::Row`], and no event follows that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Prefill is about to start.
    Started {
        prompt_tokens: u32,
        /// Of those, tokens found in the prefix cache.
        reused_tokens: u32,
    },
    /// Progress of prefill.
    Prompt {
        /// Prompt tokens computed or reused so far.
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
    /// The row that the job asked for; its end.
    Row {
        values: Vec<f32>,
        usage: Usage,
    },
    /// What the prefix cache has of the prompt, right before [`Event::Started`]; only sent if there is something to say.
    Cache {
        /// Tokens that were read from disk, of those that are reused.
        disk_tokens: u32,
        /// The block after the reused ones was in memory before.
        evicted: Option<Evicted>,
    },
    /// What the worker's threads did, right before the end of a job that asked for it.
    Timeline(Timeline),
}

/// An eviction from the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// The job that took the memory.
    pub by: u64,
    pub ago: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// All new tokens, including one that ends the generation.
    pub ids: Vec<u32>,
    /// Output bytes that are final. They lag behind the ids while they may be the start of a stop string; special
    /// tokens have none.
    pub bytes: Vec<u8>,
    /// One per id, if the job asked for them.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Log-probabilities at a token's position, before samplers and grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    pub logprob: f32,
    /// The most likely tokens at this position, in descending order.
    pub top: Vec<(u32, f32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finish {
    EndOfTurn,
    Length,
    /// The stop string with this index in `Job::stops` is complete.
    StopString(u32),
    StopToken(u32),
    Deadline,
    Cancelled,
    /// The model's context or its KV cache is full.
    ContextFull,
    GrammarDone,
    Repetition,
    /// By an upstream: a filter has cut it off, or the model will not go on.
    Refused,
    /// By an upstream in the middle of a long turn, which goes on once it is sent back.
    Paused,
}

/// Token counts of a job, as reported to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt: u32,
    /// Of those, tokens found in the prefix cache.
    pub reused: u32,
    /// Generated tokens, including the one that ended it.
    pub generated: u32,
}

/// An error for a client or operator: what failed, on what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
    /// How to fix it; may be empty.
    pub help: String,
    /// The request field that is at fault; empty if none is.
    pub field: String,
    /// When to retry, if known.
    pub retry_after: Option<Duration>,
    /// The message quotes the client, so it must not be logged.
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
    /// The queue is full.
    Busy,
    /// The worker accepts no new jobs, because it is about to exit.
    Draining,
    Plugin,
    NotANumber,
    /// A plugin call did not return in time.
    Stalled,
    /// The worker process ended without a report.
    WorkerLost,
    Internal,
    Forbidden,
    Conflict,
    /// An upstream server that the request needs is not answering correctly.
    Unreachable,
    /// The model's workers crashed too often, so it is not loaded for a while.
    Quarantined,
    /// The model's device or its driver failed.
    Device,
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

    /// Sets the request field that is at fault.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// Keeps the message out of logs, because it quotes the client.
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
        matches!(self, Self::Finished { .. } | Self::Failed(_) | Self::Row { .. })
    }
}
