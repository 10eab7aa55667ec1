//! A snapshot of the fleet for lists and metrics.

use serde::Serialize;

use pensieve_protocol::wire;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FleetStats {
    /// Memory for all workers together, in bytes.
    pub memory_budget: u64,
    /// Bytes claimed.
    pub memory_used: u64,
    /// All models, in the order of the configuration.
    pub models: Vec<ModelStats>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelStats {
    pub id: String,
    pub state: ModelState,
    /// Why it is not ready, or its last failure.
    pub reason: Option<String>,
    pub streams: u64,
    /// Requests waiting for the load.
    pub waiting: u64,
    /// Number of worker processes: more than one while a plugin is being replaced.
    pub workers: u64,
    /// The process that serves requests, or will once it has loaded.
    pub pid: Option<u32>,
    /// Memory claimed for its workers in bytes: estimated from the card until they were measured.
    pub bytes: u64,
    /// The largest memory that a worker with these settings has had.
    pub measured_bytes: Option<u64>,
    /// It is never evicted, nor unloaded because it is idle.
    pub pinned: bool,
    /// Seconds until it is unloaded unless a request comes; `None` if it stays while there is room, or is not loaded.
    pub expires_in_s: Option<u64>,
    pub loads: u64,
    /// Number of unexpected worker exits so far.
    pub deaths: u64,
    pub progress: Option<Progress>,
    pub loaded: Option<wire::Loaded>,
    pub worker: Option<wire::Stats>,
    pub adapters: Vec<AdapterState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AdapterState {
    /// The adapter's name, which clients write after the model's id and a colon.
    pub name: String,
    /// The source, as the user wrote it.
    pub source: String,
    /// True if merged into the model's weights.
    pub merged: bool,
    /// Why the model's worker refused it.
    pub refusal: Option<String>,
    /// Statistics from the model's worker, while the model is loaded.
    pub known: Option<wire::AdapterStats>,
}

/// Progress of a load, in bytes or steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub done: u64,
    /// The total; 0 if unknown.
    pub total: u64,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// Not loaded; the next request loads it.
    Idle,
    Loading,
    Ready,
    /// Its worker died; a restart is scheduled.
    Pausing,
    /// Its workers died too often.
    Quarantined,
}
