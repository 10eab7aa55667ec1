//! `GET /v1/usage` and `GET /v1/requests`: how full each model's context was after the client's last answer, how far its
//! running requests are, how the last ones ended, and what keys have used. For status lines, the page, and people who wonder why an answer was
//! slow. A client sees only its own requests, and never their texts but for a changed line.

mod cache;
mod keys;
mod meter;
mod reading;
mod record;

pub(super) use cache::add_report;
pub(super) use meter::{Counted, Meter};

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroUsize,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use lru::LruCache;
use serde_json::{Value, json};

use super::{ApiError, ApiRequest, ApiResponse};
use crate::chat::CacheMiss;
use cache::miss_json;
use pensieve_protocol::job::Usage;
use record::Record;

/// Limit of recorded pairs of client and model, beyond which the one that has not answered for longest is forgotten.
const ENTRIES_MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Running requests of one client that are listed.
const RUNNING_MAX: usize = 64;
/// Ended requests that are remembered, of all clients and of one.
const ENDED_MAX: usize = 512;
const ENDED_OF_CLIENT_MAX: usize = 100;

#[derive(Debug)]
pub(crate) struct UsageBoard {
    /// The last answer of each client and model.
    answers: Mutex<LruCache<(u64, String), LastAnswer>>,
    /// By the order in which they came.
    running: Mutex<BTreeMap<u64, Record>>,
    /// Number of the next request. No number is used twice, as the end of one request must not touch another.
    next: AtomicU64,
    /// Oldest first.
    ended: Mutex<VecDeque<Record>>,
    /// Counts changes, so that a reader can tell whether there is something new.
    changes: AtomicU64,
}

impl Default for UsageBoard {
    fn default() -> Self {
        Self {
            answers: Mutex::new(LruCache::new(ENTRIES_MAX)),
            running: Mutex::default(),
            next: AtomicU64::default(),
            ended: Mutex::default(),
            changes: AtomicU64::default(),
        }
    }
}

#[derive(Debug)]
struct LastAnswer {
    context: u32,
    usage: Usage,
    tokens_per_second: f64,
    miss: Option<CacheMiss>,
}

impl UsageBoard {
    fn begin(&self, record: Record) -> u64 {
        self.changed();
        let mut all = lock(&self.running);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        all.insert(number, record);
        number
    }

    fn update(&self, number: u64, now: &Record) {
        self.changed();
        if let Some(record) = lock(&self.running).get_mut(&number) {
            (record.progress, record.generated) = (now.progress, now.generated);
            (record.queued, record.first) = (now.queued, now.first);
            if record.report.is_none() {
                record.report.clone_from(&now.report);
            }
            if record.tools.len() != now.tools.len() {
                record.tools.clone_from(&now.tools);
            }
        }
    }

    fn end(&self, number: u64, mut record: Record) {
        self.changed();
        // Warnings are added to what is listed.
        record.warnings = lock(&self.running).remove(&number).map(|listed| listed.warnings).unwrap_or_default();
        let mut ended = lock(&self.ended);
        let next = ended.back().and_then(|last| last.end.as_ref()).map_or(1, |end| end.number + 1);
        if let Some(end) = &mut record.end {
            end.number = next;
        }
        ended.push_back(record);
        if ended.len() > ENDED_MAX {
            ended.pop_front();
        }
    }

