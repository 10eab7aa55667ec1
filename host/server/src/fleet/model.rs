//! A model of the fleet: its load state, and the requests that wait for it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    FleetStats, ModelState, ModelStats,
    adapters::{Culprit, PendingAdapter},
    crash_history::CrashHistory,
    fence,
    memory::{self, MemoryPlan, MemoryVerdict, Resident},
    plugins::Plugin,
    probe::Probed,
    stream::Update,
    streams::{JobStreams, UpdateSender},
    supervisor::{Message, Supervisor},
    worker::{Signals, Worker, WorkerDeadlines},
    worker_handle::WorkerHandle,
};
use crate::hub::Hub;
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Job},
    wire::{Command, Load, Provider},
};

/// One model.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) state: LoadState,
    pub(super) waiting: VecDeque<Waiting>,
    /// Adapters that wait for the model.
    pub(super) pending_adapters: Vec<PendingAdapter>,
    pub(super) deaths: CrashHistory,
    pub(super) deaths_total: u64,
    pub(super) loads_total: u64,
    pub(super) last_failure: Option<Failure>,
    /// The SHA-256 of the plugin that it was last loaded by.
    pub(super) plugin: Option<String>,
    /// What waits for memory.
    plan: Option<LoadPlan>,
}

/// A request that waits for its model.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) job: Job,
    pub(super) updates: UpdateSender,
}

/// How far a model is from answering.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum LoadState {
    /// Not loaded, and no request waits for it.
    #[default]
    Idle,
    /// A child finds out what it is.
    Probing,
    /// It waits for others to leave memory.
    AwaitingMemory { since: Instant },
    /// This worker is loading it.
    Loading(u64),
    /// This worker answers.
    Ready(u64),
    /// Its worker died; it is loaded again then.
    Pausing { until: Instant },
    /// Its workers died too often.
    Quarantined { until: Instant, failure: Failure },
}

#[derive(Debug)]
struct LoadPlan {
    probed: Probed,
    need: MemoryPlan,
}

impl Model {
    /// Ends the quarantine, or the pause: something has changed.
    pub(super) fn release(&mut self) {
        self.deaths.forget();
        self.plugin = None;
        if matches!(self.state, LoadState::Quarantined { .. } | LoadState::Pausing { .. }) {
            self.state = LoadState::Idle;
        }
    }

    pub(super) fn notify_waiting(&self, update: &Update) {
        for waiting in &self.waiting {
            waiting.updates.send(update.clone());
        }
    }

    pub(super) fn fail_waiting(&mut self, failure: &Failure) {
        self.notify_waiting(&Update::Event(Event::Failed(failure.clone())));
        self.waiting.clear();
        self.pending_adapters.drain(..).for_each(|pending| pending.refuse(Culprit::Model, failure.clone()));
    }

    pub(super) fn deadline(&self, memory: Duration) -> Option<Instant> {
        match self.state {
            LoadState::Pausing { until } | LoadState::Quarantined { until, .. } => Some(until),
            LoadState::AwaitingMemory { since } => Some(since + memory),
            _ => None,
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.fail_waiting(&failure);
        self.last_failure = Some(failure);
        (self.state, self.plan) = (LoadState::Idle, None);
    }
}

impl Supervisor {
    /// Takes the next step towards serving the requests that wait for a model.
    pub(super) fn advance_model(&mut self, index: usize, now: Instant) {
        let model = &mut self.models[index];
        match model.state {
            LoadState::Idle if !model.waiting.is_empty() || !model.pending_adapters.is_empty() => self.probe(index),
            LoadState::Pausing { until } if now >= until => self.probe(index),
            LoadState::Quarantined { until, .. } if now >= until => model.release(),
            LoadState::AwaitingMemory { since } => self.wait_for_memory(index, since, now),
            LoadState::Loading(serial) => {
                let Some(handle) = self.handles.get_mut(&serial) else { return };
                if handle.loaded.is_some() && handle.attaching.is_empty() {
                    model.state = LoadState::Ready(serial);
                    self.uses += 1;
                    (handle.used, handle.used_at) = (self.uses, now);
                    for Waiting { job, updates } in model.waiting.drain(..) {
                        handle.submit(job, updates);
                    }
                    for pending in std::mem::take(&mut model.pending_adapters) {
                        self.start_attaching(serial, pending, now);
                    }
                }
            }
            _ => {}
        }
    }

