//! The supervisor: decides about the fleet's models and workers. A state machine without I/O.
//!
//! Every input arrives as an [`Event`] with its time, and the consequences come back as [`Effect`]s, which the control
//! loop carries out; log lines are effects, too. Thus nothing needs a lock, all parts agree on the order of events, and
//! a test can try any order.

mod adapters;
mod crash_history;
mod event;
mod model;
mod note;
mod residency;
mod shutdown;
mod worker_state;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod simulation;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Config, FleetStats, adapter_registry::AdapterRegistry, memory::Resident, plugins::Catalogue, stats::Progress,
    streams::Update,
};
use crash_history::RestartDecision;
pub(super) use event::{Answer, Effect, Event};
use model::{LoadState, Model};
pub(super) use note::{Happening, Note};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    share,
    wire::{Command, Limits, Report},
};
use shutdown::ShutdownState;
pub(super) use worker_state::PendingAdapter;
use worker_state::{PluginFreshness, WaitingJob, WorkerState};

/// Time for workers to answer a request for statistics.
const STATS_WAIT: Duration = Duration::from_millis(500);

pub(super) struct Supervisor {
    config: Arc<Config>,
    catalogue: Arc<Catalogue>,
    /// Shared with the router, and changed only here.
    registry: Arc<AdapterRegistry>,
    models: Vec<Model>,
    workers: BTreeMap<u64, WorkerState>,
    next_serial: u64,
    uses: u64,
    stats_request: Option<StatsRequest>,
    closing: Option<ShutdownState>,
    effects: Vec<Effect>,
}

struct StatsRequest {
    missing: HashSet<u64>,
    until: Instant,
}

impl Supervisor {
    pub(super) fn new(config: Arc<Config>, registry: Arc<AdapterRegistry>, catalogue: Arc<Catalogue>) -> Self {
        Self {
            models: config.models.iter().map(|_| Model::default()).collect(),
            config,
            catalogue,
            registry,
            workers: BTreeMap::new(),
            next_serial: 0,
            uses: 0,
            stats_request: None,
            closing: None,
            effects: Vec::new(),
        }
    }

