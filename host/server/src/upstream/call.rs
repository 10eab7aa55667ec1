//! One request to a model that lives elsewhere: finds a server, sends, and reads the answer as deltas. Until the first piece of
//! the answer another server may take over; after it, a failure ends the answer.

use std::{collections::VecDeque, mem, sync::Arc};

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, unfold};
use tokio::time::{Duration, Instant};

use super::{
    balancer::{Outcome, Unavailable},
    client::{Answer, Broken, Stage as Sent},
    events::EventReader,
    failure::{self, Refused},
    replicas::{Replicas, Seat},
    wire::{
        chat_answer::{ChatReader, Expected},
        messages_answer::MessagesReader,
    },
};
use crate::{chat::Delta, fleet::UpstreamKind};
use pensieve_protocol::job::{Failure, FailureCode};

/// Silence of a server that is left out after which its answer is given up, where no other server can give it.
const LOST_SILENCE: Duration = Duration::from_secs(30);
/// Servers that may see a request which they do not answer: it may be what makes them fail.
pub(super) const TRIES_MAX: usize = 3;
/// Bytes without a piece of the answer, such as comments.
const IDLE_BYTES_MAX: usize = 8 << 20;
/// Time without a piece of the answer, as a multiple of the time without a byte.
const IDLE_SILENCES_MAX: u32 = 10;

/// A request in its upstream's words.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) replicas: Arc<Replicas>,
    pub(super) kind: UpstreamKind,
    /// Below the API's root.
    pub(super) path: &'static str,
    /// An object in JSON without its last brace, so that several answers to one request share it.
    pub(super) body: Bytes,
    /// The only part of the body in which these differ.
    pub(super) seed: Option<u64>,
    /// Equal for requests of one conversation.
    pub(super) conversation: u64,
    /// About how many there are to read and to write.
    pub(super) tokens: u64,
    pub(super) expected: Expected,
}

impl Call {
    /// The answer's deltas. Dropping the stream hangs up.
    pub(super) fn deltas(self) -> BoxStream<'static, Delta> {
        let running = Running {
            call: self,
            tried: Vec::new(),
            seen: 0,
            last: None,
            has_retried: false,
            stage: Stage::Begin,
            has_started: false,
        };
        unfold(running, |mut running| async move { Some((running.next().await?, running)) }).boxed()
    }

    fn end_of_body(&self) -> Bytes {
        self.seed.map_or_else(|| Bytes::from_static(b"}"), |seed| format!(",\"seed\":{seed}}}").into())
    }
}

struct Running {
    call: Call,
    /// Servers that have failed this request.
    tried: Vec<usize>,
    /// Those among them that may have failed because of it.
    seen: usize,
    /// Why the last one failed.
    last: Option<Failure>,
    /// It was sent a second time because the connection had ended.
    has_retried: bool,
    stage: Stage,
    has_started: bool,
}

enum Stage {
    Begin,
    Reading(Box<Reading>),
    Over,
}

struct Reading {
    seat: Seat,
    answer: Answer,
    events: EventReader,
    reader: Reader,
    ready: VecDeque<Delta>,
    /// What ends the answer after the deltas that are ready.
    failure: Option<Failure>,
    has_answered: bool,
    is_last: bool,
    /// Bytes since the last piece of the answer.
    idle_bytes: usize,
    idle_since: Instant,
}

enum Reader {
    Chat(ChatReader),
    Messages(MessagesReader),
}

impl Running {
    async fn next(&mut self) -> Option<Delta> {
        loop {
            let has_others = self.has_others();
            match &mut self.stage {
                Stage::Over => return None,
                Stage::Begin => match self.begin().await {
                    Ok(reading) => {
                        self.stage = Stage::Reading(Box::new(reading));
                        if !mem::replace(&mut self.has_started, true) {
                            return Some(Delta::Started { reused_tokens: 0 });
                        }
                    }
                    Err(failure) => return Some(self.failed(failure)),
                },
                Stage::Reading(reading) => {
                    if let Some(delta) = reading.ready.pop_front() {
                        if matches!(delta, Delta::Finished { .. }) {
                            self.stage = Stage::Over;
                        }
                        return Some(delta);
                    }
                    match reading.read(has_others, &self.call.expected.model).await {
                        Ok(()) => {
                            if reading.has_answered {
                                // No other server is asked any more.
                                self.call.body = Bytes::new();
                            }
                        }
                        Err(Stopped::Failed(failure)) => return Some(self.failed(failure)),
                        Err(Stopped::Elsewhere(refused)) => {
                            let replica = reading.seat.replica();
                            self.stage = Stage::Begin;
                            if let Err(failure) = self.try_another(replica, refused) {
                                return Some(self.failed(failure));
                            }
                        }
                    }
                }
            }
        }
    }

