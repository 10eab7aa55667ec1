//! `GET /v1/live`: what the server does, as server-sent events, for the page.
//!
//! One task looks once a second while there is a reader, and none does otherwise. It publishes only what has changed, so
//! that readers of an idle server sleep. A reader gets the latest state and never a backlog: one that reads slowly misses
//! what was in between, and its connection ends like that of any client that does not read.
//!
//! | event | data |
//! |---|---|
//! | `server` | version, memory, models and plugins; again when something of it has changed |
//! | `sample` | numbers for charts, once a second while they change |
//! | `requests` | the client's own: all running ones, and those that have ended since the last event |

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    info,
    readers::{READERS_MAX, Snapshot},
    state::AppState,
};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, ErrorCode, Frame, StreamPermit},
    fleet::{FleetStats, ModelStats, footprint},
    shares::Share,
};
use pensieve_protocol::wire;

const INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a comment is sent, so that proxies keep the connection and a client that has gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Moves of a model's expiry that are not worth an event: it is known to the second.
const EXPIRY_GRAIN_S: u64 = 2;

struct Reader {
    app: Arc<AppState>,
    client: u64,
    snapshots: watch::Receiver<Snapshot>,
    closing: watch::Receiver<bool>,
    sent: Snapshot,
    /// Number of the last ended request that was sent.
    ended: u64,
    is_first: bool,
    _place: Share,
}

pub(super) fn answer(app: &Arc<AppState>, call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let client = call.client.clone().unwrap_or_default();
    let place = app.readers.take(client.share).ok_or_else(|| {
        let message = format!("this client's share of the {READERS_MAX} readers is taken; close another page");
        ApiError::new(ErrorCode::Overloaded, message)
    })?;
    let reader = Reader {
        app: app.clone(),
        client: client.id,
        snapshots: app.readers.subscribe(|sender| drop(tokio::spawn(look(Arc::downgrade(app), sender)))),
        closing: app.readers.closing(),
        sent: Snapshot::default(),
        ended: 0,
        is_first: true,
        _place: place,
    };
    let frames = unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
    Ok(ApiResponse::events(Box::pin(frames), StreamPermit::default()))
}

impl Reader {
    async fn next(&mut self) -> Option<Frame> {
        if *self.closing.borrow() {
            return None;
        }
        if std::mem::take(&mut self.is_first) && !self.snapshots.borrow_and_update().server.is_empty() {
            return Some(self.news());
        }
        loop {
            tokio::select! {
                _ = self.closing.changed() => return None,
                changed = self.snapshots.changed() => changed.ok()?,
                () = sleep(KEEP_ALIVE) => return Some(b": alive\n\n".to_vec().into()),
            }
            let frame = self.news();
            if !frame.is_empty() {
                return Some(frame);
            }
        }
    }

    /// Events for everything that is new since the last ones.
    fn news(&mut self) -> Frame {
        let now = self.snapshots.borrow_and_update().clone();
        let mut text = String::new();
        if now.server != self.sent.server {
            text.push_str(&event("server", &now.server));
        }
        if now.sample != self.sent.sample {
            text.push_str(&event("sample", &now.sample));
        }
        if now.board != self.sent.board || self.sent.server.is_empty() {
            let usage = &self.app.shared().usage;
            let running = usage.running_of(self.client);
            let (ended, last) = usage.ended_of(self.client, self.ended);
            self.ended = last;
            text.push_str(&event("requests", &json!({ "running": running, "ended": ended }).to_string()));
        }
        self.sent = now;
        text.into_bytes().into()
    }
}

fn event(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// Looks once a second until there is no reader, or no server.
async fn look(app: Weak<AppState>, sender: Arc<watch::Sender<Snapshot>>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counters = Counters::default();
    let mut expiries = HashMap::new();
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        if app.readers.rest(&sender) {
            return;
        }
        let stats = app.chats.fleet().stats(true).await;
        let resident = Resident::of(&stats);
        let sample = counters.sample(&stats, &resident);
        let server = server(&app, &stats, &resident, &mut expiries).to_string();
        let board = app.shared().usage.changes();
        sender.send_if_modified(|last| {
            let is_new = *last.server != *server || *last.sample != *sample || last.board != board;
            if is_new {
                // Equal texts keep their place, by which readers know them.
                let kept = |old: &Arc<str>, new: String| if **old == *new { old.clone() } else { new.into() };
                *last = Snapshot { server: kept(&last.server, server), sample: kept(&last.sample, sample), board };
            }
            is_new
        });
    }
}

/// Memory that processes have now, in bytes.
#[derive(Default)]
struct Resident {
    server: u64,
    workers: HashMap<u32, u64>,
}

