//! The supervisor: the one task that owns the fleet's models and workers, and handles the messages that change them.
//!
//! Every change arrives here as a [`Message`], one at a time, so that there is nothing to lock and no two parts disagree on
//! the order of events. Work that takes time (probing, loading, ending) runs in other tasks, which report back.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{
        mpsc::{Receiver, Sender, UnboundedReceiver, WeakUnboundedSender},
        oneshot, watch,
    },
    time::sleep_until,
};

use super::{
    Adapter, Config, FleetStats,
    adapter_registry::AdapterRegistry,
    adapters::{AdapterFailure, PendingAdapter},
    crash_history::RestartDecision,
    model::{LoadState, Model, Waiting},
    plugins::Catalogue,
    probe::{Probed, Prober},
    stats::Progress,
    stream::Update,
    streams::UpdateSender,
    worker::WorkerSignal,
    worker_handle::{PluginFreshness, WorkerHandle},
};
use pensieve_protocol::{
    job::{Failure, FailureCode, Job},
    share,
    wire::{AttachedAdapter, Command, Limits, Report},
};

/// How long workers have to answer for the statistics.
const STATS_WAIT: Duration = Duration::from_millis(500);
/// How long a killed worker may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// A message to the supervisor.
#[derive(Debug)]
pub(super) enum Message {
    Submit {
        model: usize,
        job: Job,
        updates: UpdateSender,
    },
    Cancel {
        job: u64,
    },
    Probed {
        model: usize,
        result: Result<Probed, Failure>,
    },
    Stats {
        fresh: bool,
        reply: oneshot::Sender<FleetStats>,
    },
    Release {
        model: usize,
    },
    Attach {
        model: usize,
        name: String,
        adapter: Adapter,
        reply: oneshot::Sender<Result<AttachedAdapter, AdapterFailure>>,
    },
    Detach {
        model: usize,
        name: String,
        reply: oneshot::Sender<Result<(), AdapterFailure>>,
    },
    Shutdown {
        drain: Duration,
        reply: oneshot::Sender<()>,
    },
}

/// The fleet's state.
pub(super) struct Supervisor {
    pub(super) config: Arc<Config>,
    pub(super) prober: Prober,
    pub(super) catalogue: watch::Receiver<Arc<Catalogue>>,
    pub(super) registry: Arc<AdapterRegistry>,
    /// Weak, so that the supervisor ends when the last sender is dropped.
    pub(super) messages: WeakUnboundedSender<Message>,
    /// Where workers report to, under their serial numbers. Bounded: a worker that reports faster than this is handled waits.
    pub(super) signals: Sender<(u64, WorkerSignal)>,
    pub(super) models: Vec<Model>,
    pub(super) handles: HashMap<u64, WorkerHandle>,
    pub(super) next_serial: u64,
    pub(super) uses: u64,
    pub(super) stats_request: Option<StatsRequest>,
    pub(super) closing: Option<ShutdownState>,
}

/// Statistics that are being gathered.
pub(super) struct StatsRequest {
    replies: Vec<oneshot::Sender<FleetStats>>,
    missing: HashSet<u64>,
    until: Instant,
}

/// The end.
pub(super) struct ShutdownState {
    until: Instant,
    killed: bool,
    reply: Option<oneshot::Sender<()>>,
}

