//! Counts one request while its answer is written.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tracing::Span;

use super::{
    LastAnswer,
    reading::Reading,
    record::{End, Record},
};
use crate::{
    chat::Delta,
    dialects::{ApiError, ApiRequest, Shared},
    keys::{Running, Tally},
    requests::Prepared,
};
use pensieve_protocol::job::{Failure, Finish, Usage};

/// How often the log tells of a prompt that takes long.
const TOLD_EVERY: Duration = Duration::from_secs(10);
const ERROR_CHARS_MAX: usize = 500;

/// The part of a request that is counted.
#[derive(Debug)]
pub(in crate::dialects) struct Counted {
    model: String,
    context: u32,
    input_tokens: u32,
    /// Answers to it.
    choices: u32,
}

impl Counted {
    pub(in crate::dialects) fn of(prepared: &Prepared) -> Self {
        let (context, input_tokens) = (prepared.context(), prepared.input_tokens());
        Self { model: prepared.model().to_owned(), context, input_tokens, choices: 1 }
    }

    pub(in crate::dialects) fn of_all(prepared: &[Prepared]) -> Option<Self> {
        let choices = u32::try_from(prepared.len()).unwrap_or(u32::MAX);
        prepared.first().map(|first| Self { choices, ..Self::of(first) })
    }
}

/// Counts one request. Dropped before its end, its client has gone.
#[derive(Debug)]
pub(in crate::dialects) struct Meter {
    shared: Arc<Shared>,
    number: u64,
    record: Record,
    began: Option<Instant>,
    told: Instant,
    /// Answers that have not ended.
    open: u32,
    usage: Usage,
    is_over: bool,
    /// Of summaries that were made before the answer.
    before: Usage,
    key: String,
    /// False for rows of a model whose name is only the client's word yet.
    is_model_known: bool,
    span: Span,
    /// Its key has one request less at hand once it is over.
    _running: Option<Arc<Running>>,
}

impl Meter {
    pub(in crate::dialects) fn new(call: &ApiRequest, counted: Counted) -> Self {
        let Counted { model, context, input_tokens, choices } = counted;
        let (shared, now) = (call.shared.clone(), Instant::now());
        let (request, client) = (call.request_id.clone(), call.client().id);
        let progress = Reading { prompt: input_tokens, ..Reading::default() };
        let record = Record::new(request, client, call.agent.clone(), call.dialect.name(), model);
        let record = Record { context, progress, ..record };
        let number = shared.usage.begin(record.clone());
        Self {
            shared,
            number,
            record,
            began: None,
            told: now,
            open: choices,
            usage: Usage::default(),
            is_over: false,
            before: Usage::default(),
            key: call.client().key_name().to_owned(),
            is_model_known: true,
            span: Span::current(),
            _running: call.running.clone(),
        }
    }

    /// Counts a request for vectors or scores while it is computed; `counts` is the model that computed it, and the length of
    /// its texts.
    pub(in crate::dialects) async fn of_rows<T>(
        call: &ApiRequest,
        model: &str,
        work: impl Future<Output = Result<T, Failure>>,
        counts: impl FnOnce(&T) -> (&str, u64),
    ) -> Result<T, ApiError> {
        let mut meter = Self::new(call, Counted { model: model.to_owned(), context: 0, input_tokens: 0, choices: 1 });
        meter.is_model_known = false;
        match work.await {
            Ok(answer) => {
                let (model, tokens) = counts(&answer);
                (meter.record.model, meter.is_model_known) = (model.to_owned(), true);
                meter.usage.prompt = u32::try_from(tokens).unwrap_or(u32::MAX);
                meter.open = 0;
                meter.end("row", None, 0.0);
                Ok(answer)
            }
            Err(failure) => {
                meter.fail(&failure);
                Err(ApiError::of_model(failure))
            }
        }
    }

