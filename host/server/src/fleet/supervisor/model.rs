//! A model of the fleet: its load state, and the jobs and adapters that wait for it.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Effect, Happening, Note, Supervisor,
    crash_history::CrashHistory,
    worker_state::{PendingAdapter, WaitingJob, WorkerState},
};
use crate::fleet::{
    KeepAlive, ModelState, ModelStats,
    adapter_registry::Culprit,
    memory::{self, MemoryPlan, MemoryVerdict},
    needs::Need,
    plugins::Plugin,
    probe::Probed,
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::{Load, ModelSpec, Provider},
};

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) state: LoadState,
    pub(super) waiting: VecDeque<WaitingJob>,
    pub(super) pending_adapters: Vec<PendingAdapter>,
    pub(super) deaths: CrashHistory,
    pub(super) deaths_total: u64,
    loads_total: u64,
    pub(super) last_failure: Option<Failure>,
    /// SHA-256 of the plugin that last loaded it.
    pub(super) plugin: Option<String>,
    /// The load to start once memory is available.
    plan: Option<LoadPlan>,
    pub(super) keep: Option<KeepAlive>,
    /// It is never evicted, nor unloaded because it is idle.
    pub(super) pinned: bool,
    /// It is to be loaded although no request waits for it. Not tried again after a failure.
    pub(super) wanted: bool,
    /// Its settings have changed while it was probed.
    pub(super) is_outdated: bool,
    pub(super) need: Need,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum LoadState {
    /// Not loaded, with no requests waiting.
    #[default]
    Idle,
    /// A child process probes its checkpoint.
    Probing,
    /// Waits for memory held by other models.
    AwaitingMemory { since: Instant },
    /// This worker is loading it.
    Loading(u64),
    /// This worker serves requests.
    Ready(u64),
    /// Its worker died; it is reloaded at this time.
    Pausing { until: Instant },
    /// Its workers died too often.
    Quarantined { until: Instant, failure: Failure },
}

#[derive(Debug)]
struct LoadPlan {
    probed: Probed,
    need: MemoryPlan,
}

impl LoadState {
    /// True if this worker is the model's current one, not one that is draining.
    pub(super) fn is_served_by(&self, serial: u64) -> bool {
        *self == Self::Loading(serial) || *self == Self::Ready(serial)
    }
}

impl Model {
    /// Ends the quarantine or the pause because something has changed.
    pub(super) fn release(&mut self) {
        self.deaths.forget();
        self.plugin = None;
        if matches!(self.state, LoadState::Quarantined { .. } | LoadState::Pausing { .. }) {
            self.state = LoadState::Idle;
        }
    }

    pub(super) fn fail_waiting(&mut self, failure: &Failure, effects: &mut Vec<Effect>) {
        let jobs = self.waiting.drain(..);
        effects.extend(jobs.map(|waiting| Effect::Fail { job: waiting.job, failure: failure.clone() }));
        let adapters = self.pending_adapters.drain(..);
        effects.extend(adapters.map(|pending| pending.refuse(Culprit::Model, failure.clone())));
    }

    pub(super) fn deadline(&self, memory: Duration) -> Option<Instant> {
        match self.state {
            LoadState::Pausing { until } | LoadState::Quarantined { until, .. } => Some(until),
            LoadState::AwaitingMemory { since } => Some(since + memory),
            _ => None,
        }
    }

    fn fail(&mut self, failure: Failure, effects: &mut Vec<Effect>) {
        self.fail_waiting(&failure, effects);
        self.last_failure = Some(failure);
        (self.state, self.plan) = (LoadState::Idle, None);
    }

    /// Gives up a load that waits for memory; waiting requests begin it again.
    pub(super) fn forget_plan(&mut self) {
        (self.state, self.plan) = (LoadState::Idle, None);
    }

    fn probe(&mut self, model: usize, effects: &mut Vec<Effect>) {
        self.state = LoadState::Probing;
        effects.push(Effect::Probe { model });
    }
}

