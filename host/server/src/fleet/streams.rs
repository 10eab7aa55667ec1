//! The data plane: a worker's token events go from the task that reads its socket straight to the queues of their
//! streams. The supervisor does not see them, only the ends of jobs.
//!
//! Queues are bounded in bytes, and the socket's task never waits for one: if a client reads so slowly that its queue
//! fills up, its stream is cancelled and ends with a failure, so that it cannot stall the worker's other streams.
//! Events are checked against the jobs' limits, since the memory behind a stream belongs to the server.

use std::{
    collections::{HashMap, VecDeque},
    mem::size_of,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Job, TokenLogprobs, Tokens},
    timeline::Span,
};

/// Maximum number of queued bytes for one client: some ten thousand tokens.
const STREAM_BYTES_MAX: usize = 4 << 20;
/// Maximum number of queued bytes for all clients together; above it each client is limited to
/// [`CROWDED_STREAM_BYTES_MAX`].
const ALL_STREAMS_BYTES_MAX: usize = 128 << 20;
const CROWDED_STREAM_BYTES_MAX: usize = 64 << 10;
/// Maximum length of one token's text, and of the text that stop strings may hold back.
const TOKEN_BYTES_MAX: u64 = 1024;
const HELD_BACK_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a failure's message.
const FAILURE_CHARS_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The job waits for its model, which is loading.
    Loading {
        /// Bytes or steps done.
        done: u64,
        /// Bytes or steps in total; 0 if unknown.
        total: u64,
        what: String,
    },
    Event(Event),
}

impl Update {
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Event(event) if event.is_last())
    }
}

/// Creates the queue of one stream. `total` counts the bytes of all queues of a fleet.
pub(super) fn queue(total: Arc<AtomicUsize>) -> (UpdateSender, UpdateReceiver) {
    let queue = Arc::new(Queue { waiting: Mutex::default(), changed: Notify::new(), total });
    (UpdateSender(queue.clone()), UpdateReceiver(queue))
}

/// The sending half of a stream's queue. Dropping it ends the stream.
#[derive(Debug)]
pub(super) struct UpdateSender(Arc<Queue>);

