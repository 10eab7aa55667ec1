//! Metrics of every answer. Labels are bounded: `model` is the id in the configuration, never what a client wrote.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `pensieve_requests_total` | counter | `model`, `outcome` | answers that have ended: `end_of_turn`, `stop`, `length`, `context_full`, `grammar`, `deadline`, `cancelled`, `row` for an embedding or a score, or the code of a failure |
//! | `pensieve_requests_active` | gauge | `model` | answers that wait or are being written |
//! | `pensieve_queue_wait_seconds` | histogram | `model` | from the queue, a load included, to the prompt's computation |
//! | `pensieve_first_token_seconds` | histogram | `model` | from the queue to the first token |
//! | `pensieve_inter_token_seconds` | histogram | `model` | between tokens |
//! | `pensieve_prompt_tokens_total` | counter | `model` | tokens of prompts |
//! | `pensieve_reused_tokens_total` | counter | `model` | of those, tokens that were not computed again |
//! | `pensieve_cached_tokens_total` | counter | `model`, `from` | of those, tokens that came from `memory` or `disk` |
//! | `pensieve_cache_misses_total` | counter | `model`, `kind` | prompts that were not in the prefix cache, by reason |
//! | `pensieve_cache_missed_tokens_total` | counter | `model`, `kind` | the tokens that were computed for that reason |
//! | `pensieve_generated_tokens_total` | counter | `model` | tokens of answers |

use std::time::Instant;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tracing::Span;

use crate::chat::CacheReport;
use pensieve_protocol::{
    job::{Failure, FailureCode, Finish, Usage},
    outside::without_quoted,
};

/// Describes the metrics for the `/metrics` page.
pub fn describe() {
    describe_counter!("pensieve_requests_total", "Answers that have ended, by model and outcome.");
    describe_gauge!("pensieve_requests_active", "Answers that wait or are being written.");
    describe_histogram!("pensieve_queue_wait_seconds", "From the queue, a load included, to the prompt's computation.");
    describe_histogram!("pensieve_first_token_seconds", "From the queue to the first token.");
    describe_histogram!("pensieve_inter_token_seconds", "Between tokens.");
    describe_counter!("pensieve_prompt_tokens_total", "Tokens of prompts.");
    describe_counter!("pensieve_reused_tokens_total", "Of those, tokens that were not computed again.");
    describe_counter!("pensieve_cached_tokens_total", "Tokens of prompts from the prefix cache, by where it had them.");
    describe_counter!("pensieve_cache_missed_tokens_total", "Tokens of prompts that were computed, by reason.");
    describe_counter!("pensieve_cache_misses_total", "Prompts that were not in the prefix cache, by reason.");
    describe_counter!("pensieve_generated_tokens_total", "Tokens of answers.");
}

/// Measures one answer. Dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub(super) struct Measures {
    model: String,
    began: Instant,
    latest: Option<Instant>,
    started: bool,
    ended: bool,
}

impl Measures {
    pub fn begin(model: &str) -> Self {
        gauge!("pensieve_requests_active", "model" => model.to_owned()).increment(1.0);
        Self { model: model.to_owned(), began: Instant::now(), latest: None, started: false, ended: false }
    }

    /// Records that prefill is about to start.
    pub fn started(&mut self) {
        if !self.started {
            self.started = true;
            histogram!("pensieve_queue_wait_seconds", "model" => self.model.clone()).record(self.began.elapsed());
        }
    }

    /// Records where a prompt's tokens came from, and why some were not cached, without its text.
    pub fn cached(&mut self, report: &CacheReport) {
        for (from, tokens) in [("memory", report.memory_tokens), ("disk", report.disk_tokens)] {
            counter!("pensieve_cached_tokens_total", "model" => self.model.clone(), "from" => from)
                .increment(u64::from(tokens));
        }
        let span = Span::current();
        span.record("disk_tokens", report.disk_tokens);
        let Some(miss) = &report.miss else { return };
        let kind = miss.kind.name();
        counter!("pensieve_cache_misses_total", "model" => self.model.clone(), "kind" => kind).increment(1);
        counter!("pensieve_cache_missed_tokens_total", "model" => self.model.clone(), "kind" => kind)
            .increment(u64::from(report.computed_tokens));
        let message = miss.message.map_or_else(String::new, |message| format!(", message {message}"));
        let evicted = miss.eviction.as_ref().map_or_else(String::new, |eviction| format!(", {eviction}"));
        span.record("cache_miss", format!("{kind} at token {}{message}{evicted}", miss.at_token));
    }