    /// Adds what was ignored or changed in a request.
    pub(crate) fn warned(&self, request: &str, warnings: &[String]) {
        if warnings.is_empty() {
            return;
        }
        self.changed();
        if let Some(running) = lock(&self.running).values_mut().rev().find(|running| running.request == request) {
            return running.warned(warnings);
        }
        if let Some(ended) = lock(&self.ended).iter_mut().rev().find(|ended| ended.request == request) {
            ended.warned(warnings);
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

    fn running(&self, client: u64, json: impl Fn(&Record) -> Value) -> Vec<Value> {
        let all = lock(&self.running);
        all.values().filter(|running| running.client == client).take(RUNNING_MAX).map(json).collect()
    }

    /// A client's running requests, in the order in which they came.
    pub(crate) fn running_of(&self, client: u64) -> Vec<Value> {
        self.running(client, Record::json)
    }

    /// A client's requests that have ended after the one of this number, latest first, and the number of the last one.
    pub(crate) fn ended_of(&self, client: u64, after: u64) -> (Vec<Value>, u64) {
        let all = lock(&self.ended);
        let number = |record: &Record| record.end.as_ref().map_or(0, |end| end.number);
        let new = all.iter().rev().take_while(|record| number(record) > after);
        let own = new.filter(|record| record.client == client).take(ENDED_OF_CLIENT_MAX);
        (own.map(Record::json).collect(), all.back().map_or(after, number))
    }

    /// Grows with every change of what is listed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `GET /v1/usage`.
pub(crate) fn answer(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let (usage, client) = (&call.shared.usage, call.client().id);
    let (data, running) = (usage.of(client), usage.running(client, Record::progress_json));
    let keys = keys::usage_of(call)?;
    Ok(ApiResponse::json(&json!({ "object": "list", "data": data, "running": running, "keys": keys })))
}

/// `GET /v1/requests`.
pub(crate) fn requests(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let (usage, client) = (&call.shared.usage, call.client().id);
    let (running, (data, _)) = (usage.running_of(client), usage.ended_of(client, 0));
    Ok(ApiResponse::json(&json!({ "object": "list", "data": data, "running": running })))
}

#[cfg(test)]
mod tests {
    use super::{
        reading::Reading,
        record::{End, Record},
        *,
    };
    use std::time::Duration;

    fn record(client: u64, prompt: u32) -> Record {
        let record = Record::new(format!("req_{prompt}"), client, "curl/8".into(), "openai", "m".into());
        Record { context: 100, progress: Reading { prompt, ..Reading::default() }, ..record }
    }

    fn ended(client: u64, prompt: u32) -> Record {
        let end = End {
            number: 0,
            took: Duration::from_secs(2),
            outcome: "end_of_turn",
            error: None,
            usage: Usage { prompt, ..Usage::default() },
            tokens_per_second: 1.0,
        };
        Record { end: Some(end), ..record(client, prompt) }
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
        let numbers: Vec<u64> =
            [(1, 10), (2, 20), (1, 30)].map(|(client, prompt)| board.begin(record(client, prompt))).into();
        let progress = Reading { prompt: 30, reused: 5, computed: 10, took: Duration::from_secs(1) };
        board.update(numbers[2], &Record { progress, ..record(1, 30) });
        let running = |client| board.running(client, Record::progress_json);
        let shown = running(1);
        let fields: Vec<_> =
            shown.iter().map(|running| (running["state"].as_str(), running["input_tokens"].as_u64())).collect();
        assert_eq!(fields, [(Some("waiting"), Some(10)), (Some("reading"), Some(30))]);
        assert_eq!((shown[1]["seconds_left"].as_u64(), shown[1]["read_tokens"].as_u64()), (Some(4), Some(10)));
        board.update(numbers[2], &Record { progress, generated: 3, ..record(1, 30) });
        assert_eq!(running(1)[1]["state"], "writing");
        assert_eq!(running(3), Vec::<Value>::new());
        assert_eq!((board.prompt_of("req_30"), board.prompt_of("req_31")), (Some((30, 5)), None));
    }

    #[test]
    fn the_end_of_a_request_leaves_later_ones_alone() {
        let board = UsageBoard::default();
        let first = board.begin(record(1, 10));
        board.end(first, ended(1, 10));
        let second = board.begin(record(1, 20));
        assert_ne!(first, second);
        board.update(first, &Record { generated: 3, ..record(1, 10) });
        board.end(first, ended(1, 10));
        let running = board.running_of(1);
        assert_eq!((running.len(), &running[0]["input_tokens"], &running[0]["pieces"]), (1, &json!(20), &json!(0)));
    }

    #[test]
    fn every_field_of_a_request_is_described() {
        let document: Value = serde_json::from_str(include_str!("../../http/openapi.json")).unwrap();
        let schema = &document["components"]["schemas"]["Request"];
        let described = schema["properties"].as_object().unwrap();
        for shown in [record(1, 10).json(), ended(1, 10).json()] {
            let fields: Vec<_> =
                shown.as_object().unwrap().keys().filter(|key| !described.contains_key(*key)).collect();
            assert!(fields.is_empty(), "not in openapi.json: {fields:?}");
            let mut required = schema["required"].as_array().unwrap().iter().filter_map(Value::as_str);
            assert_eq!(required.find(|field| shown.get(field).is_none()), None);
        }
    }

    #[test]
    fn ended_requests_are_told_once_and_keep_their_warnings() {
        let board = UsageBoard::default();
        let number = board.begin(record(1, 10));
        board.warned("req_10", &["an image was left out".to_owned()]);
        board.end(number, ended(1, 10));
        board.end(board.begin(record(2, 20)), ended(2, 20));
        let (first, seen) = board.ended_of(1, 0);
        assert_eq!((first.len(), seen), (1, 2));
        assert_eq!(
            (&first[0]["stop_reason"], &first[0]["warnings"][0]),
            (&json!("end_of_turn"), &json!("an image was left out"))
        );
        assert_eq!(board.ended_of(1, seen), (Vec::new(), 2));
        board.warned("req_10", &["late".to_owned()]);
        assert_eq!(board.ended_of(1, 0).0[0]["warnings"], json!(["an image was left out", "late"]));
        for _ in 0..ENDED_MAX + 10 {
            board.end(board.begin(record(1, 30)), ended(1, 30));
        }
        let all = lock(&board.ended).len();
        assert_eq!((all, board.ended_of(1, 0).0.len()), (ENDED_MAX, ENDED_OF_CLIENT_MAX));
    }
}