/// The receiving half of a stream's queue.
#[derive(Debug)]
pub(super) struct UpdateReceiver(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Notify,
    total: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Waiting {
    updates: VecDeque<(Update, usize)>,
    bytes: usize,
    /// No update follows.
    closed: bool,
}

impl UpdateSender {
    /// Queues an update. Returns false if the queue is full; the stream then ends with a failure instead.
    pub(super) fn send(&self, update: Update) -> bool {
        let (mut waiting, bytes) = (self.0.lock(), update_bytes(&update));
        if waiting.closed {
            return true;
        }
        // Only the latest progress counts.
        if waiting.updates.back().is_some_and(|(last, _)| is_superseded(last, &update)) {
            self.0.pop(&mut waiting, VecDeque::pop_back);
        }
        let crowded = self.0.total.load(Ordering::Relaxed) > ALL_STREAMS_BYTES_MAX;
        let bytes_max = if crowded { CROWDED_STREAM_BYTES_MAX } else { STREAM_BYTES_MAX };
        let fits = update.is_last() || waiting.bytes.saturating_add(bytes) <= bytes_max;
        let update = if fits { update } else { Update::Event(Event::Failed(unread(waiting.bytes))) };
        let bytes = update_bytes(&update);
        waiting.closed = update.is_last();
        waiting.bytes += bytes;
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
        waiting.updates.push_back((update, bytes));
        drop(waiting);
        self.0.changed.notify_one();
        fits
    }

    pub(super) fn fail(&self, failure: Failure) {
        self.send(Update::Event(Event::Failed(failure)));
    }
}

impl Drop for UpdateSender {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl UpdateReceiver {
    /// Returns the next update; `None` after the last one.
    pub(super) async fn recv(&mut self) -> Option<Update> {
        loop {
            {
                let mut waiting = self.0.lock();
                if let Some(update) = self.0.pop(&mut waiting, VecDeque::pop_front) {
                    return Some(update);
                }
                if waiting.closed {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(
        &self,
        waiting: &mut Waiting,
        end: impl FnOnce(&mut VecDeque<(Update, usize)>) -> Option<(Update, usize)>,
    ) -> Option<Update> {
        let (update, bytes) = end(&mut waiting.updates)?;
        waiting.bytes -= bytes;
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        Some(update)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.total.fetch_sub(self.lock().bytes, Ordering::Relaxed);
    }
}

/// The streams of one worker, shared by the supervisor, which adds them, and the task that reads the worker's socket.
#[derive(Clone, Debug, Default)]
pub(super) struct JobStreams(Arc<Mutex<HashMap<u64, JobStream>>>);

#[derive(Debug)]
struct JobStream {
    updates: UpdateSender,
    /// Number of tokens that the worker may still send for the job.
    tokens_left: u64,
    bytes_left: u64,
    logprobs_max: usize,
    /// Width of the row that the job asked for.
    row: Option<usize>,
    /// The job asked for a timeline, which has not come yet.
    timeline: bool,
}

/// The result of delivering the events of one frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Delivered {
    pub(super) ended: Vec<u64>,
    /// Jobs to cancel because their clients do not read.
    pub(super) unread: Vec<u64>,
    /// Why the worker must be killed: it sent something that no job asked for.
    pub(super) violation: Option<String>,
}

impl JobStreams {
    /// Adds the stream of a job that is about to be submitted to the worker.
    pub(super) fn insert(&self, job: &Job, updates: UpdateSender) {
        let tokens_left = u64::from(job.max_tokens);
        let stream = JobStream {
            updates,
            tokens_left,
            bytes_left: tokens_left.saturating_mul(TOKEN_BYTES_MAX).saturating_add(HELD_BACK_BYTES_MAX),
            logprobs_max: job.logprobs.map_or(0, usize::from),
            row: job.row.map(|wish| wish.width as usize),
            timeline: job.timeline,
        };
        self.lock().insert(job.id, stream);
    }

    /// Delivers the events of one frame to their streams. Events of unknown jobs are dropped.
    pub(super) fn deliver(&self, events: Vec<(u64, Event)>) -> Delivered {
        let (mut streams, mut delivered) = (self.lock(), Delivered::default());
        for (job, event) in events {
            let Some(stream) = streams.get_mut(&job) else { continue };
            if let Event::Tokens(tokens) = &event
                && let Err(violation) = stream.account(tokens)
            {
                delivered.violation = Some(violation);
                return delivered;
            }
            if let Event::Row { values, .. } = &event
                && stream.row != Some(values.len())
            {
                delivered.violation = Some("sent a row that no job asked for".into());
                return delivered;
            }
            if matches!(event, Event::Timeline(_)) && !std::mem::take(&mut stream.timeline) {
                delivered.violation = Some("sent a timeline that no job asked for".into());
                return delivered;
            }
            let last = event.is_last();
            if !stream.updates.send(Update::Event(bounded(event))) {
                delivered.unread.push(job);
            }
            if last {
                streams.remove(&job);
                delivered.ended.push(job);
            }
        }
        delivered
    }

    pub(super) fn fail(&self, failure: &Failure) {
        for (_, stream) in self.lock().drain() {
            stream.updates.fail(failure.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, JobStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobStream {
    /// Counts new tokens. Returns an error if they exceed the job's limit.
    fn account(&mut self, tokens: &Tokens) -> Result<(), String> {
        let (ids, bytes) = (tokens.ids.len() as u64, tokens.bytes.len() as u64);
        let left = self.tokens_left.checked_sub(ids).zip(self.bytes_left.checked_sub(bytes));
        (self.tokens_left, self.bytes_left) = left.ok_or("sent more tokens than a job asked for")?;
        let logprobs = tokens.logprobs.len() as u64 <= ids;
        if !logprobs || tokens.logprobs.iter().any(|logprobs| logprobs.top.len() > self.logprobs_max) {
            return Err("sent more log-probabilities than a job asked for".into());
        }
        Ok(())
    }
}

/// Truncates a failure's text to the client's limit.
pub(super) fn bounded_failure(mut failure: Failure) -> Failure {
    for text in [&mut failure.message, &mut failure.help, &mut failure.field] {
        if let Some((end, _)) = text.char_indices().nth(FAILURE_CHARS_MAX) {
            text.truncate(end);
            text.shrink_to_fit();
        }
    }
    failure
}

fn bounded(event: Event) -> Event {
    match event {
        Event::Failed(failure) => Event::Failed(bounded_failure(failure)),
        event => event,
    }
}

fn unread(bytes: usize) -> Failure {
    let message = format!("the answer was not read: {bytes} bytes of it were waiting");
    Failure::new(FailureCode::Busy, message).with_help("read the stream as it comes, or ask for fewer tokens")
}

/// True if the later update supersedes the earlier one.
fn is_superseded(earlier: &Update, later: &Update) -> bool {
    matches!(
        (earlier, later),
        (Update::Loading { .. }, Update::Loading { .. })
            | (Update::Event(Event::Prompt { .. }), Update::Event(Event::Prompt { .. }))
    )
}

fn update_bytes(update: &Update) -> usize {
    let content = match update {
        Update::Loading { what, .. } => what.len(),
        Update::Event(Event::Tokens(tokens)) => {
            let tops: usize = tokens.logprobs.iter().map(|logprobs| logprobs.top.len() * size_of::<(u32, f32)>()).sum();
            tokens.ids.len() * size_of::<u32>()
                + tokens.bytes.len()
                + tokens.logprobs.len() * size_of::<TokenLogprobs>()
                + tops
        }
        Update::Event(Event::Failed(failure)) => failure.message.len() + failure.help.len(),
        Update::Event(Event::Row { values, .. }) => values.len() * size_of::<f32>(),
        Update::Event(Event::Timeline(timeline)) => timeline.spans.len() * size_of::<Span>(),
        Update::Event(_) => 0,
    };
    // Includes the allocator's overhead for three small vectors.
    size_of::<Update>() + 96 + content
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use pensieve_protocol::{
        job::{RowWish, Usage},
        timeline::Timeline,
    };

    fn tokens(count: usize, bytes: usize) -> Event {
        Event::Tokens(Tokens { ids: vec![7; count], bytes: vec![b'x'; bytes], logprobs: Vec::new() })
    }

    fn job(id: u64, max_tokens: u32) -> Job {
        Job { id, max_tokens, ..Job::default() }
    }

    fn streams(jobs: &[Job]) -> (JobStreams, Vec<UpdateReceiver>, Arc<AtomicUsize>) {
        let (streams, total) = (JobStreams::default(), Arc::new(AtomicUsize::new(0)));
        let receivers = jobs.iter().map(|job| {
            let (sender, receiver) = queue(total.clone());
            streams.insert(job, sender);
            receiver
        });
        let receivers = receivers.collect();
        (streams, receivers, total)
    }

    #[tokio::test]
    async fn a_stream_that_is_not_read_ends_with_a_failure_and_others_go_on() {
        let (streams, mut receivers, total) = streams(&[job(1, u32::MAX), job(2, u32::MAX)]);
        let mut rounds = 0;
        let unread = loop {
            let delivered = streams.deliver(vec![(1, tokens(16, 1024)), (2, tokens(1, 1))]);
            assert_eq!((&delivered.ended[..], &delivered.violation), (&[][..], &None));
            assert!(matches!(receivers[1].recv().await, Some(Update::Event(Event::Tokens(_)))));
            rounds += 1;
            if !delivered.unread.is_empty() {
                break delivered.unread;
            }
            assert!(total.load(Ordering::Relaxed) <= STREAM_BYTES_MAX);
        };
        assert_eq!(unread, [1]);
        assert!(rounds > 1000, "{rounds} rounds");
        assert_eq!(streams.deliver(vec![(1, tokens(1, 1))]), Delivered::default(), "it is said once");
        let mut last = None;
        while let Some(update) = receivers[0].recv().await {
            last = Some(update);
        }
        let Some(Update::Event(Event::Failed(failure))) = last else { panic!("{last:?}") };
        assert!(failure.message.starts_with("the answer was not read: "), "{failure}");
        drop((streams, receivers));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_worker_sends_no_more_than_its_jobs_asked_for() {
        let top = TokenLogprobs { logprob: 0.0, top: vec![(1, 0.0); 3] };
        let with_logprobs = |logprobs| Event::Tokens(Tokens { ids: vec![1], bytes: Vec::new(), logprobs });
        let row = |width: usize| Event::Row { values: vec![0.0; width], usage: Usage::default() };
        for (event, violation) in [
            (row(3), None),
            (row(4), Some("sent a row that no job asked for")),
            (tokens(11, 0), Some("sent more tokens than a job asked for")),
            (tokens(10, 80_000), Some("sent more tokens than a job asked for")),
            (with_logprobs(vec![top.clone()]), Some("sent more log-probabilities than a job asked for")),
            (
                with_logprobs(vec![TokenLogprobs { top: Vec::new(), ..top.clone() }; 2]),
                Some("sent more log-probabilities than a job asked for"),
            ),
            (with_logprobs(vec![TokenLogprobs { top: vec![(1, 0.0); 2], ..top }]), None),
            (tokens(10, 10_000), None),
            (Event::Timeline(Timeline::default()), Some("sent a timeline that no job asked for")),
        ] {
            let (streams, _receivers, _) =
                streams(&[Job { logprobs: Some(2), row: Some(RowWish { width: 3 }), ..job(1, 10) }]);
            let delivered = streams.deliver(vec![(1, event.clone())]);
            assert_eq!(delivered.violation.as_deref(), violation, "{event:?}");
        }
    }

    #[test]
    fn a_job_that_asks_for_a_timeline_gets_one() {
        let (streams, _receivers, _) = streams(&[Job { timeline: true, ..job(1, 10) }]);
        let deliver = || streams.deliver(vec![(1, Event::Timeline(Timeline::default()))]).violation;
        assert_eq!(deliver(), None);
        assert!(deliver().is_some());
    }

    #[tokio::test]
    async fn ended_jobs_are_counted_and_progress_is_not_piled_up() {
        let (streams, mut receivers, _) = streams(&[job(1, 5)]);
        for computed in 0..1000 {
            streams.deliver(vec![(1, Event::Prompt { computed, total: 1000 }), (9, tokens(1, 1))]);
        }
        let failure = Failure::new(FailureCode::Plugin, "é".repeat(100_000));
        let ended = streams.deliver(vec![(1, Event::Failed(failure))]);
        assert_eq!(ended, Delivered { ended: vec![1], ..Delivered::default() });
        assert!(streams.lock().is_empty());
        let progress = receivers[0].recv().await;
        assert_eq!(progress, Some(Update::Event(Event::Prompt { computed: 999, total: 1000 })));
        let Some(Update::Event(Event::Failed(failure))) = receivers[0].recv().await else { panic!("no failure") };
        assert_eq!(failure.message.chars().count(), FAILURE_CHARS_MAX);
        assert_eq!(receivers[0].recv().await, None);
    }
}