    pub fn tokens(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let now = Instant::now();
        match self.latest {
            None => histogram!("pensieve_first_token_seconds", "model" => self.model.clone()).record(now - self.began),
            Some(latest) => {
                let histogram = histogram!("pensieve_inter_token_seconds", "model" => self.model.clone());
                let each = (now - latest).as_secs_f64() / count as f64;
                (0..count).for_each(|_| histogram.record(each));
            }
        }
        self.latest = Some(now);
    }

    /// Records that a text's row was computed.
    pub fn computed(&mut self, usage: Usage) {
        counter!("pensieve_prompt_tokens_total", "model" => self.model.clone()).increment(u64::from(usage.prompt));
        counter!("pensieve_reused_tokens_total", "model" => self.model.clone()).increment(u64::from(usage.reused));
        self.end("row");
    }

    pub fn finished(&mut self, reason: Finish, usage: Usage) {
        let count = |name: &'static str, tokens: u32| {
            counter!(name, "model" => self.model.clone()).increment(u64::from(tokens));
        };
        count("pensieve_prompt_tokens_total", usage.prompt);
        count("pensieve_reused_tokens_total", usage.reused);
        count("pensieve_generated_tokens_total", usage.generated);
        let outcome = match reason {
            Finish::EndOfTurn => "end_of_turn",
            Finish::StopString(_) | Finish::StopToken(_) => "stop",
            Finish::Length => "length",
            Finish::Repetition => "repetition",
            Finish::Refused => "refused",
            Finish::Paused => "paused",
            Finish::ContextFull => "context_full",
            Finish::GrammarDone => "grammar",
            Finish::Deadline => "deadline",
            Finish::Cancelled => "cancelled",
        };
        self.end(outcome);
        // The request's log line ends with these fields.
        let span = Span::current();
        span.record("model", self.model.as_str()).record("outcome", outcome).record("prompt_tokens", usage.prompt);
        span.record("reused_tokens", usage.reused).record("generated_tokens", usage.generated);
    }

    pub fn failed(&mut self, failure: &Failure) {
        self.end(match failure.code {
            FailureCode::Invalid => "invalid",
            FailureCode::TooLong => "too_long",
            FailureCode::NotFound => "not_found",
            FailureCode::Unsupported => "unsupported",
            FailureCode::Busy => "busy",
            FailureCode::Draining => "draining",
            FailureCode::Plugin => "plugin",
            FailureCode::NotANumber => "not_a_number",
            FailureCode::Stalled => "stalled",
            FailureCode::WorkerLost => "worker_lost",
            FailureCode::Internal => "internal",
            FailureCode::Forbidden => "forbidden",
            FailureCode::Conflict => "conflict",
            FailureCode::Unreachable => "unreachable",
            FailureCode::Quarantined => "quarantined",
            FailureCode::Device => "device",
        });
        // A failure's message may quote what a client sent.
        let why = if failure.is_private { "something in the request" } else { &failure.message };
        tracing::warn!(model = self.model, code = ?failure.code, "an answer failed");
        tracing::debug!(model = self.model, why = without_quoted(why), "an answer failed");
    }

    fn end(&mut self, outcome: &'static str) {
        if !std::mem::replace(&mut self.ended, true) {
            gauge!("pensieve_requests_active", "model" => self.model.clone()).decrement(1.0);
            counter!("pensieve_requests_total", "model" => self.model.clone(), "outcome" => outcome).increment(1);
        }
    }
}

impl Drop for Measures {
    fn drop(&mut self) {
        self.end("cancelled");
    }
}
