//! `GET /metrics`, for Prometheus. Events in this process are counted where they happen, through the `metrics` crate;
//! workers are asked for their statistics at each scrape. Labels are routes, statuses, models, adapters and the names of
//! keys, so their number is bounded whatever clients do.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::{
    fmt::{self, Write as _},
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    dialects::{ApiResponse, Shared},
    fleet::{FleetStats, ModelState, ModelStats},
    keys::{Account, Ledger},
    requests::{Chats, UpstreamState},
};

/// Histogram buckets in seconds, from one token to a long answer.
const SECONDS: [f64; 18] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0];
/// Interval at which recorded samples are moved into buckets.
const UPKEEP: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Recorder(PrometheusHandle);

impl Recorder {
    /// Installs the recorder once per process, however many servers run in it.
    pub(super) fn install() -> Self {
        static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
        let handle = HANDLE.get_or_init(|| {
            let builder = PrometheusBuilder::new();
            let buckets = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS);
            let recorder = buckets.unwrap_or_else(|_| PrometheusBuilder::new()).build_recorder();
            let handle = recorder.handle();
            // Fails if another recorder is installed in this process; then this page lacks its counters.
            if metrics::set_global_recorder(recorder).is_ok() {
                describe();
            }
            handle
        });
        Self(handle.clone())
    }

    /// Bounds the memory for samples between scrapes.
    pub(super) async fn upkeep(self) {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            self.0.run_upkeep();
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

fn describe() {
    metrics::describe_counter!("pensieve_http_requests_total", "Requests by route, method and status.");
    metrics::describe_counter!(
        "pensieve_http_requests_abandoned_total",
        "Requests whose client left before the end of the answer."
    );
    metrics::describe_counter!("pensieve_http_connections_refused_total", "Connections beyond the limit.");
    metrics::describe_counter!(
        "pensieve_http_connections_evicted_total",
        "Connections that waited for their clients and made room for others."
    );
    metrics::describe_gauge!("pensieve_http_requests_in_flight", "Requests that are being served.");
    metrics::describe_histogram!("pensieve_http_request_seconds", "Time from a request's headers to its last byte.");
    metrics::describe_counter!("pensieve_key_requests_total", "Requests that models computed, by key and model.");
    metrics::describe_counter!(
        "pensieve_key_tokens_total",
        "Tokens by key, model and kind: input (those from the cache among them), cached, output."
    );
    crate::answers::measures::describe();
}

pub(super) async fn answer(recorder: &Recorder, chats: &Chats, shared: &Shared) -> ApiResponse {
    let stats = chats.fleet().stats(true).await;
    let mut page = Page(recorder.0.render());
    page.fleet(&stats);
    page.upstreams(&chats.upstreams().states());
    page.keys(&shared.keyring.table().accounts, &shared.ledger);
    page.process();
    ApiResponse::text("text/plain; version=0.0.4; charset=utf-8", page.0)
}

struct Page(String);

impl Page {
    fn family<'a>(&mut self, name: &str, kind: &str, help: &str, samples: impl IntoIterator<Item = (&'a str, u64)>) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
        self.0.push('\n');
    }

    fn fleet(&mut self, stats: &FleetStats) {
        self.family("pensieve_memory_budget_bytes", "gauge", "What all models may take.", [("", stats.memory_budget)]);
        self.family(
            "pensieve_memory_used_bytes",
            "gauge",
            "Memory used by models according to their cards.",
            [("", stats.memory_used)],
        );
        let labels: Vec<String> = stats.models.iter().map(|model| labels(&[("model", &model.id)])).collect();
        for Column { name, kind, help, value } in COLUMNS {
            let samples = labels.iter().map(String::as_str).zip(stats.models.iter().map(value));
            self.family(name, kind, help, samples);
        }
        let blocks: Vec<(String, u64)> = stats.models.iter().flat_map(blocks).collect();
        let samples = blocks.iter().map(|(labels, count)| (labels.as_str(), *count));
        self.family("pensieve_blocks", "gauge", "KV cache blocks by state.", samples);
        let adapters: Vec<(String, u64)> = stats.models.iter().flat_map(adapters).collect();
        let samples = adapters.iter().map(|(labels, bytes)| (labels.as_str(), *bytes));
        let help = "Memory of an adapter; 0 while it is not loaded.";
        self.family("pensieve_adapter_bytes", "gauge", help, samples);
    }

    fn upstreams(&mut self, states: &[UpstreamState]) {
        let labels = |state: &UpstreamState| labels(&[("model", &state.model), ("upstream", &state.url)]);
        let labels: Vec<String> = states.iter().map(labels).collect();
        let named = || labels.iter().map(String::as_str);
        let streams = named().zip(states.iter().map(|state| u64::from(state.streams)));
        self.family("pensieve_upstream_streams", "gauge", "Answers that an upstream is asked for.", streams);
        let up = named().zip(states.iter().map(|state| u64::from(state.is_well)));
        self.family("pensieve_upstream_up", "gauge", "0 while an upstream is left out because it fails.", up);
    }

    /// Those that have names; a key without a limit lacks its sample.
    fn keys(&mut self, accounts: &[Arc<Account>], ledger: &Ledger) {
        if accounts.is_empty() {
            return;
        }
        let labels: Vec<String> = accounts.iter().map(|account| labels(&[("key", account.name())])).collect();
        let named = || labels.iter().map(String::as_str).zip(accounts);
        let running = named().map(|(label, account)| (label, account.running() as u64));
        self.family("pensieve_key_requests_running", "gauge", "Requests that models compute for a key.", running);
        let spent = named().map(|(label, account)| (label, ledger.spent_today(account.name())));
        let help = "Tokens that a key has used since midnight in UTC, without those from the cache.";
        self.family("pensieve_key_tokens_today", "gauge", help, spent);
        let limits = named().filter_map(|(label, account)| Some((label, account.tokens_per_day()?)));
        self.family("pensieve_key_tokens_per_day", "gauge", "Tokens that a key may use in a day.", limits);
    }

    fn process(&mut self) {
        if let Some(count) = open_files() {
            self.family("process_open_fds", "gauge", "Open file descriptors of the server.", [("", count)]);
        }
        if let Some(count) = children() {
            self.family("pensieve_child_processes", "gauge", "Processes that the server has started.", [("", count)]);
        }
    }
}

