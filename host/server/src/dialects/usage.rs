//! `GET /v1/usage`: how full each model's context was after the client's last answer, for status lines. It returns only
//! counts, and only those of the client's own requests.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use serde_json::{Value, json};

use super::{ApiError, ApiRequest, ApiResponse};
use crate::requests::Prepared;
use pensieve_protocol::job::Usage;

/// Limit of recorded pairs of client and model; a server has few of both.
const ENTRIES_MAX: usize = 1024;

/// The last answer of each client and model.
#[derive(Debug, Default)]
pub(crate) struct UsageBoard(Mutex<HashMap<(u64, String), LastAnswer>>);

#[derive(Debug)]
struct LastAnswer {
    context: u32,
    usage: Usage,
    tokens_per_second: f64,
}

#[derive(Debug)]
pub(super) struct Meter {
    client: u64,
    model: String,
    context: u32,
    first_delta: Option<Instant>,
}

impl Meter {
    pub(super) fn new(client: u64, prepared: &Prepared) -> Self {
        Self { client, model: prepared.model().to_owned(), context: prepared.context(), first_delta: None }
    }

    pub(super) fn delta(&mut self) {
        self.first_delta.get_or_insert_with(Instant::now);
    }
}

impl UsageBoard {
    pub(super) fn finish(&self, meter: &Meter, usage: Usage) {
        let seconds = meter.first_delta.map_or(0.0, |first| first.elapsed().as_secs_f64());
        let tokens_per_second = if seconds > 0.0 { f64::from(usage.generated) / seconds } else { 0.0 };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (meter.client, meter.model.clone());
        if entries.len() < ENTRIES_MAX || entries.contains_key(&key) {
            entries.insert(key, LastAnswer { context: meter.context, usage, tokens_per_second });
        }
    }

    fn of(&self, client: u64) -> Vec<Value> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
                "tokens_per_second": (entry.tokens_per_second * 10.0).round() / 10.0,
            })
        };
        own.into_iter().map(value).collect()
    }
}

pub(crate) fn answer(call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let data = call.shared.usage.of(call.client().id);
    Ok(ApiResponse::json(&json!({ "object": "list", "data": data })))
}
