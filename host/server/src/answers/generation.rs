//! An answer that is being generated, by a worker or by an upstream.

use std::fmt;

use futures_util::stream::{BoxStream, StreamExt};
use tokio::time::{Duration, Instant, timeout_at};

use super::{
    measures::Measures,
    worker_answer::{AnswerReader, Origin, WorkerAnswer},
};
use crate::{chat::Delta, fleet::EventStream};
use pensieve_protocol::job::Failure;

/// How long an upstream may take to accept a request before the client gets its status.
const ACCEPTANCE: Duration = Duration::from_secs(2);

/// An answer that is being generated. Dropping it cancels the job, or hangs up on the upstream.
#[derive(Debug)]
pub struct Generation {
    source: Source,
    /// A delta that was listened for.
    first: Option<Delta>,
}

#[derive(Debug)]
enum Source {
    Worker(Box<WorkerAnswer>),
    Upstream(UpstreamAnswer),
}

/// The deltas of an upstream, measured as a worker's are.
struct UpstreamAnswer {
    deltas: BoxStream<'static, Delta>,
    measures: Measures,
}

impl Generation {
    pub(crate) fn new(stream: EventStream, model: &str, reader: AnswerReader, origin: Option<Origin>) -> Self {
        let answer = WorkerAnswer::new(stream, model, reader, origin);
        Self { source: Source::Worker(Box::new(answer)), first: None }
    }

    pub(crate) fn elsewhere(deltas: BoxStream<'static, Delta>, model: &str) -> Self {
        let answer = UpstreamAnswer { deltas, measures: Measures::begin(model) };
        Self { source: Source::Upstream(answer), first: None }
    }

    /// Waits until `until` for the answer's first delta, skipping load progress, and keeps it for [`Self::next`].
    /// Returns an error if that delta is a failure. An upstream's first delta says that it has accepted the request, which
    /// takes its network and its queue a while longer.
    pub async fn listen(&mut self, until: Instant) -> Result<(), Failure> {
        let until = match &self.source {
            Source::Worker(_) => until,
            Source::Upstream(_) => until.max(Instant::now() + ACCEPTANCE),
        };
        while let Ok(Some(delta)) = timeout_at(until, self.next()).await {
            match delta {
                Delta::Failed(failure) => return Err(failure),
                Delta::Loading { .. } => {}
                delta => {
                    self.first = Some(delta);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the next delta.
    pub async fn next(&mut self) -> Option<Delta> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        match &mut self.source {
            Source::Worker(answer) => answer.next().await,
            Source::Upstream(answer) => answer.next().await,
        }
    }
}

impl UpstreamAnswer {
    async fn next(&mut self) -> Option<Delta> {
        let delta = self.deltas.next().await?;
        match &delta {
            Delta::Started { .. } => self.measures.started(),
            // Pieces: how many tokens each has is known to the upstream alone.
            Delta::Text { .. } | Delta::Thinking(_) | Delta::ToolArguments(_) => self.measures.tokens(1),
            Delta::Finished { reason, usage } => self.measures.finished(*reason, *usage),
            Delta::Failed(failure) => self.measures.failed(failure),
            _ => {}
        }
        Some(delta)
    }
}

impl fmt::Debug for UpstreamAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamAnswer").field("measures", &self.measures).finish_non_exhaustive()
    }
}
