//! One request in the lists of running and ended ones.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::{cache::report_json, reading::Reading};
use crate::chat::CacheReport;
use pensieve_protocol::job::Usage;

/// Names of called tools that are kept of a request.
const TOOLS_MAX: usize = 32;
const TOOL_CHARS_MAX: usize = 64;
/// Warnings that are kept of a request.
const WARNINGS_MAX: usize = 16;
const WARNING_CHARS_MAX: usize = 300;

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) request: String,
    pub(super) client: u64,
    /// The `user-agent` of the client's program.
    pub(super) agent: Arc<str>,
    pub(super) api: &'static str,
    pub(super) model: String,
    /// The longest sequence of the model, in tokens; 0 for a request that makes no text.
    pub(super) context: u32,
    pub(super) since: Instant,
    pub(super) started_at: SystemTime,
    pub(super) progress: Reading,
    /// Pieces of the answer so far.
    pub(super) generated: u32,
    /// Until prefill began.
    pub(super) queued: Option<Duration>,
    /// Until the first piece of the answer.
    pub(super) first: Option<Duration>,
    pub(super) report: Option<CacheReport>,
    pub(super) tools: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) end: Option<End>,
}

/// The end of a request.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Its place in the order in which requests have ended.
    pub(super) number: u64,
    pub(super) took: Duration,
    pub(super) outcome: &'static str,
    pub(super) error: Option<String>,
    pub(super) usage: Usage,
    pub(super) tokens_per_second: f64,
}

impl Record {
    /// The record of a request that begins now.
    pub(super) fn new(request: String, client: u64, agent: Arc<str>, api: &'static str, model: String) -> Self {
        Self {
            request,
            client,
            agent,
            api,
            model,
            context: 0,
            since: Instant::now(),
            started_at: SystemTime::now(),
            progress: Reading::default(),
            generated: 0,
            queued: None,
            first: None,
            report: None,
            tools: Vec::new(),
            warnings: Vec::new(),
            end: None,
        }
    }

    pub(super) fn called(&mut self, tool: &str) {
        if self.tools.len() < TOOLS_MAX {
            self.tools.push(tool.chars().take(TOOL_CHARS_MAX).collect());
        }
    }

    pub(super) fn warned(&mut self, warnings: &[String]) {
        let room = WARNINGS_MAX.saturating_sub(self.warnings.len());
        let short = |warning: &String| warning.chars().take(WARNING_CHARS_MAX).collect();
        self.warnings.extend(warnings.iter().take(room).map(short));
    }

    pub(super) fn state(&self) -> &'static str {
        let Reading { prompt, computed, .. } = self.progress;
        match self.progress.seconds_left() {
            _ if self.generated > 0 => "writing",
            None if computed == 0 => "waiting",
            _ if computed < prompt => "reading",
            _ => "writing",
        }
    }

    /// As `GET /v1/usage` lists a running one.
    pub(super) fn progress_json(&self) -> Value {
        let Reading { prompt, reused, computed, .. } = self.progress;
        let state = self.state();
        json!({
            "model": self.model,
            "state": state,
            "seconds": self.since.elapsed().as_secs(),
            "input_tokens": prompt,
            "read_tokens": computed,
            "cached_tokens": reused,
            "seconds_left": self.progress.seconds_left(),
            "pieces": self.generated,
            "text": if state == "reading" { self.progress.to_string() } else { state.to_owned() },
        })
    }

    /// As `GET /v1/requests` lists it.
    pub(super) fn json(&self) -> Value {
        let started = self.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = |duration: Option<Duration>| duration.map(rounded);
        let mut value = json!({
            "id": self.request,
            "client": *self.agent,
            "api": self.api,
            "model": self.model,
            "started_at": rounded(started),
            "context_window": Some(self.context).filter(|context| *context > 0),
            "queue_seconds": seconds(self.queued),
            "first_token_seconds": seconds(self.first),
            "tool_calls": self.tools,
            "warnings": self.warnings,
            "pensieve": self.report.as_ref().map(report_json),
        });
        let own = match &self.end {
            None => {
                let writing = self.first.map(|first| self.since.elapsed().saturating_sub(first).as_secs_f64());
                let speed = writing.filter(|seconds| *seconds > 0.2).map(|seconds| f64::from(self.generated) / seconds);
                let mut running = self.progress_json();
                running["tokens_per_second"] = speed.map(tenths).into();
                running
            }
            Some(end) => json!({
                "state": "ended",
                "seconds": rounded(end.took),
                "input_tokens": end.usage.prompt,
                "cached_tokens": end.usage.reused,
                "output_tokens": end.usage.generated,
                "tokens_per_second": tenths(end.tokens_per_second),
                "stop_reason": end.outcome,
                "error": end.error,
            }),
        };
        if let (Value::Object(value), Value::Object(own)) = (&mut value, own) {
            value.extend(own);
        }
        value
    }
}

/// Seconds, to the millisecond.
fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