    fn failed(&mut self, failure: Failure) -> Delta {
        self.stage = Stage::Over;
        Delta::Failed(failure)
    }

    /// Finds a server that takes the request.
    async fn begin(&mut self) -> Result<Reading, Failure> {
        loop {
            let Call { replicas, kind, conversation, tokens, expected, .. } = &self.call;
            let mut seat = match replicas.take(*kind, *conversation, *tokens, &self.tried) {
                Ok(seat) => seat,
                Err(why) => return Err(self.last.take().unwrap_or_else(|| unavailable(&expected.model, why))),
            };
            match self.send(&seat).await {
                Ok(answer) => return Ok(self.reading(seat, answer)),
                Err(refused) => {
                    seat.note(refused.outcome);
                    self.try_another(seat.replica(), refused)?;
                }
            }
        }
    }

    /// Notes that a server has failed the request. The failure, if no other one is to be asked.
    fn try_another(&mut self, replica: usize, refused: Refused) -> Result<(), Failure> {
        self.tried.push(replica);
        self.seen += usize::from(refused.is_suspect);
        if !refused.elsewhere || self.seen >= TRIES_MAX || self.tried.len() >= self.call.replicas.settings().urls.len()
        {
            return Err(refused.failure);
        }
        self.last = Some(refused.failure);
        Ok(())
    }

    async fn send(&mut self, seat: &Seat) -> Result<Answer, Refused> {
        let mut posted = self.post(seat, false).await;
        if matches!(&posted, Err(Broken { stage: Sent::HungUp, .. })) && !mem::replace(&mut self.has_retried, true) {
            // Most likely the server had given the connection up before the request came.
            posted = self.post(seat, true).await;
        }
        let expected = &self.call.expected;
        let at = |why: Broken| failure::broken(&expected.model, &why.at(seat.url()));
        let answer = posted.map_err(at)?;
        seat.hear();
        let (status, retry_after) = (answer.status, answer.retry_after);
        if status.is_success() && answer.is_event_stream {
            return Ok(answer);
        }
        if status.is_success() {
            return Err(at(Broken::new("it answered with no stream of events")));
        }
        let body = answer.whole().await.map_err(at)?;
        let refused = failure::of_status(&expected.model, status, retry_after, &body, expected.key.as_ref());
        tracing::debug!(model = expected.model, "upstream {} answered {}", seat.url(), status.as_u16());
        Err(refused)
    }

    async fn post(&self, seat: &Seat, fresh: bool) -> Result<Answer, Broken> {
        let url = format!("{}{}", seat.url(), self.call.path);
        let parts = [self.call.body.clone(), self.call.end_of_body()];
        tokio::select! {
            posted = seat.client().post_parts(self.call.kind, &url, parts, fresh) => posted,
            () = given_up(seat, self.has_others(), LOST_SILENCE) => Err(Broken::new("it does not answer probes")),
        }
    }

    /// There are servers that could be asked, beside the one that is.
    fn has_others(&self) -> bool {
        self.tried.len() + 1 < self.call.replicas.settings().urls.len() && self.seen + 1 < TRIES_MAX
    }

    fn reading(&self, seat: Seat, answer: Answer) -> Reading {
        let expected = self.call.expected.clone();
        let reader = match self.call.kind {
            UpstreamKind::Anthropic => Reader::Messages(MessagesReader::new(expected)),
            _ => Reader::Chat(ChatReader::new(expected)),
        };
        Reading {
            seat,
            answer,
            events: EventReader::default(),
            reader,
            ready: VecDeque::new(),
            failure: None,
            has_answered: false,
            is_last: false,
            idle_bytes: 0,
            idle_since: Instant::now(),
        }
    }
}

/// Why an answer ends before its end.
enum Stopped {
    Failed(Failure),
    /// Nothing of it has come, so that another server may give it.
    Elsewhere(Refused),
}

impl Reading {
    /// Reads on until there is a delta or the end.
    async fn read(&mut self, has_others: bool, model: &str) -> Result<(), Stopped> {
        while self.ready.is_empty() {
            if let Some(failure) = self.failure.take() {
                return Err(self.stopped(failure));
            }
            let bytes = match self.next_bytes(has_others).await {
                Ok(bytes) => bytes,
                Err(why) => return Err(self.broken(model, why)),
            };
            let mut events = Vec::new();
            let pushed = match &bytes {
                Some(bytes) => self.events.push(bytes, &mut events),
                None => self.events.finish(&mut events),
            };
            if pushed.is_err() {
                return Err(self.broken(model, Broken::new("it sent an event without an end")));
            }
            self.take(events);
            if self.failure.is_none() && (self.is_last || bytes.is_none()) {
                let (unknown, last) = match &mut self.reader {
                    Reader::Chat(reader) => (reader.unknown(), reader.finish()),
                    Reader::Messages(reader) => (reader.unknown(), reader.finish()),
                };
                match last {
                    Ok(last) => {
                        self.ready.extend(unknown.into_iter().chain([last]));
                        self.seat.note(Outcome::Answered);
                    }
                    Err(failure) => self.failure = Some(failure),
                }
            }
        }
        Ok(())
    }

