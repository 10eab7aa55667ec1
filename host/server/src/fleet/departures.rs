//! When the last worker of each model went, and why: its memory held the prefix cache, and a client whose prompt has to
//! be computed again is told the reason.
//!
//! The reason follows from the event that made the supervisor end the worker.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::supervisor::Event;

/// The end of a model's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    pub at: Instant,
    pub reason: DepartureReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepartureReason {
    /// An operator or a client has asked for it.
    Unloaded,
    Idle,
    /// Another model needed the memory.
    Memory,
    PluginReplaced,
    SettingsChanged,
    /// The worker crashed, hung, or was killed.
    Died,
}

/// The latest departure of each model, by its index in the configuration.
#[derive(Debug, Default)]
pub(super) struct Departures(Mutex<HashMap<usize, Departure>>);

impl DepartureReason {
    /// The word for it in the APIs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Idle => "idle",
            Self::Memory => "memory_for_another_model",
            Self::PluginReplaced => "plugin_replaced",
            Self::SettingsChanged => "settings_changed",
            Self::Died => "worker_died",
        }
    }

    /// Why a worker that is asked to drain because of this event goes.
    pub(super) fn of(event: &Event) -> Self {
        match event {
            Event::UnloadRequested { .. } | Event::KeptAlive { .. } => Self::Unloaded,
            Event::TimePassed => Self::Idle,
            Event::Reconfigured(_) => Self::SettingsChanged,
            Event::PluginsChanged(_) => Self::PluginReplaced,
            Event::Exited { .. } | Event::NotStarted { .. } => Self::Died,
            _ => Self::Memory,
        }
    }
}

impl Departures {
    pub(super) fn record(&self, model: usize, reason: DepartureReason) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(model, Departure { at: Instant::now(), reason });
    }

    pub(super) fn of(&self, model: usize) -> Option<Departure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&model).copied()
    }
}
