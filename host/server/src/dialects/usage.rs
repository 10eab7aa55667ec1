//! `GET /v1/usage`: how full each model's context was after the client's last answer, and how far its running requests
//! are, for status lines. It returns only counts, and only those of the client's own requests.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lru::LruCache;
use serde_json::{Value, json};
use tracing::Span;

use super::{ApiError, ApiRequest, ApiResponse, Shared};
use crate::{
    chat::{CacheMiss, Delta},
    requests::Prepared,
};
use pensieve_protocol::job::Usage;

/// Limit of recorded pairs of client and model, beyond which the one that has not answered for longest is forgotten.
const ENTRIES_MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Running requests of one client that are listed.
const RUNNING_MAX: usize = 64;
/// How often the log tells of a prompt that takes long.
const TOLD_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct UsageBoard {
    /// The last answer of each client and model.
    answers: Mutex<LruCache<(u64, String), LastAnswer>>,
    /// By the order in which they came.
    running: Mutex<BTreeMap<u64, Running>>,
}

impl Default for UsageBoard {
    fn default() -> Self {
        Self { answers: Mutex::new(LruCache::new(ENTRIES_MAX)), running: Mutex::default() }
    }
}

#[derive(Debug)]
struct LastAnswer {
    context: u32,
    usage: Usage,
    tokens_per_second: f64,
    miss: Option<CacheMiss>,
}

#[derive(Clone, Debug)]
struct Running {
    request: String,
    client: u64,
    model: String,
    since: Instant,
    progress: Reading,
    generated: u32,
}

/// How far a prompt has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    prompt: u32,
    /// Tokens that were found in the cache.
    reused: u32,
    /// Tokens that are read, those from the cache among them.
    computed: u32,
    /// Time since the first of them was computed.
    took: Duration,
}

/// The part of a request that is counted.
#[derive(Debug)]
pub(super) struct Counted {
    model: String,
    context: u32,
    input_tokens: u32,
}

impl Counted {
    pub(super) fn of(prepared: &Prepared) -> Self {
        let (context, input_tokens) = (prepared.context(), prepared.input_tokens());
        Self { model: prepared.model().to_owned(), context, input_tokens }
    }
}

/// Counts one request. Dropped before its end, its client has gone.
#[derive(Debug)]
pub(super) struct Meter {
    shared: Arc<Shared>,
    number: u64,
    client: u64,
    model: String,
    context: u32,
    began: Option<Instant>,
    first_delta: Option<Instant>,
    miss: Option<CacheMiss>,
    told: Instant,
    progress: Reading,
    generated: u32,
    is_over: bool,
    span: Span,
}

impl Meter {
    pub(super) fn new(call: &ApiRequest, Counted { model, context, input_tokens }: Counted) -> Self {
        let (shared, client, now) = (call.shared.clone(), call.client().id, Instant::now());
        let progress = Reading { prompt: input_tokens, ..Reading::default() };
        let running = Running {
            request: call.request_id.clone(),
            client,
            model: model.clone(),
            since: now,
            progress,
            generated: 0,
        };
        let number = shared.usage.begin(running);
        Self {
            shared,
            number,
            client,
            model,
            context,
            began: None,
            first_delta: None,
            miss: None,
            told: now,
            progress,
            generated: 0,
            is_over: false,
            span: Span::current(),
        }
    }

    pub(super) fn take(&mut self, delta: &Delta) {
        let now = Instant::now();
        match delta {
            Delta::Started { reused_tokens } => {
                (self.progress.reused, self.progress.computed) = (*reused_tokens, *reused_tokens);
                (self.began, self.told) = (Some(now), now);
            }
            Delta::Compacted { usage, is_last: true, .. } => return self.finish(*usage),
            Delta::Compacted { .. } => {
                (self.progress, self.generated, self.first_delta) = (Reading::default(), 0, None);
            }
            Delta::Prompt { computed, total } => {
                self.progress.prompt = *total;
                let began = *self.began.get_or_insert(now);
                (self.progress.computed, self.progress.took) = (*computed, now - began);
                if now.duration_since(self.told) >= TOLD_EVERY && *computed < self.progress.prompt {
                    self.told = now;
                    self.span.in_scope(|| tracing::info!("{}", self.progress));
                }
            }
            Delta::Text { .. } | Delta::Thinking(_) | Delta::ToolCall { .. } | Delta::ToolArguments(_) => {
                self.first_delta.get_or_insert(now);
                self.generated = self.generated.saturating_add(1);
            }
            Delta::Finished { usage, .. } => return self.finish(*usage),
            Delta::Failed(_) => self.is_over = true,
            Delta::CacheMiss(miss) => self.miss = Some(miss.clone()),
            Delta::Loading { .. } => {}
        }
        self.shared.usage.update(self.number, self.progress, self.generated);
    }

