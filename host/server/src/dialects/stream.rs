//! Streaming for all dialects: opening events, deltas, keep-alives during silence, the end, and errors in the middle. A
//! dialect implements [`EventEncoder`], which knows its events but nothing about timing.

use std::{mem, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt,
    future::try_join_all,
    stream::{SelectAll, unfold},
};
use tokio::time::{Instant, timeout_at};

use super::{
    ApiError, ApiRequest, ErrorCode, Frame, FrameStream,
    memory::RequestMemory,
    usage::{Counted, Meter},
};
use crate::{
    answers::Generation,
    chat::{Delta, TokenLogprob},
    requests::Prepared,
};
use pensieve_protocol::job::{Failure, FailureCode};

/// Silence after which a keep-alive is sent; clients give up after 10 seconds or more.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long to wait for a first event before the status is sent. What a worker refuses at once, such as a grammar that
/// cannot be enforced, thus becomes an error with its own status.
pub(super) const FIRST_EVENT: Duration = Duration::from_millis(100);

/// Encodes the events of one dialect. A frame is empty if a delta has no event in the dialect.
pub(super) trait EventEncoder: Send {
    /// Events before the first delta.
    fn begin(&mut self) -> Frame;
    /// Events for a delta of the generation with index `choice`.
    fn delta(&mut self, choice: usize, delta: Delta) -> Result<Frame, ApiError>;
    /// A keep-alive; empty if the dialect has none.
    fn keep_alive(&mut self) -> Frame;
    /// Events after the last delta of all generations.
    fn end(&mut self) -> Result<Frame, ApiError>;
    /// The last frame of a failed answer.
    fn error(&mut self, error: &ApiError) -> Frame;
}

/// Deltas of one generation, each with the generation's index.
type ChoiceDeltas = Pin<Box<dyn Stream<Item = (usize, Delta)> + Send>>;

pub(super) struct Generations {
    deltas: SelectAll<ChoiceDeltas>,
    meter: Option<Meter>,
    /// Charged for answers that are collected before they are sent.
    memory: RequestMemory,
}

impl Generations {
    /// Queues all generations, and waits until `first_event` for errors that occur at once.
    pub(super) async fn start(
        call: &ApiRequest,
        prepared: Vec<Prepared>,
        first_event: Instant,
    ) -> Result<Self, Failure> {
        call.note_handover(prepared.first());
        let mut meter = Counted::of_all(&prepared).map(|counted| Meter::new(call, counted));
        let started = Self::listening(call, prepared, first_event).await;
        if let (Err(failure), Some(meter)) = (&started, &mut meter) {
            meter.fail(failure);
        }
        Ok(Self { meter, ..started? })
    }

    async fn listening(call: &ApiRequest, mut prepared: Vec<Prepared>, first_event: Instant) -> Result<Self, Failure> {
        charge(&call.memory, &mut prepared)?;
        let started = prepared.into_iter().map(|prepared| prepared.start(&call.request_id));
        let mut started = started.collect::<Result<Vec<Generation>, Failure>>()?;
        // All at once: an upstream gets its request when it is listened to.
        try_join_all(started.iter_mut().map(|generation| generation.listen(first_event))).await?;
        let mut generations = Self { memory: call.memory.clone(), ..Self::empty() };
        for (choice, generation) in started.into_iter().enumerate() {
            generations.push(
                choice,
                unfold(generation, |mut generation| async move { Some((generation.next().await?, generation)) }),
            );
        }
        Ok(generations)
    }

    /// One answer whose deltas come from elsewhere.
    pub(super) fn of(call: &ApiRequest, counted: Counted, deltas: impl Stream<Item = Delta> + Send + 'static) -> Self {
        let meter = Some(Meter::new(call, counted));
        let mut generations = Self { memory: call.memory.clone(), meter, ..Self::empty() };
        generations.push(0, deltas);
        generations
    }

    /// The next delta with its generation's index; `None` after the end of all.
    pub(super) async fn next(&mut self) -> Option<(usize, Delta)> {
        let (choice, delta) = self.deltas.next().await?;
        if let Some(meter) = &mut self.meter {
            meter.take(&delta);
        }
        Some((choice, delta))
    }

    /// Like `next`, for answers that are collected before they are sent: charges the delta to the request's memory.
    pub(super) async fn gather(&mut self) -> Result<Option<(usize, Delta)>, ApiError> {
        let next = self.next().await;
        if let Some((_, delta)) = &next {
            self.memory.keep(bytes_of(delta))?;
        }
        Ok(next)
    }

    /// No generations, for tests and to end a failed stream.
    pub(super) fn empty() -> Self {
        Self { deltas: SelectAll::new(), meter: None, memory: RequestMemory::default() }
    }

    pub(super) fn push(&mut self, choice: usize, deltas: impl Stream<Item = Delta> + Send + 'static) {
        self.deltas.push(Box::pin(deltas.map(move |delta| (choice, delta))));
    }
}

/// Charges what is sent to upstreams until it is not needed any more. Choices of one request share it.
fn charge(memory: &RequestMemory, prepared: &mut [Prepared]) -> Result<(), Failure> {
    let mut last: Option<Bytes> = None;
    for body in prepared.iter_mut().filter_map(Prepared::body_mut) {
        let charged = match last.take().filter(|last| last.as_ptr() == body.as_ptr()) {
            Some(shared) => shared,
            None => {
                let charged = memory.bytes(mem::take(body));
                charged.map_err(|error| Failure::new(FailureCode::Busy, error.message))?
            }
        };
        *body = charged.clone();
        last = Some(charged);
    }
    Ok(())
}

/// Approximate bytes of a collected delta.
fn bytes_of(delta: &Delta) -> usize {
    let token = |token: &TokenLogprob| size_of::<TokenLogprob>() + token.bytes.len();
    match delta {
        Delta::Text { text, logprobs } => {
            let tops = logprobs.iter().flat_map(|likelihood| &likelihood.top);
            text.len() + logprobs.iter().chain(tops).map(token).sum::<usize>()
        }
        Delta::Thinking(text) | Delta::ToolArguments(text) => text.len(),
        Delta::ToolCall { id, name } => id.len() + name.len(),
        // Values take a multiple of their text.
        Delta::Unknown(unknown) => 4 * unknown.bytes,
        Delta::Compacted { summary, .. } => summary.as_ref().map_or(0, String::len),
        _ => 0,
    }
}

pub(super) fn frames(encoder: impl EventEncoder + 'static, generations: Generations) -> FrameStream {
    frames_with(encoder, generations, KEEP_ALIVE)
}

/// Like `frames`, with another keep-alive interval.
pub(super) fn frames_with(
    encoder: impl EventEncoder + 'static,
    generations: Generations,
    keep_alive: Duration,
) -> FrameStream {
    // The parsed body is no longer needed. A stream holds only its queue and, in some dialects, the answer, which is
    // bounded by the model's context.
    let generations = Generations { memory: RequestMemory::default(), ..generations };
    let writer = Writer { encoder, generations, keep_alive, sent: None, is_over: false };
    Box::pin(unfold(writer, |mut writer| async move { Some((writer.next().await?, writer)) }))
}

struct Writer<E> {
    encoder: E,
    generations: Generations,
    keep_alive: Duration,
    /// When the last frame was sent.
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

/// Error for a generation that ended without `Finished` or `Failed`.
pub(super) fn ended_early() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the generation ended unexpectedly; send the request again")
}
