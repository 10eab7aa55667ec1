//! The APIs that clients speak. A dialect turns a request's body into a [`crate::chat::Request`] and the answer's pieces
//! into its own JSON and events. It is the only place that knows that JSON, and it knows nothing of connections: `http`
//! hands it a body and writes down what it says.

pub(crate) mod anthropic;
pub(crate) mod openai;

pub(crate) mod adapters;
pub(crate) mod execute;
pub(crate) mod token_stream;

mod extras;
mod fields;
mod plain;
mod presence;

use std::{pin::Pin, sync::Arc};

use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::chat::Client;
use pensieve_protocol::job::{Failure, FailureCode};

/// Whose API a client speaks, as far as that shows before a route is known: it decides the envelope of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Anthropic's, and everything that is nobody else's.
    Anthropic,
    /// OpenAI's.
    OpenAi,
}

impl Dialect {
    /// The dialect of a path. Both APIs list models at the same one; Anthropic's clients send `anthropic-version`.
    pub(crate) fn of(path: &str, anthropic_version: bool) -> Self {
        match path {
            "/v1/chat/completions" | "/v1/completions" => Self::OpenAi,
            _ if path == "/v1/models" || path.starts_with("/v1/models/") => {
                if anthropic_version {
                    Self::Anthropic
                } else {
                    Self::OpenAi
                }
            }
            _ => Self::Anthropic,
        }
    }

    /// The status and the JSON for a problem.
    pub(crate) fn envelope(self, problem: &Problem, request_id: &str) -> (u16, Vec<u8>) {
        match self {
            Self::Anthropic => anthropic::envelope(problem, request_id),
            Self::OpenAi => openai::envelope(problem, request_id),
        }
    }
}

/// The places for streams, of which there are so many. By default there is no end of them.
#[derive(Clone, Debug, Default)]
pub struct Places {
    places: Option<(Arc<Semaphore>, usize)>,
}

/// A stream's place, until it is dropped.
#[derive(Debug, Default)]
pub struct Place {
    _place: Option<OwnedSemaphorePermit>,
}

impl Places {
    /// So many.
    pub fn new(count: usize) -> Self {
        Self { places: Some((Arc::new(Semaphore::new(count)), count)) }
    }

    /// Takes a place, before any work is begun for it.
    pub fn take(&self) -> Result<Place, Problem> {
        let Some((places, count)) = &self.places else { return Ok(Place::default()) };
        let taken = places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{count} answers are streamed already; try again later");
            Problem::new(ProblemKind::Overloaded, message)
        })?;
        Ok(Place { _place: Some(taken) })
    }
}

/// A request that has come through the door: its body is within the limit, and its sender is known.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// What stands for the model's id in its path; empty where that has none.
    pub id: String,
    /// The body, not parsed yet.
    pub body: Vec<u8>,
    /// Who sent it.
    pub client: Client,
    /// What the answer's header and its errors call it.
    pub request_id: String,
    /// Where an answer that is streamed takes its place.
    pub places: Places,
}

/// What goes back.
pub enum Answer {
    /// One body.
    Whole {
        /// The status.
        status: u16,
        /// Its media type.
        media_type: &'static str,
        /// The body.
        body: Vec<u8>,
    },
    /// Pieces as they come, each written at once. Dropping the stream cancels the work behind it.
    Stream {
        /// The media type, `text/event-stream` as a rule.
        media_type: &'static str,
        /// The pieces, framed already.
        pieces: Pieces,
        /// Its place among the streams.
        place: Place,
    },
}

/// Pieces of a streamed answer.
pub type Pieces = Pin<Box<dyn Stream<Item = Vec<u8>> + Send>>;

/// Why a request is not served, whatever its dialect; each dialect has an envelope for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whose affair it is.
    pub kind: ProblemKind,
    /// What happened, to what, and what to do. Names the field, if one is at fault.
    pub message: String,
    /// The field at fault.
    pub field: Option<String>,
}

/// Whose affair a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The request makes no sense.
    InvalidRequest,
    /// No key, or a wrong one.
    Authentication,
    /// Not from there, or not to there.
    Permission,
    /// No such route or model.
    NotFound,
    /// The route has no such method.
    Method,
    /// What is to be made is there already.
    Conflict,
    /// The body is not JSON by its content type.
    MediaType,
    /// The body is too large.
    TooLarge,
    /// The prompt does not fit the model.
    TooLong,
    /// Too many requests are waiting.
    Overloaded,
    /// The server is about to end.
    Unavailable,
    /// The body or the answer took too long.
    Timeout,
    /// Something failed here.
    Internal,
    /// Something failed at another server that this one asked.
    Upstream,
}

impl Problem {
    /// A problem that belongs to no field.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), field: None }
    }

    /// A value that cannot be: the message says `FIELD: WHY`.
    pub fn field(field: impl Into<String>, why: impl std::fmt::Display) -> Self {
        let field = field.into();
        Self { kind: ProblemKind::InvalidRequest, message: format!("{field}: {why}"), field: Some(field) }
    }
}

impl From<Answer> for Result<Answer, Problem> {
    fn from(answer: Answer) -> Self {
        Ok(answer)
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let kind = match failure.code {
            FailureCode::Invalid | FailureCode::Unsupported => ProblemKind::InvalidRequest,
            FailureCode::TooLong => ProblemKind::TooLong,
            FailureCode::NotFound => ProblemKind::NotFound,
            FailureCode::Forbidden => ProblemKind::Permission,
            FailureCode::Conflict => ProblemKind::Conflict,
            FailureCode::Unreachable => ProblemKind::Upstream,
            FailureCode::Busy => ProblemKind::Overloaded,
            FailureCode::Draining | FailureCode::Quarantined => ProblemKind::Unavailable,
            FailureCode::Plugin
            | FailureCode::NotANumber
            | FailureCode::Stalled
            | FailureCode::WorkerLost
            | FailureCode::Internal => ProblemKind::Internal,
        };
        let message = failure.to_string();
        Self { field: Some(failure.field).filter(|field| !field.is_empty()), kind, message }
    }
}
