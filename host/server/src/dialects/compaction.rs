//! Answers that begin with a summary of their conversation: the model makes it, and then answers from it. Both happen in one
//! stream, so that the client hears of it while it is being made.

use std::sync::Arc;

use futures_util::stream::unfold;
use tokio::time::Instant;

use super::{ApiRequest, stream::Generations, usage::Counted};
use crate::{
    answers::Generation,
    chat::{Compaction, Delta, Divergence, DivergenceKind, Request},
    requests::{Chats, Prepared, summary},
};
use pensieve_protocol::job::{Failure, Finish, Usage};

/// An answer that is about to be queued.
pub(super) enum Start {
    Answer(Box<Prepared>),
    Summary(Box<Compacting>),
}

impl Start {
    pub(super) async fn prepare(
        chats: &Arc<Chats>,
        request: Request,
        compaction: Option<Compaction>,
    ) -> Result<Self, Failure> {
        match compaction {
            None => chats.prepare(request).await.map(|prepared| Self::Answer(Box::new(prepared))),
            Some(compaction) => {
                Compacting::new(chats, request, compaction).await.map(|summary| Self::Summary(Box::new(summary)))
            }
        }
    }

    pub(super) fn input_tokens(&self) -> u32 {
        match self {
            Self::Answer(prepared) => prepared.input_tokens(),
            Self::Summary(summary) => summary.prepared.input_tokens(),
        }
    }

    /// How its prompt differs from that of an earlier answer, which the client names. A summary is not compared.
    pub(super) fn divergence(&self, previous: Option<&str>, answer: &str) -> Option<Divergence> {
        match self {
            Self::Answer(prepared) => prepared.divergence(previous, answer),
            Self::Summary(_) => previous.map(|_| Divergence { kind: DivergenceKind::Other, missed_tokens: 0 }),
        }
    }

    /// Queues it, and waits until `first_event` for errors that occur at once.
    pub(super) async fn generations(self, call: &ApiRequest, first_event: Instant) -> Result<Generations, Failure> {
        match self {
            Self::Answer(prepared) => Generations::start(call, vec![*prepared], first_event).await,
            Self::Summary(summary) => summary.start(call, first_event).await,
        }
    }
}

/// A summary that is about to be made.
pub(super) struct Compacting {
    chats: Arc<Chats>,
    request: Request,
    compaction: Compaction,
    prepared: Prepared,
}

impl Compacting {
    async fn new(chats: &Arc<Chats>, request: Request, compaction: Compaction) -> Result<Self, Failure> {
        let question = summary::question(&request, compaction.instructions.as_deref());
        let (prepared, _) = chats.prepare_fitting(question).await?;
        Ok(Self { chats: chats.clone(), request, compaction, prepared })
    }

    async fn start(self, call: &ApiRequest, first_event: Instant) -> Result<Generations, Failure> {
        let Self { chats, request, compaction, prepared } = self;
        let counted = Counted::of(&prepared);
        call.note_handover(Some(&prepared));
        let mut generation = prepared.start(&call.request_id)?;
        generation.listen(first_event).await?;
        let answer = Answer {
            chats,
            request,
            request_id: call.request_id.clone(),
            compaction,
            stage: Stage::Summary(generation, String::new()),
        };
        let deltas = unfold(answer, |mut answer| async move { Some((answer.next().await?, answer)) });
        Ok(Generations::of(call, counted, deltas))
    }
}

struct Answer {
    chats: Arc<Chats>,
    request: Request,
    request_id: String,
    compaction: Compaction,
    stage: Stage,
}

enum Stage {
    Summary(Generation, String),
    /// The request to answer after the summary.
    Begin(Box<Request>),
    Answer(Generation),
    Over,
}

impl Answer {
    async fn next(&mut self) -> Option<Delta> {
        loop {
            match &mut self.stage {
                Stage::Summary(generation, summary) => match generation.next().await? {
                    Delta::Text { text, .. } => summary.push_str(&text),
                    Delta::Thinking(_) | Delta::ToolCall { .. } | Delta::ToolArguments(_) => {}
                    // The conversation is read from the cache; what the answer misses is told then.
                    Delta::Cache(_) | Delta::Unknown(_) => {}
                    Delta::Finished { reason, usage } if !matches!(reason, Finish::Cancelled | Finish::Deadline) => {
                        let text = summary::text(&self.request, summary, self.compaction.trigger);
                        return Some(self.summed_up(text, usage));
                    }
                    delta => return Some(delta),
                },
                Stage::Begin(request) => {
                    let prepared = self.chats.prepare(std::mem::take(&mut **request)).await;
                    match prepared.and_then(|prepared| prepared.start(&self.request_id)) {
                        Ok(generation) => self.stage = Stage::Answer(generation),
                        Err(failure) => {
                            self.stage = Stage::Over;
                            return Some(Delta::Failed(failure));
                        }
                    }
                }
                Stage::Answer(generation) => return generation.next().await,
                Stage::Over => return None,
            }
        }
    }

    fn summed_up(&mut self, summary: Option<String>, usage: Usage) -> Delta {
        let request = std::mem::take(&mut self.request);
        self.stage = match &summary {
            _ if self.compaction.pause => Stage::Over,
            Some(text) => Stage::Begin(Box::new(summary::applied(request, text))),
            None => Stage::Begin(Box::new(request)),
        };
        Delta::Compacted { summary, usage, is_last: self.compaction.pause }
    }
}