    /// Reads events up to the first that is an error: what came before it is shown.
    fn take(&mut self, events: Vec<Vec<u8>>) {
        let mut deltas = Vec::new();
        for event in events {
            if self.is_last || self.failure.is_some() {
                // What follows the end belongs to no answer.
                break;
            }
            let read = match &mut self.reader {
                Reader::Chat(reader) => reader.read(&event, &mut deltas),
                Reader::Messages(reader) => reader.read(&event, &mut deltas),
            };
            match read {
                Ok(is_last) => self.is_last = is_last,
                Err(failure) => self.failure = Some(failure),
            }
        }
        if !deltas.is_empty() {
            self.has_answered = true;
            (self.idle_bytes, self.idle_since) = (0, Instant::now());
        }
        self.ready.extend(deltas);
    }

    async fn next_bytes(&mut self, has_others: bool) -> Result<Option<Bytes>, Broken> {
        if self.is_last {
            return Ok(None);
        }
        let Self { answer, seat, has_answered, .. } = self;
        let read = tokio::select! {
            read = answer.next() => read,
            () = given_up(seat, has_others && !*has_answered, LOST_SILENCE) => Err(Broken::new("it does not answer probes")),
        };
        let Some(bytes) = read? else { return Ok(None) };
        self.seat.hear();
        self.idle_bytes += bytes.len();
        if self.idle_bytes > IDLE_BYTES_MAX || self.idle_since.elapsed() > self.answer.silence * IDLE_SILENCES_MAX {
            return Err(Broken::new("it goes on sending, and nothing of it is a piece of the answer"));
        }
        Ok(Some(bytes))
    }

    fn broken(&mut self, model: &str, why: Broken) -> Stopped {
        let refused = failure::broken(model, &why.at(self.seat.url()));
        self.seat.note(refused.outcome);
        if self.has_answered { Stopped::Failed(refused.failure) } else { Stopped::Elsewhere(refused) }
    }

    /// Before the first piece nonsense and errors are a reason to ask another server, unless it will say the same.
    fn stopped(&mut self, failure: Failure) -> Stopped {
        // An error that the server reports may be the request's.
        let outcome = if failure.is_private { Outcome::Unknown } else { Outcome::Failed };
        self.seat.note(outcome);
        if self.has_answered || matches!(failure.code, FailureCode::TooLong | FailureCode::Invalid) {
            return Stopped::Failed(failure);
        }
        tracing::debug!("upstream {} failed before its answer: {failure}", self.seat.url());
        Stopped::Elsewhere(Refused { failure, outcome, elsewhere: true, is_suspect: true })
    }
}

/// Resolves when a server is left out and its answer is not worth waiting for: at once, if another one can give it, else after
/// this silence.
async fn given_up(seat: &Seat, has_others: bool, silence: Duration) {
    loop {
        seat.lost().await;
        if has_others {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(silence) => return,
            // It may go on where it was.
            () = seat.found() => {}
        }
    }
}

fn unavailable(model: &str, why: Unavailable) -> Failure {
    let (code, what, retry_after) = match why {
        Unavailable::Busy { retry_after } => (FailureCode::Busy, "is busy", Some(retry_after)),
        Unavailable::Down { retry_after } => (FailureCode::Unreachable, "does not answer", Some(retry_after)),
        Unavailable::Tried => (FailureCode::Unreachable, "failed", None),
    };
    let failure = Failure::new(code, format!("the upstream of model '{model}' {what}"));
    Failure { retry_after, ..failure }.with_help("try again later")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fleet::Upstream;

    #[tokio::test]
    async fn a_server_that_is_well_again_gets_its_time_anew() {
        let upstream = Upstream::new(&["http://127.0.0.1:9/v1".into()], "m").unwrap();
        let replicas = Arc::new(Replicas::new("m", Arc::new(upstream), None).unwrap());
        let silence = Duration::from_millis(1000);
        let seat = replicas.seat_of(0);
        replicas.leave_out(0);
        let waiting = tokio::spawn(async move { given_up(&seat, false, silence).await });
        tokio::time::sleep(silence / 2).await;
        replicas.probed(0, true);
        tokio::time::sleep(silence).await;
        assert!(!waiting.is_finished(), "it was left out for half of that time");
        replicas.leave_out(0);
        let began = Instant::now();
        waiting.await.unwrap();
        assert!(began.elapsed() >= silence * 9 / 10, "{:?}", began.elapsed());
    }
}