    fn finish(&mut self, usage: Usage) {
        self.is_over = true;
        // From the end of the prompt, as the first tokens may come together.
        let generating = self.began.map(|began| began + self.progress.took);
        let seconds = generating.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let tokens_per_second = if seconds > 0.0 { f64::from(usage.generated) / seconds } else { 0.0 };
        let answer = LastAnswer { context: self.context, usage, tokens_per_second, miss: self.miss.take() };
        self.shared.usage.finish((self.client, self.model.clone()), answer);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        lock(&self.shared.usage.running).remove(&self.number);
        if !self.is_over {
            // The request's log line ends with these.
            let Reading { prompt, reused, computed, .. } = self.progress;
            let span = self.span.record("model", self.model.as_str()).record("outcome", "cancelled");
            span.record("prompt_tokens", prompt).record("reused_tokens", reused).record("read_tokens", computed);
            span.record("generated_tokens", self.generated);
        }
    }
}

impl UsageBoard {
    fn begin(&self, running: Running) -> u64 {
        let mut all = lock(&self.running);
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, running);
        number
    }

    fn update(&self, number: u64, progress: Reading, generated: u32) {
        if let Some(running) = lock(&self.running).get_mut(&number) {
            (running.progress, running.generated) = (progress, generated);
        }
    }

    fn finish(&self, key: (u64, String), answer: LastAnswer) {
        lock(&self.answers).push(key, answer);
    }

    fn of(&self, client: u64) -> Vec<Value> {
        let entries = lock(&self.answers);
        let mut own: Vec<_> = entries.iter().filter(|((id, _), _)| *id == client).collect();
        own.sort_by(|((_, a), _), ((_, b), _)| a.cmp(b));
        let value = |((_, model), entry): (&(u64, String), &LastAnswer)| {
            let used = entry.usage.prompt.saturating_add(entry.usage.generated);
            json!({
                "model": model,
                "context_window": entry.context,
                "context_tokens": used,
                "context_left": entry.context.saturating_sub(used),
                "input_tokens": entry.usage.prompt,
                "cached_tokens": entry.usage.reused,
                "output_tokens": entry.usage.generated,
                "cache_miss": entry.miss.as_ref().map(miss_json),
                "tokens_per_second": (entry.tokens_per_second * 10.0).round() / 10.0,
            })
        };
        own.into_iter().map(value).collect()
    }

    /// The length of a request's prompt, and how much of it is known to come from the cache, while the answer is awaited.
    pub(crate) fn prompt_of(&self, request: &str) -> Option<(u32, u32)> {
        let all = lock(&self.running);
        let running = all.values().rev().find(|running| running.request == request)?;
        Some((running.progress.prompt, running.progress.reused))
    }

    fn running(&self, client: u64) -> Vec<Value> {
        let all = lock(&self.running);
        let own = all.values().filter(|running| running.client == client).take(RUNNING_MAX);
        own.map(Running::to_json).collect()
    }
}

impl Running {
    fn to_json(&self) -> Value {
        let Reading { prompt, reused, computed, .. } = self.progress;
        let state = match self.progress.seconds_left() {
            _ if self.generated > 0 => "writing",
            None if computed == 0 => "waiting",
            _ if computed < prompt => "reading",
            _ => "writing",
        };
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
}

impl Reading {
    /// Until the prompt is read, at the speed so far.
    fn seconds_left(&self) -> Option<u64> {
        let (done, took) = (f64::from(self.computed.saturating_sub(self.reused)), self.took.as_secs_f64());
        let left = f64::from(self.prompt.saturating_sub(self.computed));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of seconds")]
        (done > 0.0 && took > 0.0).then(|| (left * took / done).ceil() as u64)
    }
}

/// `reading 12k of 18k tokens, 5k from cache, about 20 s left`.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reading {} of {} tokens", Thousands(self.computed), Thousands(self.prompt))?;
        if self.reused > 0 {
            write!(f, ", {} from cache", Thousands(self.reused))?;
        }
        match self.seconds_left() {
            Some(seconds) if seconds >= 120 => write!(f, ", about {} min left", seconds.div_ceil(60)),
            Some(seconds) => write!(f, ", about {seconds} s left"),
            None => Ok(()),
        }
    }
}