impl Supervisor {
    /// Takes the next step towards serving the requests that wait for a model.
    pub(super) fn advance_model(&mut self, index: usize, now: Instant) {
        let model = &mut self.models[index];
        match model.state {
            LoadState::Idle if model.wanted || !model.waiting.is_empty() || !model.pending_adapters.is_empty() => {
                model.wanted = false;
                model.probe(index, &mut self.effects);
            }
            LoadState::Pausing { until } if now >= until => model.probe(index, &mut self.effects),
            LoadState::Quarantined { until, .. } if now >= until => model.release(),
            LoadState::AwaitingMemory { since } => self.wait_for_memory(index, since, now),
            LoadState::Loading(serial) => {
                let Some(worker) = self.workers.get_mut(&serial) else { return };
                if worker.loaded.is_some() && worker.attaching.is_empty() {
                    model.state = LoadState::Ready(serial);
                    self.uses += 1;
                    (worker.used, worker.used_at) = (self.uses, now);
                    self.effects.extend(model.waiting.drain(..).map(|waiting| worker.submit(waiting)));
                    for pending in std::mem::take(&mut model.pending_adapters) {
                        self.start_attaching(serial, pending, now);
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_probed(&mut self, index: usize, result: Result<Probed, Failure>, now: Instant) {
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        if model.state != LoadState::Probing {
            return;
        }
        if std::mem::take(&mut model.is_outdated) {
            model.state = LoadState::Idle;
            return;
        }
        if result.as_ref().is_ok_and(|probed| !self.catalogue.has(&probed.plugin)) {
            return model.probe(index, &mut self.effects);
        }
        let planned = result.and_then(|probed| {
            let adapters = self.registry.has_some(index) || !model.pending_adapters.is_empty();
            let measured = probed.need.measured;
            let need = memory::plan(self.config.memory_bytes, config, adapters, &probed.card)?.claiming(measured);
            Ok(LoadPlan { probed, need })
        });
        match planned {
            Ok(plan) => {
                model.need = plan.probed.need.clone();
                (model.plan, model.state) = (Some(plan), LoadState::AwaitingMemory { since: now });
            }
            Err(mut failure) => {
                failure.message = format!("model '{}': {}", config.id, failure.message);
                model.fail(failure, &mut self.effects);
            }
        }
    }

    fn wait_for_memory(&mut self, index: usize, since: Instant, now: Instant) {
        let residents = self.residents();
        let model = &mut self.models[index];
        // Do not start a plugin that has been replaced meanwhile.
        let Some(plan) = model.plan.take().filter(|plan| self.catalogue.has(&plan.probed.plugin)) else {
            return model.probe(index, &mut self.effects);
        };
        match memory::admit(self.config.memory_bytes, &residents, plan.need.claim) {
            MemoryVerdict::Fits => return self.load(index, plan, now),
            MemoryVerdict::AfterEvicting(draining) => self.evict(&draining, now),
            MemoryVerdict::Later | MemoryVerdict::Never if now >= since + self.config.deadlines.memory => {
                let message =
                    format!("model '{}' finds no memory: other models are busy", self.config.models[index].id);
                let failure = Failure::new(FailureCode::Busy, message).with_help("try again later");
                return model.fail(failure, &mut self.effects);
            }
            MemoryVerdict::Later | MemoryVerdict::Never => {}
        }
        self.models[index].plan = Some(plan);
    }

    fn load(&mut self, index: usize, LoadPlan { probed, need }: LoadPlan, now: Instant) {
        let taken = self.residents().iter().fold(need.claim, |sum, resident| sum.saturating_add(resident.bytes));
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        let left = self.config.memory_bytes.saturating_sub(taken);
        let what = Happening::Loading { memory: need.tell(&probed.card, left) };
        self.effects.push(Effect::Note(Note { model: index, what }));
        if probed.card.chat_template.is_none() {
            self.effects.push(Effect::Note(Note { model: index, what: Happening::NoChatTemplate }));
        }
        let (samplers, formats) = (distinct(self.catalogue.samplers()), distinct(self.catalogue.adapter_formats()));
        let paths = |plugins: &[Arc<Plugin>]| plugins.iter().map(|plugin| plugin.copy.path().to_path_buf()).collect();
        let load = Load {
            architecture: Provider { plugin: probed.plugin.copy.path().into(), name: probed.architecture },
            samplers: paths(&samplers),
            adapter_formats: paths(&formats),
            merged: self.registry.merged(index),
            adapter_deadline: self.config.deadlines.load,
            source: config.source.clone(),
            spec: ModelSpec { kv_budget: Some(need.state_bytes), options: probed.options, ..config.spec.clone() },
        };
        self.next_serial += 1;
        let serial = self.next_serial;
        let plugin = probed.plugin.manifest.id.clone();
        model.plugin = Some(probed.plugin.copy.sha256().to_owned());
        model.state = LoadState::Loading(serial);
        let plugins = [probed.plugin].into_iter().chain(samplers).chain(formats).collect();
        let jobs_max = 2 * (config.spec.limits.waiting_max as usize + config.spec.limits.sequences_max as usize);
        let mut worker = WorkerState::new(serial, index, plugins, jobs_max, now);
        (worker.bytes, worker.adapter_bytes, worker.used) = (need.claim, need.adapter_bytes, self.uses);
        worker.planned = need.bytes.saturating_sub(need.adapter_bytes);
        self.workers.insert(serial, worker);
        self.effects.push(Effect::Start { serial, model: index, load: Box::new(load), bytes: need.bytes, plugin });
    }

    /// Paths of the adapters that a model has or is about to get.
    pub(in crate::fleet) fn adapter_paths(&self, index: usize) -> Vec<PathBuf> {
        let known = self.registry.of(index).into_values().map(|adapter| adapter.location.path);
        let pending = self.models[index].pending_adapters.iter().map(|pending| pending.adapter.location.path.clone());
        known.chain(pending).collect()
    }

    pub(super) fn on_started(&mut self, serial: u64, pid: Option<u32>) {
        if let Some(worker) = self.workers.get_mut(&serial) {
            worker.pid = pid;
            self.models[worker.model].loads_total += 1;
        }
    }

    pub(super) fn on_not_started(&mut self, serial: u64, error: &str) {
        let Some(worker) = self.workers.remove(&serial) else { return };
        let message =
            format!("model '{}': a worker process does not start: {error}", self.config.models[worker.model].id);
        let failure = Failure::new(FailureCode::Internal, message).with_help("free processes or memory");
        self.models[worker.model].fail(failure, &mut self.effects);
    }

    pub(super) fn model_stats(&self, index: usize, now: Instant) -> ModelStats {
        let model = &self.models[index];
        let worker = match model.state {
            LoadState::Loading(serial) | LoadState::Ready(serial) => self.workers.get(&serial),
            _ => None,
        };
        let workers = || self.workers.values().filter(|worker| worker.model == index);
        ModelStats {
            id: self.config.models[index].id.clone(),
            state: match model.state {
                LoadState::Idle => ModelState::Idle,
                LoadState::Probing | LoadState::AwaitingMemory { .. } | LoadState::Loading(_) => ModelState::Loading,
                LoadState::Ready(_) => ModelState::Ready,
                LoadState::Pausing { .. } => ModelState::Pausing,
                LoadState::Quarantined { .. } => ModelState::Quarantined,
            },
            reason: match &model.state {
                LoadState::Quarantined { failure, .. } => Some(failure.to_string()),
                _ => model.last_failure.as_ref().map(ToString::to_string),
            },
            streams: workers().map(|worker| worker.jobs.len() as u64).sum(),
            waiting: model.waiting.len() as u64,
            workers: workers().count() as u64,
            pid: worker.and_then(|worker| worker.pid),
            bytes: workers().map(|worker| worker.bytes).sum(),
            measured_bytes: worker.map(|worker| worker.peak).filter(|peak| *peak > 0).max(model.need.measured),
            pinned: model.pinned,
            expires_in_s: worker.filter(|worker| worker.loaded.is_some()).and_then(|worker| {
                let unused =
                    if worker.is_idle() { now.saturating_duration_since(worker.used_at) } else { Duration::ZERO };
                Some(self.idle_limit(index)?.saturating_sub(unused).as_secs())
            }),
            loads: model.loads_total,
            deaths: model.deaths_total,
            progress: worker.filter(|worker| worker.loaded.is_none()).and_then(|worker| worker.progress.clone()),
            loaded: worker.and_then(|worker| worker.loaded.clone()),
            worker: worker.and_then(|worker| worker.stats.clone()),
            adapters: self.adapter_states(index, worker),
        }
    }
}

/// Deduplicates the providers' plugins.
fn distinct(providers: Vec<(String, Arc<Plugin>)>) -> Vec<Arc<Plugin>> {
    let mut plugins: Vec<Arc<Plugin>> = Vec::new();
    for (_, plugin) in providers {
        if !plugins.iter().any(|known| Arc::ptr_eq(known, &plugin)) {
            plugins.push(plugin);
        }
    }
    plugins
}