    pub(in crate::dialects) fn take(&mut self, delta: &Delta) {
        let (now, record) = (Instant::now(), &mut self.record);
        let since = now - record.since;
        match delta {
            Delta::Started { reused_tokens } => {
                (record.progress.reused, record.progress.computed) = (*reused_tokens, *reused_tokens);
                record.queued.get_or_insert(since);
                (self.began, self.told) = (Some(now), now);
            }
            Delta::Compacted { usage, is_last: true, .. } => return self.finish(*usage, "compacted"),
            Delta::Compacted { usage, .. } => {
                self.before = *usage;
                (record.progress, record.generated, record.first) = (Reading::default(), 0, None);
            }
            Delta::Prompt { computed, total } => {
                record.progress.prompt = *total;
                let began = *self.began.get_or_insert(now);
                (record.progress.computed, record.progress.took) = (*computed, now - began);
                if now.duration_since(self.told) >= TOLD_EVERY && *computed < record.progress.prompt {
                    self.told = now;
                    self.span.in_scope(|| tracing::info!("{}", record.progress));
                }
            }
            Delta::Text { .. } | Delta::Thinking(_) | Delta::ToolCall { .. } | Delta::ToolArguments(_) => {
                record.first.get_or_insert(since);
                record.generated = record.generated.saturating_add(1);
                if let Delta::ToolCall { name, .. } = delta {
                    record.called(name);
                }
            }
            Delta::Finished { reason, usage } => return self.finish(*usage, outcome(reason, &self.record)),
            Delta::Failed(failure) => return self.fail(failure),
            Delta::Cache(report) => {
                record.report.get_or_insert_with(|| report.clone());
            }
            Delta::Loading { .. } | Delta::Unknown(_) => {}
        }
        self.shared.usage.update(self.number, &self.record);
    }

    /// Ends it with an error.
    pub(in crate::dialects) fn fail(&mut self, failure: &Failure) {
        let error = failure.to_string().chars().take(ERROR_CHARS_MAX).collect();
        self.end("failed", Some(error), 0.0);
    }

    fn finish(&mut self, usage: Usage, outcome: &'static str) {
        // Choices share their prompt; the first to end has computed it.
        if self.usage == Usage::default() {
            (self.usage.prompt, self.usage.reused) = (usage.prompt, usage.reused);
        }
        self.usage.generated = self.usage.generated.saturating_add(usage.generated);
        self.open = self.open.saturating_sub(1);
        if self.open > 0 {
            return;
        }
        // From the end of the prompt, as the first tokens may come together.
        let generating = self.began.map(|began| began + self.record.progress.took);
        let seconds = generating.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let tokens_per_second = if seconds > 0.0 { f64::from(self.usage.generated) / seconds } else { 0.0 };
        let miss = self.record.report.as_ref().and_then(|report| report.miss.clone());
        let answer = LastAnswer { context: self.record.context, usage: self.usage, tokens_per_second, miss };
        self.shared.usage.finish((self.record.client, self.record.model.clone()), answer);
        self.end(outcome, None, tokens_per_second);
    }

    fn end(&mut self, outcome: &'static str, error: Option<String>, tokens_per_second: f64) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.charge();
        let took = self.record.since.elapsed();
        let end = End { number: 0, took, outcome, error, usage: self.usage, tokens_per_second };
        self.shared.usage.end(self.number, Record { end: Some(end), ..self.record.clone() });
    }
}

impl Meter {
    /// Enters what was used into the ledger; of an answer that broke off, what was read and written until then.
    fn charge(&self) {
        if !self.is_model_known {
            return;
        }
        let Reading { prompt, reused, computed, .. } = self.record.progress;
        let generated = self.record.generated;
        let read = if generated > 0 { prompt } else { computed };
        let broke_off = Usage { prompt: read, reused, generated };
        let Usage { prompt, reused, generated } = if self.open == 0 { self.usage } else { broke_off };
        let sum = |one: u32, two: u32| u64::from(one) + u64::from(two);
        let tally = Tally {
            requests: 1,
            input: sum(prompt, self.before.prompt),
            cached: sum(reused, self.before.reused),
            output: sum(generated, self.before.generated),
        };
        self.shared.ledger.add(&self.key, &self.record.model, tally);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if !self.is_over {
            // The request's log line ends with these.
            let Reading { prompt, reused, computed, .. } = self.record.progress;
            let span = self.span.record("model", self.record.model.as_str()).record("outcome", "cancelled");
            span.record("prompt_tokens", prompt).record("reused_tokens", reused).record("read_tokens", computed);
            span.record("generated_tokens", self.record.generated);
            self.usage = Usage { prompt, reused, generated: self.record.generated };
            self.end("cancelled", None, 0.0);
        }
    }
}

/// The word for the end of an answer, the same for every API.
fn outcome(reason: &Finish, record: &Record) -> &'static str {
    match reason {
        Finish::EndOfTurn | Finish::StopToken(_) | Finish::GrammarDone if !record.tools.is_empty() => "tool_calls",
        Finish::EndOfTurn => "end_of_turn",
        Finish::StopString(_) | Finish::StopToken(_) => "stop",
        Finish::GrammarDone => "grammar",
        Finish::Length => "length",
        Finish::Repetition => "repetition",
        Finish::Refused => "refused",
        Finish::Paused => "paused",
        Finish::ContextFull => "context_full",
        Finish::Deadline => "deadline",
        Finish::Cancelled => "cancelled",
    }
}