impl Supervisor {
    /// Handles messages until the last sender is dropped.
    pub(super) async fn run(
        mut self,
        mut messages: UnboundedReceiver<Message>,
        mut signals: Receiver<(u64, WorkerSignal)>,
    ) {
        loop {
            self.advance(Instant::now());
            if self.is_over() {
                return;
            }
            let wake = self.next_deadline();
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.handle(message, Instant::now()),
                    None => return,
                },
                Some((serial, signal)) = signals.recv() => self.on_signal(serial, signal, Instant::now()),
                Ok(()) = self.catalogue.changed() => self.on_plugins_changed(Instant::now()),
                () = sleep_until(wake.into()) => {}
            }
        }
    }

    fn handle(&mut self, message: Message, now: Instant) {
        match message {
            Message::Submit { model, job, updates } => self.submit(model, job, updates, now),
            Message::Cancel { job } => self.cancel(job),
            Message::Probed { model, result } => self.on_probed(model, result, now),
            Message::Stats { fresh, reply } => self.request_stats(fresh, reply, now),
            Message::Release { model } => self.models[model].release(),
            Message::Attach { model, name, adapter, reply } => {
                self.attach(model, PendingAdapter { name, adapter, reply }, now);
            }
            Message::Detach { model, name, reply } => drop(reply.send(self.detach(model, &name))),
            Message::Shutdown { drain, reply } => self.begin_shutdown(drain, reply, now),
        }
    }

    fn on_signal(&mut self, serial: u64, signal: WorkerSignal, now: Instant) {
        match signal {
            WorkerSignal::Report(report) => self.on_report(serial, report, now),
            WorkerSignal::JobsEnded => {
                if let Some(handle) = self.handles.get_mut(&serial) {
                    self.uses += 1;
                    (handle.used, handle.used_at, handle.progressed_at) = (self.uses, now, now);
                }
            }
            WorkerSignal::Exited(failure) => self.remove_dead(serial, &failure, now),
        }
    }

    fn submit(&mut self, model: usize, job: Job, updates: UpdateSender, now: Instant) {
        // Who gets a place once the model is there does not wait for others.
        let Limits { waiting_max, sequences_max, .. } = self.config.models[model].limits;
        let waiting_max = (waiting_max as usize).saturating_add(sequences_max as usize);
        let waiting = &self.models[model].waiting;
        let own = waiting.iter().filter(|waiting| waiting.job.client == job.client).count();
        let free = waiting_max.saturating_sub(waiting.len());
        let refusal = if self.closing.is_some() {
            Some(Failure::new(FailureCode::Draining, "the server is about to end"))
        } else if let LoadState::Quarantined { until, failure } = &self.models[model].state {
            Some(Failure { retry_after: Some(until.saturating_duration_since(now)), ..failure.clone() })
        } else if !share::may_take(job.client, own, free, 1) {
            let (id, waiting) = (&self.config.models[model].id, waiting.len());
            let message = format!("{waiting} requests wait for model '{id}' already, {own} of them this client's");
            Some(Failure::new(FailureCode::Busy, message).with_help("try again later"))
        } else {
            None
        };
        if let Some(failure) = refusal {
            return updates.fail(failure);
        }
        if let LoadState::Ready(serial) = self.models[model].state
            && let Some(handle) = self.handles.get_mut(&serial)
        {
            self.uses += 1;
            (handle.used, handle.used_at) = (self.uses, now);
            return handle.submit(job, updates);
        }
        self.models[model].waiting.push_back(Waiting { job, updates });
    }

    fn cancel(&mut self, job: u64) {
        for model in &mut self.models {
            model.waiting.retain(|waiting| waiting.job.id != job);
        }
        // The stream is forgotten when the worker says that it has ended: until then it is not idle.
        if let Some(handle) = self.handles.values().find(|handle| handle.streams.contains(job)) {
            handle.worker.send(Command::Cancel { id: job });
        }
    }

    fn on_report(&mut self, serial: u64, report: Report, now: Instant) {
        let Some(handle) = self.handles.get_mut(&serial) else { return };
        let model = &mut self.models[handle.model];
        let name = &self.config.models[handle.model].id;
        match report {
            Report::Progress { done, total, what } => {
                (handle.progressed_at, handle.progress) = (now, Some(Progress { done, total, what: what.clone() }));
                model.notify_waiting(&Update::Loading { done, total, what });
            }
            Report::Loaded(loaded) => {
                tracing::info!(
                    model = name,
                    device = loaded.device,
                    state_bytes = loaded.state_bytes,
                    "loaded: {}",
                    loaded.note
                );
                (handle.loaded, handle.progressed_at) = (Some(*loaded), now);
                for (name, adapter) in self.registry.of(handle.model).into_iter().filter(|(_, it)| it.merged.is_none())
                {
                    handle.attach(name, adapter.location, None, now);
                }
            }
            Report::LoadFailed(failure) => {
                // A restart would fail in the same way: waiting requests fail with the reason, and the next request tries again.
                handle.draining = true;
                if model.state == LoadState::Loading(serial) {
                    model.state = LoadState::Idle;
                    model.fail_waiting(&failure);
                }
                model.last_failure = Some(failure);
            }
            Report::Attached { attempt, result } => self.on_attached(serial, attempt, result),
            Report::Stats(stats) => {
                handle.stats = Some(*stats);
                if let Some(stats_request) = &mut self.stats_request {
                    stats_request.missing.remove(&serial);
                }
            }
            // The task that reads the worker's socket has dealt with these.
            Report::Events(_)
            | Report::Log { .. }
            | Report::Hello { .. }
            | Report::Detached { .. }
            | Report::Heartbeat { .. }
            | Report::Drained
            | Report::Dying(_) => {}
        }
    }

    /// A worker has exited: its streams fail, and its model is loaded again unless the exit was requested.
    fn remove_dead(&mut self, serial: u64, failure: &Failure, now: Instant) {
        let Some(mut handle) = self.handles.remove(&serial) else { return };
        handle.fail(failure);
        if let Some(stats_request) = &mut self.stats_request {
            stats_request.missing.remove(&serial);
        }
        let (config, model) = (&self.config.models[handle.model], &mut self.models[handle.model]);
        if model.state != LoadState::Loading(serial) && model.state != LoadState::Ready(serial) {
            return;
        }
        tracing::error!(model = config.id, "{failure}");
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
                model.fail_waiting(&Failure { retry_after: Some(length), ..failure.clone() });
                LoadState::Quarantined { until: now + length, failure }
            }
        };
    }

    /// New loads use the plugins of now; workers that run on others finish what they have.
    fn on_plugins_changed(&mut self, now: Instant) {
        let catalogue = self.catalogue.borrow_and_update().clone();
        for (serial, handle) in &mut self.handles {
            let model = &mut self.models[handle.model];
            let current = model.state == LoadState::Ready(*serial) || model.state == LoadState::Loading(*serial);
            if current && handle.freshness(&catalogue) == PluginFreshness::Outdated {
                model.pending_adapters.extend(handle.drain(now));
                if handle.loaded.is_none() {
                    handle.worker.end(Failure::new(FailureCode::Draining, "was loading a plugin that is gone"));
                }
                model.state = LoadState::Idle;
                model.deaths.forget();
            }
        }
        for model in &mut self.models {
            let there = |sha256: &String| catalogue.plugins().iter().any(|plugin| plugin.copy.sha256() == sha256);
            if model.plugin.as_ref().is_some_and(|sha256| !there(sha256)) {
                model.release();
            }
        }
    }

    fn request_stats(&mut self, fresh: bool, reply: oneshot::Sender<FleetStats>, now: Instant) {
        if !fresh {
            let _ = reply.send(self.stats());
            return;
        }
        let stats_request = self.stats_request.get_or_insert_with(|| {
            let ready = self.handles.iter().filter(|(_, handle)| handle.loaded.is_some());
            let missing = ready.map(|(serial, handle)| {
                handle.worker.send(Command::Stats);
                *serial
            });
            StatsRequest { replies: Vec::new(), missing: missing.collect(), until: now + STATS_WAIT }
        });
        stats_request.replies.push(reply);
    }

    fn begin_shutdown(&mut self, drain: Duration, reply: oneshot::Sender<()>, now: Instant) {
        let failure = Failure::new(FailureCode::Draining, "the server is about to end");
        for handle in self.handles.values_mut() {
            self.models[handle.model].pending_adapters.extend(handle.drain(now));
        }
        for model in &mut self.models {
            model.fail_waiting(&failure);
            model.state = LoadState::Idle;
        }
        self.closing = Some(ShutdownState { until: now + drain, killed: false, reply: Some(reply) });
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether a shutdown was requested and is complete.
    fn is_over(&mut self) -> bool {
        let Some(closing) = &mut self.closing else { return false };
        let now = Instant::now();
        if now >= closing.until && !closing.killed {
            (closing.killed, closing.until) = (true, now + KILL_WAIT);
            for handle in self.handles.values_mut() {
                let failure = Failure::new(FailureCode::Draining, "had not finished when the server ended");
                handle.worker.end(failure.with_help("send the request again once it runs again"));
            }
        }
        let over = self.handles.is_empty() || (closing.killed && now >= closing.until);
        if over && let Some(reply) = closing.reply.take() {
            let _ = reply.send(());
        }
        over
    }

    /// Answers requests for statistics, kills workers past their deadlines, and advances every model.
    fn advance(&mut self, now: Instant) {
        if let Some(stats_request) =
            self.stats_request.take_if(|stats_request| stats_request.missing.is_empty() || now >= stats_request.until)
        {
            stats_request.replies.into_iter().for_each(|reply| drop(reply.send(self.stats())));
        }
        let deadlines = self.config.deadlines;
        for handle in self.handles.values_mut() {
            let late = handle.deadline(deadlines.load, deadlines.drain).is_some_and(|deadline| now >= deadline);
            if late && !handle.draining && handle.loaded.is_some() {
                handle.fail_hung_attachments(deadlines.load, now);
            } else if late {
                let what = if handle.draining {
                    "did not end when it was stats_request to"
                } else {
                    "made no progress with its load"
                };
                handle.worker.end(Failure::new(FailureCode::Stalled, what));
                handle.progressed_at = now;
            }
        }
        if self.closing.is_none() {
            self.release_adapter_memory();
            self.drain_idle(now);
            (0..self.models.len()).for_each(|model| self.advance_model(model, now));
        }
    }

    /// Drains workers that were idle for too long, and idle workers whose plugins are behind the catalogue.
    fn drain_idle(&mut self, now: Instant) {
        let catalogue = self.catalogue.borrow().clone();
        for (serial, handle) in &mut self.handles {
            let model = &mut self.models[handle.model];
            let ready = model.state == LoadState::Ready(*serial) && handle.is_idle();
            let unused = self.config.idle_timeout.is_some_and(|limit| now >= handle.used_at + limit);
            if ready && (unused || handle.freshness(&catalogue) != PluginFreshness::Current) {
                model.pending_adapters.extend(handle.drain(now));
                model.state = LoadState::Idle;
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let (now, deadlines) = (Instant::now(), self.config.deadlines);
        let handles = self.handles.values().flat_map(|handle| {
            let idle = self
                .config
                .idle_timeout
                .filter(|_| handle.is_idle() && !handle.draining)
                .map(|limit| handle.used_at + limit);
            [handle.deadline(deadlines.load, deadlines.drain), idle]
        });
        let models = self.models.iter().map(|model| model.deadline(deadlines.memory));
        let rest = [
            self.stats_request.as_ref().map(|stats_request| stats_request.until),
            self.closing.as_ref().map(|closing| closing.until),
        ];
        let next = handles.chain(models).chain(rest).flatten().min();
        let far = now + Duration::from_secs(3600);
        next.unwrap_or(far).min(far).max(now + Duration::from_millis(1))
    }
}
