//! The stream core of all dialects: what leaves before the model answers, deltas as they come, a sign of life while
//! nothing else is sent, the end, and an error in the middle. A dialect brings an [`EventEncoder`], which knows its events
//! and nothing of time.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{
    Stream, StreamExt,
    stream::{SelectAll, unfold},
};
use tokio::time::{Instant, timeout_at};

use super::{ApiError, ApiRequest, ErrorCode, Frame, FrameStream, Shared, memory::RequestMemory, usage::Meter};
use crate::{
    answers::Generation,
    chat::{Delta, TokenLogprob},
    requests::Prepared,
};
use pensieve_protocol::job::Failure;

/// A stream says that it is alive after this much silence; clients give up after 10 seconds or more.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long generations are listened to before a stream is promised, as it cannot take back its status: what a worker
/// refuses outright, such as a grammar that cannot be enforced, is an error with a status of its own.
pub(super) const FIRST_EVENT: Duration = Duration::from_millis(100);

/// Writes the events of one dialect. Frames may be empty where a delta means nothing to its clients.
pub(super) trait EventEncoder: Send {
    /// What leaves before the model has answered.
    fn begin(&mut self) -> Frame;
    /// What a delta of one of the generations means.
    fn delta(&mut self, choice: usize, delta: Delta) -> Result<Frame, ApiError>;
    /// A sign of life; empty where the dialect has none.
    fn keep_alive(&mut self) -> Frame;
    /// What follows the last delta of all generations.
    fn end(&mut self) -> Result<Frame, ApiError>;
    /// The last frame of an answer that broke off.
    fn error(&mut self, error: &ApiError) -> Frame;
}

/// The deltas of one generation, each with the place of its generation.
type ChoiceDeltas = Pin<Box<dyn Stream<Item = (usize, Delta)> + Send>>;

pub(super) struct Generations {
    deltas: SelectAll<ChoiceDeltas>,
    meter: Option<(Meter, Arc<Shared>)>,
    /// Charged for an answer that is gathered before it is sent.
    memory: RequestMemory,
}

impl Generations {
    /// Queues all of them, and waits until `first_event` for what may be refused at once.
    pub(super) async fn start(
        call: &ApiRequest,
        prepared: Vec<Prepared>,
        first_event: Instant,
    ) -> Result<Self, Failure> {
        let meter = prepared.first().map(|first| (Meter::new(call.client().id, first), call.shared.clone()));
        let started = prepared.into_iter().map(Prepared::start).collect::<Result<Vec<Generation>, Failure>>()?;
        let mut generations = Self { meter, memory: call.memory.clone(), ..Self::empty() };
        for (choice, mut generation) in started.into_iter().enumerate() {
            generation.listen(first_event).await?;
            generations.push(
                choice,
                unfold(generation, |mut generation| async move { Some((generation.next().await?, generation)) }),
            );
        }
        Ok(generations)
    }

    /// The next delta, with the place of its generation; none at the end of all.
    pub(super) async fn next(&mut self) -> Option<(usize, Delta)> {
        let (choice, delta) = self.deltas.next().await?;
        if let Some((meter, shared)) = &mut self.meter {
            match &delta {
                Delta::Finished { usage, .. } => shared.usage.finish(meter, *usage),
                Delta::Text { .. } | Delta::Thinking(_) | Delta::ToolCall { .. } => meter.delta(),
                _ => {}
            }
        }
        Some((choice, delta))
    }

    /// The same for an answer that is gathered before it is sent: what it takes counts as the request's.
    pub(super) async fn gather(&mut self) -> Result<Option<(usize, Delta)>, ApiError> {
        let next = self.next().await;
        if let Some((_, delta)) = &next {
            self.memory.keep(bytes_of(delta))?;
        }
        Ok(next)
    }

    /// None at all, as a stream for tests and for the end of one that failed.
    pub(super) fn empty() -> Self {
        Self { deltas: SelectAll::new(), meter: None, memory: RequestMemory::default() }
    }

    pub(super) fn push(&mut self, choice: usize, deltas: impl Stream<Item = Delta> + Send + 'static) {
        self.deltas.push(Box::pin(deltas.map(move |delta| (choice, delta))));
    }
}

/// Approximate bytes of a delta that is kept.
fn bytes_of(delta: &Delta) -> usize {
    let token = |token: &TokenLogprob| size_of::<TokenLogprob>() + token.bytes.len();
    match delta {
        Delta::Text { text, logprobs } => {
            let tops = logprobs.iter().flat_map(|likelihood| &likelihood.top);
            text.len() + logprobs.iter().chain(tops).map(token).sum::<usize>()
        }
        Delta::Thinking(text) | Delta::ToolArguments(text) => text.len(),
        Delta::ToolCall { id, name } => id.len() + name.len(),
        _ => 0,
    }
}

pub(super) fn frames(encoder: impl EventEncoder + 'static, generations: Generations) -> FrameStream {
    frames_with(encoder, generations, KEEP_ALIVE)
}

/// The same with another interval of signs of life.
pub(super) fn frames_with(
    encoder: impl EventEncoder + 'static,
    generations: Generations,
    keep_alive: Duration,
) -> FrameStream {
    // What the body became is gone. A stream keeps what is in its queue, and for some dialects its answer, which the model's
    // context bounds.
    let generations = Generations { memory: RequestMemory::default(), ..generations };
    let writer = Writer { encoder, generations, keep_alive, sent: None, is_over: false };
    Box::pin(unfold(writer, |mut writer| async move { Some((writer.next().await?, writer)) }))
}

struct Writer<E> {
    encoder: E,
    generations: Generations,
    keep_alive: Duration,
    /// When the last frame left.
    sent: Option<Instant>,
    is_over: bool,
}

impl<E: EventEncoder> Writer<E> {
    async fn next(&mut self) -> Option<Frame> {
        let mut frame = Frame::default();
        if self.sent.is_none() {
            self.sent = Some(Instant::now());
            frame = self.encoder.begin();
        }
        while frame.is_empty() && !self.is_over {
            frame = self.advance().await;
        }
        self.sent = Some(Instant::now());
        (!frame.is_empty()).then_some(frame)
    }

    async fn advance(&mut self) -> Frame {
        let deadline = self.sent.unwrap_or_else(Instant::now) + self.keep_alive;
        let encoded = match timeout_at(deadline, self.generations.next()).await {
            Ok(Some((choice, delta))) => self.encoder.delta(choice, delta),
            Ok(None) => {
                self.is_over = true;
                self.encoder.end()
            }
            Err(_) => {
                self.sent = Some(Instant::now());
                return self.encoder.keep_alive();
            }
        };
        encoded.unwrap_or_else(|error| {
            self.is_over = true;
            // Dropping the other generations cancels them.
            self.generations = Generations::empty();
            tracing::Span::current().record("reason", error.reason());
            self.encoder.error(&error)
        })
    }
}

pub(super) fn event(name: &str, data: &serde_json::Value) -> Vec<u8> {
    format!("event: {name}\ndata: {data}\n\n").into_bytes()
}

/// The error of an answer whose generation ended without a last delta.
pub(super) fn ended_early() -> ApiError {
    ApiError::new(ErrorCode::Internal, "a generation ended without saying why; send the request again")
}
