//! Inputs and outputs of the supervisor.

use std::{sync::Arc, time::Duration};

use super::{Note, PendingAdapter};
use crate::fleet::{
    Config, KeepAlive, adapter_registry::AdapterFailure, plugins::Catalogue, probe::Probed, streams::Update,
};
use pensieve_protocol::{
    job::Failure,
    wire::{AttachedAdapter, Command, Load, Report},
};

/// An input of the supervisor. Workers are named by serial numbers, jobs by ids, models by their index in the
/// configuration.
#[derive(Debug)]
pub(in crate::fleet) enum Event {
    /// A job asks for a model.
    Submitted { model: usize, job: u64, client: u64, adapter: Option<String> },
    /// A job's client has disconnected.
    Cancelled { job: u64 },
    /// A child has probed a model.
    Probed { model: usize, result: Result<Probed, Failure> },
    /// An operator ends a model's quarantine.
    Released { model: usize },
    /// A request sets how long its model stays loaded; `None` for the configured time.
    KeptAlive { model: usize, keep: Option<KeepAlive> },
    /// A model is to be loaded and to stay, or not any longer.
    PinRequested { model: usize, pin: bool },
    /// A model is to be unloaded.
    UnloadRequested { model: usize },
    /// The configuration has changed. Every model has kept its index.
    Reconfigured(Arc<Config>),
    /// An adapter is to be attached to a model.
    AttachRequested { model: usize, pending: PendingAdapter },
    /// An adapter is to be detached from a model.
    DetachRequested { model: usize, name: String, ticket: u64 },
    /// A client waits for fresh statistics.
    StatsRequested,
    /// The server is about to exit.
    ShutdownRequested { drain: Duration },
    /// Plugins were added, replaced or removed.
    PluginsChanged(Arc<Catalogue>),
    /// A worker's process runs.
    Started { serial: u64, pid: Option<u32> },
    /// A worker's process could not be started.
    NotStarted { serial: u64, error: String },
    /// A worker has sent a report.
    Reported { serial: u64, report: Report },
    /// The largest memory of a worker's process so far, in bytes.
    Measured { serial: u64, bytes: u64 },
    /// Jobs of a worker have ended.
    JobsEnded { serial: u64, jobs: Vec<u64> },
    /// A worker has exited: its last event. Its jobs have failed.
    Exited { serial: u64, failure: Failure },
    /// A deadline may have passed.
    TimePassed,
}

/// An output of the supervisor, for the control loop to carry out.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::fleet) enum Effect {
    /// Probe a model's checkpoint; [`Event::Probed`] follows.
    Probe { model: usize },
    /// Start a worker and have it load; [`Event::Started`] or [`Event::NotStarted`] follows.
    Start { serial: u64, model: usize, load: Box<Load>, bytes: u64, plugin: String },
    /// Submit a waiting job to a worker.
    Submit { serial: u64, job: u64 },
    /// Report the progress of a load to a waiting job.
    Notify { job: u64, update: Update },
    /// Fail a job that was not submitted to a worker.
    Fail { job: u64, failure: Failure },
    /// Send a worker a command.
    Send { serial: u64, command: Command },
    /// Kill a worker unless it exits first.
    Kill { serial: u64, reason: Failure },
    /// Remember how much memory a model needed.
    Remember { key: String, bytes: u64 },
    /// Answer the request with this ticket.
    Answer { ticket: u64, answer: Answer },
    /// Answer all requests for fresh statistics.
    AnswerStats,
    /// Write this to the log.
    Note(Note),
    /// The shutdown is complete.
    End,
}

/// The answer to a request about an adapter; has the adapter if the request was to attach it.
pub(in crate::fleet) type Answer = Result<Option<AttachedAdapter>, AdapterFailure>;
