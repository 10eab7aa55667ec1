//! One request to a model that lives elsewhere: finds a server, sends, and reads the answer as deltas. Until the first piece of
//! the answer another server may take over; after it, a failure ends the answer.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, unfold};
use tokio::time::Duration;

use super::{
    balancer::{Outcome, Unavailable},
    client::{Answer, Broken},
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

/// A request in its upstream's words.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) replicas: Arc<Replicas>,
    pub(super) kind: UpstreamKind,
    /// Below the API's root.
    pub(super) path: &'static str,
    pub(super) body: Bytes,
    /// Equal for requests of one conversation.
    pub(super) conversation: u64,
    /// About how many there are to read and to write.
    pub(super) tokens: u64,
    pub(super) expected: Expected,
}

impl Call {
    /// The answer's deltas. Dropping the stream hangs up.
    pub(super) fn deltas(self) -> BoxStream<'static, Delta> {
        let running = Running { call: self, tried: Vec::new(), stage: Stage::Begin, has_started: false };
        unfold(running, |mut running| async move { Some((running.next().await?, running)) }).boxed()
    }
}

struct Running {
    call: Call,
    /// Servers that have failed this request.
    tried: Vec<usize>,
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
    has_answered: bool,
    is_last: bool,
}

enum Reader {
    Chat(ChatReader),
    Messages(MessagesReader),
}