    /// Handles an event and returns its effects.
    pub(super) fn on(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        match event {
            Event::Submitted { model, job, client, adapter } => {
                self.submit(model, WaitingJob { job, client, adapter }, now);
            }
            Event::Cancelled { job } => self.cancel(job),
            Event::Probed { model, result } => self.on_probed(model, result, now),
            Event::Released { model } => self.models[model].release(),
            Event::KeptAlive { model, keep } => self.keep(model, keep),
            Event::PinRequested { model, pin } => self.pin(model, pin),
            Event::UnloadRequested { model } => self.unload(model, now),
            Event::Reconfigured(config) => self.reconfigure(&config, now),
            Event::Measured { serial, bytes } => self.on_measured(serial, bytes, now),
            Event::AttachRequested { model, pending } => self.attach(model, pending, now),
            Event::DetachRequested { model, name, ticket } => {
                let answer = self.detach(model, &name).map(|()| None);
                self.effects.push(Effect::Answer { ticket, answer });
            }
            Event::StatsRequested => self.request_stats(now),
            Event::ShutdownRequested { drain } => self.begin_shutdown(drain, now),
            Event::PluginsChanged(catalogue) => self.on_plugins_changed(catalogue, now),
            Event::Started { serial, pid } => self.on_started(serial, pid),
            Event::NotStarted { serial, error } => self.on_not_started(serial, &error),
            Event::Reported { serial, report } => self.on_report(serial, report, now),
            Event::JobsEnded { serial, jobs } => {
                if let Some(worker) = self.workers.get_mut(&serial) {
                    self.uses += 1;
                    (worker.used, worker.used_at, worker.progressed_at) = (self.uses, now, now);
                    worker.jobs.retain(|job| !jobs.contains(job));
                    worker.has_answered = true;
                    self.claim_measured(serial);
                }
            }
            Event::Exited { serial, failure } => self.remove_dead(serial, &failure, now),
            Event::TimePassed => {}
        }
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    fn submit(&mut self, index: usize, waiting: WaitingJob, now: Instant) {
        // Jobs that the worker will take at once when it is ready do not count as waiting.
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        let Limits { waiting_max, sequences_max, .. } = config.spec.limits;
        let waiting_max = (waiting_max as usize).saturating_add(sequences_max as usize);
        let own = model.waiting.iter().filter(|other| other.client == waiting.client).count();
        let free = waiting_max.saturating_sub(model.waiting.len());
        let refusal = if self.closing.is_some() {
            Some(shutdown::ending())
        } else if config.removed {
            Some(residency::removed(&config.id))
        } else if let LoadState::Quarantined { until, failure } = &model.state {
            Some(Failure { retry_after: Some(until.saturating_duration_since(now)), ..failure.clone() })
        } else if !share::may_take(waiting.client, own, free, 1) {
            let (id, waiting) = (&config.id, model.waiting.len());
            let message = format!("{waiting} requests wait for model '{id}' already, {own} of them this client's");
            Some(Failure::new(FailureCode::Busy, message).with_help("try again later"))
        } else {
            None
        };
        if let Some(failure) = refusal {
            self.effects.push(Effect::Fail { job: waiting.job, failure });
        } else if let LoadState::Ready(serial) = model.state
            && let Some(worker) = self.workers.get_mut(&serial)
        {
            self.uses += 1;
            (worker.used, worker.used_at) = (self.uses, now);
            self.effects.push(worker.submit(waiting));
        } else {
            model.waiting.push_back(waiting);
        }
    }

    fn cancel(&mut self, job: u64) {
        for model in &mut self.models {
            model.waiting.retain(|waiting| waiting.job != job);
        }
        // The job is removed when the worker reports its end; until then the worker is not idle.
        if let Some(worker) = self.workers.values().find(|worker| worker.jobs.contains(&job)) {
            self.effects.push(worker.send(Command::Cancel { id: job }));
        }
    }

    fn on_report(&mut self, serial: u64, report: Report, now: Instant) {
        let Some(worker) = self.workers.get_mut(&serial) else { return };
        let model = &mut self.models[worker.model];
        match report {
            Report::Progress { done, total, what } => {
                (worker.progressed_at, worker.progress) = (now, Some(Progress { done, total, what: what.clone() }));
                let update = Update::Loading { done, total, what };
                let notify = |waiting: &WaitingJob| Effect::Notify { job: waiting.job, update: update.clone() };
                self.effects.extend(model.waiting.iter().map(notify));
            }
            Report::Loaded(loaded) => {
                let note = Note { model: worker.model, what: Happening::Loaded(loaded.clone()) };
                self.effects.push(Effect::Note(note));
                (worker.loaded, worker.progressed_at) = (Some(*loaded), now);
                for (name, adapter) in self.registry.of(worker.model).into_iter().filter(|(_, it)| it.merged.is_none())
                {
                    self.effects.push(worker.attach(name, adapter.location, None, now));
                }
            }
            Report::LoadFailed(failure) => {
                // A restart would fail in the same way: waiting requests fail with this reason, and the next request
                // tries again.
                worker.draining = true;
                if model.state == LoadState::Loading(serial) {
                    model.state = LoadState::Idle;
                    model.fail_waiting(&failure, &mut self.effects);
                }
                model.last_failure = Some(failure);
            }
            Report::Attached { attempt, result } => self.on_attached(serial, attempt, result),
            Report::Stats(stats) => {
                worker.stats = Some(*stats);
                if let Some(stats_request) = &mut self.stats_request {
                    stats_request.missing.remove(&serial);
                }
            }
            // The task that reads the worker's socket has already handled these.
            Report::Events(_)
            | Report::Log { .. }
            | Report::Hello { .. }
            | Report::Detached { .. }
            | Report::Heartbeat { .. }
            | Report::Drained
            | Report::Dying(_) => {}
        }
    }

    /// Removes a worker that has exited: its waiting requests fail, and its model is reloaded unless the exit was
    /// requested.
    fn remove_dead(&mut self, serial: u64, failure: &Failure, now: Instant) {
        let Some(mut worker) = self.workers.remove(&serial) else { return };
        worker.refuse_attachments(failure, &mut self.effects);
        if let Some(stats_request) = &mut self.stats_request {
            stats_request.missing.remove(&serial);
        }
        let (config, model) = (&self.config.models[worker.model], &mut self.models[worker.model]);
        if !model.state.is_served_by(serial) {
            return;
        }
        let what = Happening::WorkerDied(failure.clone());
        self.effects.push(Effect::Note(Note { model: worker.model, what }));
        model.deaths_total += 1;
        model.last_failure = Some(failure.clone());
        model.state = match model.deaths.count(now, &self.config.restart) {
            RestartDecision::RestartAfter(pause) => LoadState::Pausing { until: now + pause },
            RestartDecision::Quarantine(length) => {
                let message = format!(
                    "model '{}' is in quarantine: its worker died {} times within {} s, the last time so: {}",
                    config.id,
                    model.deaths.len(),
                    self.config.restart.window.as_secs(),
                    failure.message
                );
                let help = "replace the plugin or the checkpoint, or wait until it is tried again";
                let failure = Failure::new(FailureCode::Quarantined, message).with_help(help);
                model.fail_waiting(&Failure { retry_after: Some(length), ..failure.clone() }, &mut self.effects);
                LoadState::Quarantined { until: now + length, failure }
            }
        };
    }

    /// Applies a new catalogue: new loads use the new plugins; workers on older ones finish their jobs.
    fn on_plugins_changed(&mut self, catalogue: Arc<Catalogue>, now: Instant) {
        self.catalogue = catalogue;
        for (serial, worker) in &mut self.workers {
            let model = &mut self.models[worker.model];
            if model.state.is_served_by(*serial) && worker.freshness(&self.catalogue) == PluginFreshness::Outdated {
                model.pending_adapters.extend(worker.drain(now, &mut self.effects));
                if worker.loaded.is_none() {
                    self.effects.push(worker.kill(FailureCode::Draining, "was loading a plugin that is gone"));
                }
                model.state = LoadState::Idle;
                model.deaths.forget();
                model.wanted = model.pinned;
            }
        }
        for model in &mut self.models {
            let there = |sha256: &String| self.catalogue.plugins().iter().any(|plugin| plugin.copy.sha256() == sha256);
            if model.plugin.as_ref().is_some_and(|sha256| !there(sha256)) {
                model.release();
            }
        }
    }

    fn request_stats(&mut self, now: Instant) {
        if self.stats_request.is_none() {
            let ready = || self.workers.values().filter(|worker| worker.loaded.is_some());
            self.effects.extend(ready().map(|worker| worker.send(Command::Stats)));
            let missing = ready().map(|worker| worker.serial).collect();
            self.stats_request = Some(StatsRequest { missing, until: now + STATS_WAIT });
        }
    }

    /// Answers requests for statistics, kills workers past their deadlines, and advances all models.
    fn advance(&mut self, now: Instant) {
        let gathered = |request: &mut StatsRequest| request.missing.is_empty() || now >= request.until;
        if self.stats_request.take_if(gathered).is_some() {
            self.effects.push(Effect::AnswerStats);
        }
        let deadlines = self.config.deadlines;
        for worker in self.workers.values_mut() {
            let late = worker.deadline(deadlines.load, deadlines.drain).is_some_and(|deadline| now >= deadline);
            if late && !worker.draining && worker.loaded.is_some() {
                worker.refuse_hung_attachments(deadlines.load, now, &mut self.effects);
            } else if late {
                let what =
                    if worker.draining { "did not end when it was asked to" } else { "made no progress with its load" };
                self.effects.push(worker.kill(FailureCode::Stalled, what));
                worker.progressed_at = now;
            }
        }
        if self.closing.is_none() {
            self.release_adapter_memory();
            self.drain_idle(now);
            (0..self.models.len()).for_each(|model| self.advance_model(model, now));
        }
        self.advance_shutdown(now);
    }

    /// Drains workers that have been idle for too long, and idle workers that lack plugins of the catalogue.
    fn drain_idle(&mut self, now: Instant) {
        let limits: Vec<_> = (0..self.models.len()).map(|model| self.idle_limit(model)).collect();
        for (serial, worker) in &mut self.workers {
            let model = &mut self.models[worker.model];
            let ready = model.state == LoadState::Ready(*serial) && worker.is_idle();
            let unused =
                limits[worker.model].is_some_and(|limit| now.saturating_duration_since(worker.used_at) >= limit);
            if ready && unused {
                // A time that a request has set holds until then.
                model.keep = None;
            }
            if ready && (unused || worker.freshness(&self.catalogue) != PluginFreshness::Current) {
                model.pending_adapters.extend(worker.drain(now, &mut self.effects));
                (model.state, model.wanted) = (LoadState::Idle, model.pinned);
            }
        }
    }

    /// True if a worker is ready and idle. A worker that has just loaded is not ready until it has received the waiting
    /// jobs.
    fn is_unused(&self, worker: &WorkerState) -> bool {
        worker.is_idle() && self.models[worker.model].state == LoadState::Ready(worker.serial)
    }

    /// The workers, in the form that the memory budget takes.
    fn residents(&self) -> Vec<Resident> {
        let resident = |worker: &WorkerState| Resident {
            serial: worker.serial,
            bytes: worker.bytes,
            idle: self.is_unused(worker) && !self.models[worker.model].pinned,
            used: worker.used,
        };
        self.workers.values().map(resident).collect()
    }

    /// When [`Event::TimePassed`] is due; `None` if nothing waits for it.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.config.deadlines;
        let workers = self.workers.values().flat_map(|worker| {
            let limit = self.idle_limit(worker.model).filter(|_| self.is_unused(worker));
            let unused_at = limit.and_then(|limit| worker.used_at.checked_add(limit));
            [worker.deadline(deadlines.load, deadlines.drain), unused_at]
        });
        let models = self.models.iter().map(|model| model.deadline(deadlines.memory));
        let rest = [
            self.stats_request.as_ref().map(|request| request.until),
            self.closing.as_ref().map(|closing| closing.until),
        ];
        let next = workers.chain(models).chain(rest).flatten().min()?;
        Some(next.max(now + Duration::from_millis(1)))
    }

    pub(super) fn stats(&self, now: Instant) -> FleetStats {
        // A removed model is there as long as it has a worker.
        let is_there = |model: &usize| {
            !self.config.models[*model].removed || self.workers.values().any(|worker| worker.model == *model)
        };
        let models = (0..self.models.len()).filter(is_there).map(|model| self.model_stats(model, now)).collect();
        let memory_used = self.workers.values().map(|worker| worker.bytes).sum();
        FleetStats { memory_budget: self.config.memory_bytes, memory_used, models }
    }
}