struct Column {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&ModelStats) -> u64,
}

/// A worker's counters restart at 0 with each worker, which Prometheus supports.
const COLUMNS: [Column; 20] = [
    column("pensieve_model_ready", "gauge", "1 if the model is loaded and ready.", |model| {
        u64::from(model.state == ModelState::Ready)
    }),
    column(
        "pensieve_model_quarantined",
        "gauge",
        "1 if the model is not loaded for a while, as its workers crashed too often.",
        |model| u64::from(model.state == ModelState::Quarantined),
    ),
    column("pensieve_model_bytes", "gauge", "Memory of the model according to its card.", |model| model.bytes),
    column("pensieve_workers", "gauge", "Processes that serve the model.", |model| model.workers),
    column("pensieve_worker_loads_total", "counter", "Workers started for the model.", |model| model.loads),
    column("pensieve_worker_deaths_total", "counter", "Workers that ended unexpectedly.", |model| model.deaths),
    column("pensieve_streams", "gauge", "Current generations.", |model| model.streams),
    column("pensieve_sequences_running", "gauge", "Running sequences.", |model| worker(model, |w| w.running)),
    column("pensieve_sequences_waiting", "gauge", "Waiting requests.", |model| {
        model.waiting + worker(model, |w| w.waiting)
    }),
    column("pensieve_worker_steps_total", "counter", "Steps of the worker.", |model| worker(model, |w| w.steps)),
    column("pensieve_worker_preemptions_total", "counter", "Sequences preempted for lack of blocks.", |model| {
        worker(model, |w| w.preemptions)
    }),
    column("pensieve_worker_tokens_reused_total", "counter", "Prompt tokens found in the prefix cache.", |model| {
        worker(model, |w| w.reused_tokens)
    }),
    column(
        "pensieve_worker_tokens_computed_total",
        "counter",
        "Prompt and answer tokens that went through the model.",
        |model| worker(model, |w| w.computed_tokens),
    ),
    column("pensieve_worker_tokens_generated_total", "counter", "Generated tokens.", |model| {
        worker(model, |w| w.generated_tokens)
    }),
    column("pensieve_worker_forward_microseconds_total", "counter", "Time in the model's forward pass.", |model| {
        worker(model, |w| w.forward_us)
    }),
    column(
        "pensieve_worker_items_encoded_total",
        "counter",
        "Images that went through the model's encoder.",
        |model| worker(model, |w| w.encoded_items),
    ),
    column("pensieve_worker_encode_microseconds_total", "counter", "Time in the model's encoder.", |model| {
        worker(model, |w| w.encode_us)
    }),
    column("pensieve_adapters", "gauge", "Adapters that requests can select.", |model| {
        model.adapters.iter().filter(|adapter| !adapter.merged).count() as u64
    }),
    column("pensieve_adapter_loads_total", "counter", "Adapter loads.", |model| worker(model, |w| w.adapter_loads)),
    column("pensieve_adapter_unloads_total", "counter", "Adapters evicted to make room.", |model| {
        worker(model, |w| w.adapter_unloads)
    }),
];

const fn column(name: &'static str, kind: &'static str, help: &'static str, value: fn(&ModelStats) -> u64) -> Column {
    Column { name, kind, help, value }
}

fn worker(model: &ModelStats, value: impl Fn(&pensieve_protocol::wire::Stats) -> u64) -> u64 {
    model.worker.as_ref().map_or(0, value)
}

fn blocks(model: &ModelStats) -> Vec<(String, u64)> {
    let Some(worker) = &model.worker else { return Vec::new() };
    let counts = [
        ("free", worker.blocks_free),
        ("cached", worker.blocks_cached),
        ("active", worker.blocks_active),
        ("disk", worker.blocks_disk),
    ];
    counts.map(|(state, count)| (labels(&[("model", &model.id), ("state", state)]), count)).to_vec()
}

fn adapters(model: &ModelStats) -> impl Iterator<Item = (String, u64)> {
    let chosen = model.adapters.iter().filter(|adapter| !adapter.merged);
    chosen.map(|adapter| {
        let bytes = adapter.known.as_ref().map_or(0, |known| if known.loaded { known.bytes } else { 0 });
        (labels(&[("model", &model.id), ("adapter", &adapter.name)]), bytes)
    })
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn open_files() -> Option<u64> {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    // Reading the folder takes one descriptor itself.
    Some((std::fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1))
}

/// Child processes, including zombies; only on systems with /proc.
fn children() -> Option<u64> {
    let own = std::process::id().to_string();
    let parent = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in brackets may contain anything.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(1).map(str::to_owned)
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let processes = processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    Some(processes.filter_map(parent).filter(|parent| *parent == own).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_cannot_break_the_page() {
        assert_eq!(labels(&[("model", "a\"b\\c\nd"), ("state", "x")]), r#"{model="a\"b\\c\nd",state="x"}"#);
    }

    #[test]
    fn this_process_has_files() {
        assert!(open_files().is_some_and(|count| count >= 3));
    }
}
