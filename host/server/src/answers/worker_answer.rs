//! Turns a worker's events into the deltas of an answer.

use std::{collections::VecDeque, sync::Arc};

use super::{
    history::{Comparison, Losses, PromptHistory},
    measures::Measures,
    parsing::ToolParser,
};
use crate::{
    chat::{CacheReport, Delta, TokenLogprob},
    fleet::{Departure, EventStream, Update},
    formats::{MarkerWeaver, Markers},
};
use pensieve_protocol::{
    job::{Event, Evicted, Finish, TokenLogprobs, Tokens},
    vocabulary::Vocabulary,
};

/// An answer of a worker. Dropping it cancels the job.
#[derive(Debug)]
pub(super) struct WorkerAnswer {
    stream: EventStream,
    reader: AnswerReader,
    weave: MarkerWeaver,
    measures: Measures,
    /// `None` if the reason of a miss is of no interest.
    origin: Option<Origin>,
    /// Tokens of the prompt in the worker's cache, and what was evicted, until that is told.
    cached: (u32, Option<Evicted>),
    /// Log-probabilities of tokens that may or may not turn out to be text.
    likelihoods: Vec<TokenLogprob>,
    ready: VecDeque<Delta>,
}

/// Earlier prompts and the end of a worker, which tell why this prompt was not cached.
#[derive(Debug)]
pub(crate) struct Origin {
    /// With the closest earlier prompt.
    pub comparison: Comparison,
    pub history: Arc<PromptHistory>,
    /// The latest end of a worker of the model.
    pub departure: Option<Departure>,
}

#[derive(Debug)]
pub(crate) struct AnswerReader {
    pub parser: ToolParser,
    pub markers: Markers,
    pub vocabulary: Arc<Vocabulary>,
    pub logprobs: bool,
    pub clamped: bool,
    pub end_of_turn: Vec<u32>,
    /// Number of stop strings that come from the client. Those after them end the turns of a model without a template.
    pub client_stops: usize,
}

impl WorkerAnswer {
    pub(super) fn new(stream: EventStream, model: &str, reader: AnswerReader, origin: Option<Origin>) -> Self {
        Self {
            stream,
            reader,
            weave: MarkerWeaver::default(),
            measures: Measures::begin(model),
            origin,
            cached: (0, None),
            likelihoods: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// Returns the next delta.
    pub(super) async fn next(&mut self) -> Option<Delta> {
        while self.ready.is_empty() {
            match self.stream.next().await? {
                Update::Loading { done, total, what } => self.ready.push_back(Delta::Loading { done, total, what }),
                Update::Event(event) => self.take(event),
            }
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Cache { disk_tokens, evicted } => self.cached = (disk_tokens, evicted),
            Event::Started { prompt_tokens, reused_tokens } => {
                self.measures.started();
                self.ready.push_back(Delta::Started { reused_tokens });
                if let Some(report) = self.cache_report(prompt_tokens, reused_tokens) {
                    self.measures.cached(&report);
                    self.ready.push_back(Delta::Cache(report));
                }
            }
            Event::Prompt { computed, total } => self.ready.push_back(Delta::Prompt { computed, total }),
            Event::Tokens(tokens) => {
                if let Some(origin) = self.origin.take() {
                    origin.comparison.computed();
                }
                self.measures.tokens(tokens.ids.len());
                self.read(tokens);
            }
            Event::Finished { reason, usage } => {
                let reason = self.reason(reason);
                let cut = matches!(
                    reason,
                    Finish::Length | Finish::Repetition | Finish::ContextFull | Finish::Deadline | Finish::Cancelled
                );
                let rest = self.reader.parser.finish(cut);
                self.show(rest, true);
                self.measures.finished(reason, usage);
                self.ready.push_back(Delta::Finished { reason, usage });
            }
            // Only a job that asked for a row or a timeline gets one.
            Event::Row { .. } | Event::Timeline(_) => {}
            Event::Failed(failure) => {
                self.measures.failed(&failure);
                self.ready.push_back(Delta::Failed(failure));
            }
        }
    }

    fn cache_report(&mut self, prompt: u32, reused: u32) -> Option<CacheReport> {
        let Origin { comparison, history, departure } = self.origin.as_ref()?;
        let (disk, evicted) = std::mem::take(&mut self.cached);
        let disk_tokens = disk.min(reused);
        let eviction = evicted.map(|evicted| history.eviction(evicted, comparison.salt()));
        let miss = comparison.miss(reused, Losses { eviction, departure: *departure });
        let (memory_tokens, computed_tokens) = (reused - disk_tokens, prompt.saturating_sub(reused));
        Some(CacheReport { memory_tokens, disk_tokens, computed_tokens, miss })
    }

    fn read(&mut self, mut tokens: Tokens) {
        if self.reader.logprobs {
            let logprobs = std::mem::take(&mut tokens.logprobs);
            for (id, logprobs) in tokens.ids.iter().zip(logprobs) {
                // Tokens without text are not part of the text's log-probabilities.
                if !self.reader.vocabulary.is_special(*id) {
                    self.likelihoods.push(self.likelihood(*id, &logprobs));
                }
            }
        }
        let bytes = self.weave.push(&tokens, &self.reader.markers, &self.reader.vocabulary);
        let was_text = self.reader.parser.is_text();
        let deltas = self.reader.parser.push(&bytes);
        let is_text = |delta: &Delta| matches!(delta, Delta::Text { .. });
        if !deltas.iter().any(is_text) && (was_text == Some(false) || !deltas.is_empty()) {
            // The token that closes reasoning or a call belongs to it, not to the text.
            self.likelihoods.clear();
        }
        self.show(deltas, false);
    }

    /// Queues deltas, and attaches the log-probabilities gathered so far to text.
    fn show(&mut self, mut deltas: Vec<Delta>, last: bool) {
        if !self.likelihoods.is_empty() {
            let text = deltas.iter_mut().rev().find_map(|delta| match delta {
                Delta::Text { logprobs, .. } => Some(logprobs),
                _ => None,
            });
            match (text, self.reader.parser.is_text()) {
                (Some(logprobs), _) => *logprobs = std::mem::take(&mut self.likelihoods),
                (None, Some(true)) => {
                    let logprobs = std::mem::take(&mut self.likelihoods);
                    deltas.push(Delta::Text { text: String::new(), logprobs });
                }
                (None, None) if !last => {}
                (None, _) => self.likelihoods.clear(),
            }
        }
        self.ready.extend(deltas);
    }

    fn likelihood(&self, id: u32, logprobs: &TokenLogprobs) -> TokenLogprob {
        let of = |id: u32, logprob: f32| TokenLogprob {
            id,
            bytes: self.reader.vocabulary.bytes(id).to_vec(),
            logprob,
            top: Vec::new(),
        };
        let top = logprobs.top.iter().map(|(id, logprob)| of(*id, *logprob)).collect();
        TokenLogprob { top, ..of(id, logprobs.logprob) }
    }

    /// Translates the reason into the client's terms: it knows its own stop strings, but neither tokens nor the
    /// remaining context.
    fn reason(&self, reason: Finish) -> Finish {
        match reason {
            Finish::StopToken(token) if self.reader.end_of_turn.contains(&token) => Finish::EndOfTurn,
            Finish::StopString(index) if index as usize >= self.reader.client_stops => Finish::EndOfTurn,
            Finish::Length if self.reader.clamped => Finish::ContextFull,
            other => other,
        }
    }
}
