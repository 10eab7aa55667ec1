//! Requests on their way to a worker or an upstream: everything about them is known but the answer.

use std::sync::Arc;

use bytes::Bytes;

use super::{Reading, convention::Convention, convention::ToolDialect};
use crate::{
    answers::{AnswerReader, Generation, Origin, Outline, Prompt as KnownPrompt, PromptHistory, ToolParser},
    chat::Divergence,
    fleet::{Fleet, HandoverReason, Target},
    formats::{OutputFormat, Thoughts},
    upstream::RemoteCall,
};
use pensieve_protocol::job::{Failure, Job};

/// A request that has been written for its model and counted, but neither queued nor sent.
#[derive(Clone, Debug)]
pub struct Prepared {
    place: Place,
    handover: Option<HandoverReason>,
}

#[derive(Clone, Debug)]
enum Place {
    Here(Box<PreparedJob>),
    Elsewhere(Box<RemoteCall>),
}

/// A job for a worker.
#[derive(Clone, Debug)]
pub(super) struct PreparedJob {
    pub(super) fleet: Arc<Fleet>,
    pub(super) target: Target,
    pub(super) input_tokens: u32,
    pub(super) job: Job,
    /// The limit on generated tokens was lowered because the context has no room for more.
    pub(super) clamped: bool,
    /// Number of the job's stop strings that come from the client.
    pub(super) client_stops: usize,
    pub(super) convention: Arc<Convention>,
    pub(super) reading: Reading,
    pub(super) history: Arc<PromptHistory>,
    /// `None` for a choice whose prompt another one computes.
    pub(super) outline: Option<Outline>,
}

impl Prepared {
    pub(super) fn here(job: PreparedJob) -> Self {
        Self { place: Place::Here(Box::new(job)), handover: None }
    }

    pub(super) fn elsewhere(call: RemoteCall) -> Self {
        Self { place: Place::Elsewhere(Box::new(call)), handover: None }
    }

    /// Notes that another model was asked for.
    #[must_use]
    pub(super) fn handed_over(self, reason: HandoverReason) -> Self {
        Self { handover: Some(reason), ..self }
    }

    /// Why another model answers than the one that was asked for; `None` if it does not.
    pub fn handover(&self) -> Option<HandoverReason> {
        self.handover
    }

    /// It can begin now, as far as is known.
    pub(super) fn can_be_taken(&self) -> bool {
        match &self.place {
            Place::Here(_) => true,
            Place::Elsewhere(call) => call.can_be_taken(),
        }
    }

    /// What is sent to an upstream, which is as long as the client makes it; choices share it. It is not yet charged to a client.
    pub(crate) fn body_mut(&mut self) -> Option<&mut Bytes> {
        match &mut self.place {
            Place::Here(_) => None,
            Place::Elsewhere(call) => Some(call.body_mut()),
        }
    }

    /// Maximum sequence length of the model in tokens; 0 if its upstream does not say.
    pub fn context(&self) -> u32 {
        match &self.place {
            Place::Here(job) => job.target.context,
            Place::Elsewhere(call) => call.context(),
        }
    }

    /// Tokens of the prompt; an estimate, if an upstream counts them only with the answer.
    pub fn input_tokens(&self) -> u32 {
        match &self.place {
            Place::Here(job) => job.input_tokens,
            Place::Elsewhere(call) => call.input_tokens(),
        }
    }

    /// The id of the model that answers, whatever name the client used.
    pub fn model(&self) -> &str {
        match &self.place {
            Place::Here(job) => &job.target.id,
            Place::Elsewhere(call) => call.model(),
        }
    }

    /// Equal for equal weights and tokenizer, as far as they are known.
    pub fn fingerprint(&self) -> &str {
        match &self.place {
            Place::Here(job) => &job.target.card.fingerprint,
            Place::Elsewhere(call) => call.model(),
        }
    }

    /// Returns the request for one of several answers (`n`), from index 0; each has its own seed.
    #[must_use]
    pub fn choice(&self, index: u32) -> Self {
        match &self.place {
            Place::Here(job) => Self { handover: self.handover, ..Self::here(job.choice(index)) },
            Place::Elsewhere(call) => Self { handover: self.handover, ..Self::elsewhere(call.choice(index)) },
        }
    }

    /// Queues it, or sends it to its upstream, for the request of this id.
    pub fn start(self, request: &str) -> Result<Generation, Failure> {
        match self.place {
            Place::Here(job) => job.start(request),
            Place::Elsewhere(call) => {
                let model = call.model().to_owned();
                Ok(Generation::elsewhere(call.deltas(), &model))
            }
        }
    }

    /// How the prompt differs from that of an earlier answer, which the client names by its id. Remembers the prompt
    /// under the id of its own answer. `None` if an upstream computes it, whose tokens are not known.
    pub fn divergence(&self, previous: Option<&str>, answer: &str) -> Option<Divergence> {
        match &self.place {
            Place::Here(job) => job.divergence(previous, answer),
            Place::Elsewhere(_) => None,
        }
    }
}

impl PreparedJob {
    fn choice(&self, index: u32) -> Self {
        let mut choice = self.clone();
        choice.job.seed = self.job.seed.wrapping_add(u64::from(index));
        choice.outline = choice.outline.filter(|_| index == 0);
        choice
    }

    fn divergence(&self, previous: Option<&str>, answer: &str) -> Option<Divergence> {
        let outline = self.outline.clone()?;
        let prompt = Arc::new(KnownPrompt::of(&self.target.id, self.target.context, &self.job, outline));
        let divergence = previous.and_then(|previous| self.history.divergence(previous, &prompt));
        self.history.name(answer, prompt);
        divergence
    }

    fn start(self, request: &str) -> Result<Generation, Failure> {
        let Reading { is_taught, tools, thoughts } = self.reading;
        let ToolDialect { format, markers, .. } =
            if is_taught { &self.convention.taught } else { &self.convention.own };
        let format = OutputFormat {
            calls: format.calls.clone().filter(|_| !tools.is_empty()),
            reasoning: format.reasoning.clone().filter(|_| thoughts != Thoughts::Never),
            channels: format.channels.clone(),
        };
        let reader = AnswerReader {
            parser: ToolParser::new(&format, tools, thoughts),
            markers: markers.within(&format),
            vocabulary: self.convention.vocabulary.clone(),
            logprobs: self.job.logprobs.is_some(),
            clamped: self.clamped,
            end_of_turn: self.convention.end_of_turn.clone(),
            client_stops: self.client_stops,
        };
        let origin = self.outline.map(|outline| {
            let prompt = Arc::new(KnownPrompt::of(&self.target.id, self.target.context, &self.job, outline));
            let comparison = self.history.compare(&prompt, &self.convention.vocabulary);
            let departure = self.fleet.departure(&self.target);
            Origin { comparison, history: self.history.clone(), departure }
        });
        let salt = self.job.salt.clone();
        let stream = self.fleet.submit(&self.target, self.job)?;
        self.history.submitted(stream.job(), &salt, request);
        Ok(Generation::new(stream, &self.target.id, reader, origin))
    }
}