/// A number of tokens, in thousands from ten thousand on.
struct Thousands(u32);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            tokens if tokens < 1000 => write!(f, "{tokens}"),
            tokens if tokens < 10_000 => write!(f, "{:.1}k", f64::from(tokens) / 1000.0),
            tokens => write!(f, "{}k", tokens / 1000),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a prompt was not cached, as `cache_miss` of an answer's usage.
pub(super) fn miss_json(miss: &CacheMiss) -> Value {
    let CacheMiss { kind, at_token, message, text } = miss;
    let mut value = json!({ "kind": kind.name(), "at_token": at_token });
    if let Some(message) = message {
        value["message"] = (*message).into();
    }
    if !text.is_empty() {
        value["text"] = text.as_str().into();
    }
    value
}

/// Adds the reason of a miss to a usage object, where dialects keep what their API does not have.
pub(super) fn add_miss(usage: &mut Value, miss: Option<&CacheMiss>) {
    if let Some(miss) = miss {
        usage["pensieve"] = json!({ "cache_miss": miss_json(miss) });
    }
}

pub(crate) fn answer(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let (usage, client) = (&call.shared.usage, call.client().id);
    let (data, running) = (usage.of(client), usage.running(client));
    Ok(ApiResponse::json(&json!({ "object": "list", "data": data, "running": running })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_much_is_read_and_how_long_the_rest_takes() {
        let check = |(prompt, reused, computed, seconds), expected: &str| {
            let progress = Reading { prompt, reused, computed, took: Duration::from_secs(seconds) };
            assert_eq!(progress.to_string(), expected);
        };
        check((18_000, 5_000, 12_000, 23), "reading 12k of 18k tokens, 5.0k from cache, about 20 s left");
        check((18_000, 0, 1_000, 60), "reading 1.0k of 18k tokens, about 17 min left");
        check((900, 100, 100, 0), "reading 100 of 900 tokens, 100 from cache");
        check((900, 0, 900, 3), "reading 900 of 900 tokens, about 0 s left");
    }

    #[test]
    fn the_pair_that_has_not_answered_for_longest_is_forgotten() {
        let board = UsageBoard::default();
        let answer = || LastAnswer { context: 1, usage: Usage::default(), tokens_per_second: 0.0, miss: None };
        let models = |client| board.of(client).len();
        board.finish((1, "a".into()), answer());
        board.finish((2, "a".into()), answer());
        for model in 0..ENTRIES_MAX.get() - 2 {
            board.finish((3, model.to_string()), answer());
        }
        board.finish((1, "a".into()), answer());
        board.finish((1, "b".into()), answer());
        assert_eq!((models(1), models(2), models(3)), (2, 0, ENTRIES_MAX.get() - 2));
    }

    #[test]
    fn a_client_sees_its_own_requests_in_their_order() {
        let board = UsageBoard::default();
        let running = |client, prompt| Running {
            request: format!("req_{prompt}"),
            client,
            model: "m".into(),
            since: Instant::now(),
            progress: Reading { prompt, ..Reading::default() },
            generated: 0,
        };
        let numbers: Vec<u64> =
            [(1, 10), (2, 20), (1, 30)].map(|(client, prompt)| board.begin(running(client, prompt))).into();
        let reading = Reading { prompt: 30, reused: 5, computed: 10, took: Duration::from_secs(1) };
        board.update(numbers[2], reading, 0);
        let shown = board.running(1);
        let fields: Vec<_> =
            shown.iter().map(|running| (running["state"].as_str(), running["input_tokens"].as_u64())).collect();
        assert_eq!(fields, [(Some("waiting"), Some(10)), (Some("reading"), Some(30))]);
        assert_eq!((shown[1]["seconds_left"].as_u64(), shown[1]["read_tokens"].as_u64()), (Some(4), Some(10)));
        board.update(numbers[2], reading, 3);
        assert_eq!(board.running(1)[1]["state"], "writing");
        assert_eq!(board.running(3), Vec::<Value>::new());
        assert_eq!((board.prompt_of("req_30"), board.prompt_of("req_31")), (Some((30, 5)), None));
    }
}