impl Resident {
    fn of(stats: &FleetStats) -> Self {
        // To 4 MiB, so that an idle process does not seem to change.
        let bytes = |pid| footprint(pid).map(|bytes| bytes >> 22 << 22);
        let pids = stats.models.iter().filter_map(|model| model.pid);
        Self {
            server: bytes(std::process::id()).unwrap_or_default(),
            workers: pids.filter_map(|pid| Some((pid, bytes(pid)?))).collect(),
        }
    }
}

/// The workers' counters at the last look, by model.
#[derive(Default)]
struct Counters {
    at: Option<tokio::time::Instant>,
    models: HashMap<String, [u64; 3]>,
}

impl Counters {
    fn sample(&mut self, stats: &FleetStats, resident: &Resident) -> String {
        let now = tokio::time::Instant::now();
        let seconds = self.at.replace(now).map_or(1.0, |before| (now - before).as_secs_f64().max(0.1));
        let mut grown = [0_u64; 3];
        for model in &stats.models {
            let Some(worker) = &model.worker else { continue };
            let values = [worker.generated_tokens, worker.computed_tokens, worker.reused_tokens];
            // What a worker has done before it was first seen is no news. A new worker begins at 0.
            if let Some(before) = self.models.insert(model.id.clone(), values) {
                for ((grown, value), before) in grown.iter_mut().zip(values).zip(before) {
                    *grown += value.checked_sub(before).unwrap_or(value);
                }
            }
        }
        let rate = |count: u64| ((count as f64 / seconds) * 10.0).round() / 10.0;
        let [generated, computed, reused] = grown;
        let sum = |value: fn(&ModelStats) -> u64| stats.models.iter().map(value).sum::<u64>();
        let blocks = |value: fn(&wire::Stats) -> u64| {
            stats.models.iter().filter_map(|model| model.worker.as_ref()).map(value).sum::<u64>()
        };
        json!({
            "generated_per_s": rate(generated),
            "prompt_per_s": rate(computed.saturating_sub(generated)),
            "reused_per_s": rate(reused),
            "running": sum(|model| model.worker.as_ref().map_or(0, |worker| worker.running)),
            "waiting": sum(|model| model.waiting + model.worker.as_ref().map_or(0, |worker| worker.waiting)),
            "blocks_free": blocks(|worker| worker.blocks_free),
            "blocks_cached": blocks(|worker| worker.blocks_cached),
            "blocks_active": blocks(|worker| worker.blocks_active),
            "blocks_disk": blocks(|worker| worker.blocks_disk),
            "claimed_bytes": stats.memory_used,
            "resident_bytes": resident.workers.values().sum::<u64>() + resident.server,
        })
        .to_string()
    }
}

fn server(app: &AppState, stats: &FleetStats, resident: &Resident, expiries: &mut HashMap<String, u64>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let departures = app.chats.fleet().departures();
    let models = stats.models.iter().map(|model| {
        let mut value = info::model(model);
        let expiry = model.expires_in_s.map(|seconds| {
            let new = now + seconds;
            let known = expiries.entry(model.id.clone()).or_insert(new);
            if known.abs_diff(new) > EXPIRY_GRAIN_S {
                *known = new;
            }
            *known
        });
        if let Value::Object(value) = &mut value {
            value.remove("expires_in_s");
        }
        value["expires_at"] = expiry.into();
        value["resident_bytes"] = model.pid.and_then(|pid| resident.workers.get(&pid)).copied().into();
        value["context"] = model.loaded.as_ref().map(|loaded| loaded.context).into();
        value["block_tokens"] = model.loaded.as_ref().map(|loaded| loaded.block_tokens).into();
        value["blocks"] = model.worker.as_ref().map_or(Value::Null, |worker| {
            let (free, cached, active) = (worker.blocks_free, worker.blocks_cached, worker.blocks_active);
            json!({ "free": free, "cached": cached, "active": active, "disk": worker.blocks_disk })
        });
        let adapters = model.adapters.iter().map(|adapter| {
            json!({
                "name": adapter.name, "merged": adapter.merged, "refusal": adapter.refusal,
                "loaded": adapter.known.as_ref().map(|known| known.loaded),
                "bytes": adapter.known.as_ref().map(|known| known.bytes),
            })
        });
        value["adapters"] = adapters.collect();
        let departed = departures.iter().find(|(id, _)| *id == model.id).map(|(_, departure)| {
            let seconds = departure.at.elapsed().as_secs();
            // To ten seconds, as it only says how long ago it was.
            json!({ "reason": departure.reason.name(), "at": now.saturating_sub(seconds) / 10 * 10 })
        });
        value["departed"] = departed.into();
        value
    });
    let memory = json!({
        "budget_bytes": stats.memory_budget, "used_bytes": stats.memory_used, "server_bytes": resident.server,
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"), "memory": memory, "models": models.collect::<Vec<_>>(),
        "plugins": info::plugin_list(app),
    })
}
