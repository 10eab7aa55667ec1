//! A snapshot of the fleet for lists and metrics.

use serde::Serialize;

use pensieve_protocol::wire;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FleetStats {
    /// What all workers together may take, in bytes.
    pub memory_budget: u64,
    /// What they take, by their cards.
    pub memory_used: u64,
    /// Every model, in the order of the configuration.
    pub models: Vec<ModelStats>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelStats {
    pub id: String,
    pub state: ModelState,
    /// Why it does not, or what last went wrong.
    pub reason: Option<String>,
    pub streams: u64,
    /// Requests that wait for the load.
    pub waiting: u64,
    /// Processes that serve it: more than one while a plugin is being replaced.
    pub workers: u64,
    /// The process that answers, or is about to.
    pub pid: Option<u32>,
    /// What they take, by the card.
    pub bytes: u64,
    pub loads: u64,
    /// Unexpected ends of workers so far.
    pub deaths: u64,
    pub progress: Option<Progress>,
    pub loaded: Option<wire::Loaded>,
    pub worker: Option<wire::Stats>,
    pub adapters: Vec<AdapterState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AdapterState {
    /// What clients call it, behind the model's id and a colon.
    pub name: String,
    /// Where it came from, as people wrote it.
    pub source: String,
    /// Whether it is part of the model's weights.
    pub merged: bool,
    /// Why the model does not take it.
    pub refusal: Option<String>,
    /// What the model's worker knows of it; nothing while the model is not loaded.
    pub known: Option<wire::AdapterStats>,
}

/// How far a load is, in units of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub done: u64,
    /// What there is to do; 0 for unknown.
    pub total: u64,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// It is loaded by the next request.
    Idle,
    Loading,
    Ready,
    /// Its worker died; it is about to be loaded again.
    Pausing,
    /// Its workers died too often.
    Quarantined,
}