    fn probe(&mut self, index: usize) {
        let Some(messages) = self.messages.upgrade() else { return };
        self.models[index].state = LoadState::Probing;
        let (prober, catalogue, config) = (self.prober.clone(), self.catalogue.borrow().clone(), self.config.clone());
        tokio::spawn(async move {
            let model = &config.models[index];
            let result = prober.probe(&model.source, &model.options, &catalogue).await;
            // After shutdown no supervisor receives it.
            let _ = messages.send(Message::Probed { model: index, result });
        });
    }

    pub(super) fn on_probed(&mut self, index: usize, result: Result<Probed, Failure>, now: Instant) {
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        if model.state != LoadState::Probing {
            return;
        }
        let planned = result.and_then(|probed| {
            let adapters = self.registry.has_some(index) || !model.pending_adapters.is_empty();
            let need = memory::plan(self.config.memory_bytes, config, adapters, &probed.card)?;
            Ok(LoadPlan { probed, need })
        });
        match planned {
            Ok(plan) => (model.plan, model.state) = (Some(plan), LoadState::AwaitingMemory { since: now }),
            Err(mut failure) => {
                failure.message = format!("model '{}': {}", config.id, failure.message);
                model.fail(failure);
            }
        }
    }

    fn wait_for_memory(&mut self, index: usize, since: Instant, now: Instant) {
        let model = &mut self.models[index];
        let Some(need) = model.plan.as_ref().map(|plan| plan.need) else {
            model.state = LoadState::Idle;
            return;
        };
        let residents: Vec<Resident> = self.handles.iter().map(|(serial, handle)| handle.resident(*serial)).collect();
        match memory::admit(self.config.memory_bytes, &residents, need.bytes) {
            MemoryVerdict::Fits => self.load(index, now),
            MemoryVerdict::AfterEvicting(draining) => {
                for serial in draining {
                    if let Some(handle) = self.handles.get_mut(&serial) {
                        let evicted = &mut self.models[handle.model];
                        evicted.pending_adapters.extend(handle.drain(now));
                        if evicted.state == LoadState::Ready(serial) {
                            evicted.state = LoadState::Idle;
                        }
                    }
                }
            }
            MemoryVerdict::Later | MemoryVerdict::Never if now >= since + self.config.deadlines.memory => {
                let id = &self.config.models[index].id;
                let message = format!("model '{id}' finds no memory: other models are busy");
                model.fail(Failure::new(FailureCode::Busy, message).with_help("try again later"));
            }
            MemoryVerdict::Later | MemoryVerdict::Never => {}
        }
    }

    fn load(&mut self, index: usize, now: Instant) {
        let adapters = self.adapter_places(index);
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        let Some(LoadPlan { probed, need }) = model.plan.take() else { return };
        let catalogue = self.catalogue.borrow().clone();
        let (samplers, formats) = (distinct(catalogue.samplers()), distinct(catalogue.adapter_formats()));
        let paths = |plugins: &[Arc<Plugin>]| plugins.iter().map(|plugin| plugin.copy.path().to_path_buf()).collect();
        let load = Load {
            architecture: Provider { plugin: probed.plugin.copy.path().into(), name: probed.architecture },
            samplers: paths(&samplers),
            adapter_formats: paths(&formats),
            merged: self.registry.merged(index),
            adapter_memory: config.adapter_memory,
            adapter_deadline: self.config.deadlines.load,
            source: config.source.clone(),
            options: config.options.clone(),
            device: if config.device.is_empty() { "auto".into() } else { config.device.clone() },
            context: config.context,
            kv_budget: need.state_bytes,
            threads: config.threads,
            disk: config.disk.clone(),
            limits: config.limits.clone(),
        };
        self.next_serial += 1;
        let serial = self.next_serial;
        let signals = Signals { serial, sender: self.signals.clone() };
        let streams = JobStreams::default();
        let deadlines = WorkerDeadlines { silence: self.config.deadlines.silence, step: config.limits.step_timeout };
        let open = self.config.unfenced.contains(&probed.plugin.manifest.id);
        let policy = fence::worker(&load, need.bytes, adapters, open);
        let worker =
            match Worker::start(self.config.placement(&policy), &config.id, deadlines, streams.clone(), signals) {
                Ok(worker) => worker,
                Err(error) => {
                    let message = format!("model '{}': a worker process does not start: {error}", config.id);
                    return model
                        .fail(Failure::new(FailureCode::Internal, message).with_help("free processes or memory"));
                }
            };
        worker.send(Command::Load(Box::new(load)));
        model.plugin = Some(probed.plugin.copy.sha256().to_owned());
        (model.state, model.loads_total) = (LoadState::Loading(serial), model.loads_total + 1);
        let plugins = [probed.plugin].into_iter().chain(samplers).chain(formats).collect();
        let handle = WorkerHandle {
            worker,
            model: index,
            plugins,
            bytes: need.bytes,
            adapter_bytes: need.adapter_bytes,
            streams,
            jobs_max: 2 * (config.limits.waiting_max as usize + config.limits.sequences_max as usize),
            attaching: BTreeMap::new(),
            attempts: 0,
            refused: HashMap::new(),
            progress: None,
            loaded: None,
            stats: None,
            draining: false,
            used: self.uses,
            used_at: now,
            progressed_at: now,
        };
        self.handles.insert(serial, handle);
    }