impl Running {
    async fn next(&mut self) -> Option<Delta> {
        loop {
            match &mut self.stage {
                Stage::Over => return None,
                Stage::Begin => match self.begin().await {
                    Ok(reading) => {
                        self.stage = Stage::Reading(Box::new(reading));
                        if !std::mem::replace(&mut self.has_started, true) {
                            return Some(Delta::Started { reused_tokens: 0 });
                        }
                    }
                    Err(failure) => return Some(self.failed(failure)),
                },
                Stage::Reading(reading) => {
                    let has_others = self.tried.len() + 1 < self.call.replicas.settings().urls.len();
                    if let Some(delta) = reading.ready.pop_front() {
                        if matches!(delta, Delta::Finished { .. }) {
                            self.stage = Stage::Over;
                        }
                        return Some(delta);
                    }
                    match reading.read(has_others).await {
                        Ok(()) => {}
                        Err(Stopped::Failed(failure)) => return Some(self.failed(failure)),
                        Err(Stopped::Broken(why)) => {
                            let refused = failure::broken(&self.call.expected.model, &why);
                            reading.seat.note(Outcome::Failed);
                            if reading.has_answered {
                                return Some(self.failed(refused.failure));
                            }
                            self.tried.push(reading.seat.replica());
                            self.stage = Stage::Begin;
                            if self.tried.len() >= self.call.replicas.settings().urls.len() {
                                return Some(self.failed(refused.failure));
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
        let mut last: Option<Failure> = None;
        loop {
            let Call { replicas, kind, conversation, tokens, expected, .. } = &self.call;
            let mut seat = match replicas.take(*kind, *conversation, *tokens, &self.tried) {
                Ok(seat) => seat,
                Err(why) => return Err(last.unwrap_or_else(|| unavailable(&expected.model, why))),
            };
            let refused = match self.send(&seat).await {
                Ok(answer) => return Ok(self.reading(seat, answer)),
                Err(refused) => refused,
            };
            seat.note(refused.outcome);
            if !refused.elsewhere {
                return Err(refused.failure);
            }
            self.tried.push(seat.replica());
            last = Some(refused.failure);
        }
    }

    async fn send(&self, seat: &Seat) -> Result<Answer, Refused> {
        let Call { kind, path, body, expected, .. } = &self.call;
        let url = format!("{}{path}", seat.url());
        let posted = tokio::select! {
            posted = seat.client().post(*kind, &url, body.clone()) => posted,
            () = given_up(seat, self.has_others()) => Err(Broken("it does not answer probes".into())),
        };
        let at = |why: Broken| failure::broken(&expected.model, &Broken(format!("{}: {}", seat.url(), why.0)));
        let answer = posted.map_err(at)?;
        seat.hear();
        let (status, retry_after) = (answer.status, answer.retry_after);
        if status.is_success() && answer.is_event_stream {
            return Ok(answer);
        }
        if status.is_success() {
            return Err(at(Broken("it answered with no stream of events".into())));
        }
        let body = answer.whole().await.map_err(at)?;
        let refused = failure::of_status(&expected.model, status, retry_after, &body, expected.key.as_ref());
        tracing::debug!(model = expected.model, "upstream {} answered {}", seat.url(), status.as_u16());
        Err(refused)
    }

    /// There are servers that have not been tried, beside the one that is.
    fn has_others(&self) -> bool {
        self.tried.len() + 1 < self.call.replicas.settings().urls.len()
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
            has_answered: false,
            is_last: false,
        }
    }
}

/// Why an answer ends before its end.
enum Stopped {
    /// The server sent an error, or nonsense.
    Failed(Failure),
    /// The connection, or the server.
    Broken(Broken),
}

impl Reading {
    /// Reads on until there is a delta or the end.
    async fn read(&mut self, has_others: bool) -> Result<(), Stopped> {
        while self.ready.is_empty() {
            let bytes = self.next_bytes(has_others).await.map_err(Stopped::Broken)?;
            let mut events = Vec::new();
            let pushed = match &bytes {
                Some(bytes) => self.events.push(bytes, &mut events),
                None => self.events.finish(&mut events),
            };
            if pushed.is_err() {
                return Err(Stopped::Broken(Broken("it sent an event without an end".into())));
            }
            let mut deltas = Vec::new();
            for event in events {
                if self.is_last {
                    // What follows the end belongs to no answer.
                    break;
                }
                let read = match &mut self.reader {
                    Reader::Chat(reader) => reader.read(&event, &mut deltas),
                    Reader::Messages(reader) => reader.read(&event, &mut deltas),
                };
                self.is_last = read.map_err(|failure| self.stopped(failure))?;
            }
            self.has_answered |= !deltas.is_empty();
            self.ready.extend(deltas);
            if self.is_last || bytes.is_none() {
                let last = match &self.reader {
                    Reader::Chat(reader) => reader.finish(),
                    Reader::Messages(reader) => reader.finish(),
                };
                match last {
                    Ok(last) => self.ready.push_back(last),
                    // What has come is shown first; the next read fails again.
                    Err(_) if !self.ready.is_empty() => return Ok(()),
                    Err(failure) => return Err(self.stopped(failure)),
                }
                self.seat.note(Outcome::Answered);
            }
        }
        Ok(())
    }

    async fn next_bytes(&mut self, has_others: bool) -> Result<Option<Bytes>, Broken> {
        if self.is_last {
            return Ok(None);
        }
        let Self { answer, seat, has_answered, .. } = self;
        let read = tokio::select! {
            read = answer.next() => read,
            () = given_up(seat, has_others && !*has_answered) => Err(Broken("it does not answer probes".into())),
        };
        if matches!(read, Ok(Some(_))) {
            seat.hear();
        }
        read
    }

    /// Nonsense before the first piece is a reason to ask another server; an error that the server reports may be the request's.
    fn stopped(&mut self, failure: Failure) -> Stopped {
        let is_reported = failure.is_private;
        self.seat.note(if is_reported { Outcome::Unknown } else { Outcome::Failed });
        if self.has_answered || is_reported {
            Stopped::Failed(failure)
        } else {
            Stopped::Broken(Broken(failure.message))
        }
    }
}

/// Resolves when a server is left out and its answer is not worth waiting for: at once, if another one can give it.
async fn given_up(seat: &Seat, has_others: bool) {
    seat.lost().await;
    if !has_others {
        // It may go on where it was.
        tokio::time::sleep(LOST_SILENCE).await;
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