    /// Where the worker of a model may read adapters: those that the model has, and the sources of later ones.
    fn adapter_places(&self, index: usize) -> Vec<PathBuf> {
        let known = self.registry.of(index).into_values().map(|adapter| adapter.location.path);
        let pending = self.models[index].pending_adapters.iter().map(|pending| pending.adapter.location.path.clone());
        let known = known.chain(pending).flat_map(|path| fence::checkpoint(&path));
        let sources = &self.config.sources;
        let downloads = Hub::from_environment().ok().filter(|_| sources.downloads).map(|hub| hub.cache);
        let later = sources.folders.iter().cloned().chain(downloads).map(|folder| fence::absolute(&folder));
        known.chain(later).collect()
    }

    /// What is known of all models.
    pub(super) fn stats(&self) -> FleetStats {
        let models = self.config.models.iter().zip(&self.models).enumerate().map(|(index, (config, model))| {
            let handle = match model.state {
                LoadState::Loading(serial) | LoadState::Ready(serial) => self.handles.get(&serial),
                _ => None,
            };
            let handles = self.handles.values().filter(|handle| handle.model == index);
            ModelStats {
                id: config.id.clone(),
                state: match model.state {
                    LoadState::Idle => ModelState::Idle,
                    LoadState::Probing | LoadState::AwaitingMemory { .. } | LoadState::Loading(_) => {
                        ModelState::Loading
                    }
                    LoadState::Ready(_) => ModelState::Ready,
                    LoadState::Pausing { .. } => ModelState::Pausing,
                    LoadState::Quarantined { .. } => ModelState::Quarantined,
                },
                reason: match &model.state {
                    LoadState::Quarantined { failure, .. } => Some(failure.to_string()),
                    _ => model.last_failure.as_ref().map(ToString::to_string),
                },
                streams: handles.clone().map(|handle| handle.streams.len() as u64).sum(),
                waiting: model.waiting.len() as u64,
                workers: handles.clone().count() as u64,
                pid: handle.and_then(|handle| handle.worker.pid),
                bytes: handles.map(|handle| handle.bytes).sum(),
                loads: model.loads_total,
                deaths: model.deaths_total,
                progress: handle.filter(|handle| handle.loaded.is_none()).and_then(|handle| handle.progress.clone()),
                loaded: handle.and_then(|handle| handle.loaded.clone()),
                worker: handle.and_then(|handle| handle.stats.clone()),
                adapters: self.adapter_states(index, handle),
            }
        });
        let memory_used = self.handles.values().map(|handle| handle.bytes).sum();
        FleetStats { memory_budget: self.config.memory_bytes, memory_used, models: models.collect() }
    }
}

/// The plugins of providers, each once.
fn distinct(providers: Vec<(String, Arc<Plugin>)>) -> Vec<Arc<Plugin>> {
    let mut plugins: Vec<Arc<Plugin>> = Vec::new();
    for (_, plugin) in providers {
        if !plugins.iter().any(|known| Arc::ptr_eq(known, &plugin)) {
            plugins.push(plugin);
        }
    }
    plugins
}
