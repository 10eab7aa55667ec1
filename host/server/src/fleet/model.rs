//! A model of the fleet: how far it is from answering, and who waits for that.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    FleetStats, ModelState, ModelStats,
    adapters::{Culprit, Newcomer},
    crew::{Crew, Order},
    deaths::Deaths,
    hand::Hand,
    memory::{self, Need, Resident, Room},
    plugins::Plugin,
    probe::Probed,
    stream::Update,
    worker::{Patience, Worker},
};
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Job},
    wire::{Command, Load, Provider},
};

/// One model.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) stage: Stage,
    pub(super) waiting: VecDeque<Waiting>,
    /// Adapters that wait for the model.
    pub(super) newcomers: Vec<Newcomer>,
    pub(super) deaths: Deaths,
    pub(super) deaths_total: u64,
    pub(super) loads_total: u64,
    pub(super) last_failure: Option<Failure>,
    /// The SHA-256 of the plugin that it was last loaded by.
    pub(super) plugin: Option<String>,
    /// What waits for memory.
    plan: Option<Plan>,
}

/// A request that waits for its model.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) job: Job,
    pub(super) updates: UnboundedSender<Update>,
}

/// How far a model is from answering.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Stage {
    /// Nobody needs it.
    #[default]
    Idle,
    /// A child finds out what it is.
    Probing,
    /// It waits for others to leave memory.
    Squeezing { since: Instant },
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
struct Plan {
    probed: Probed,
    need: Need,
}

impl Model {
    /// Ends the quarantine, or the pause: something has changed.
    pub(super) fn release(&mut self) {
        self.deaths.forget();
        self.plugin = None;
        if matches!(self.stage, Stage::Quarantined { .. } | Stage::Pausing { .. }) {
            self.stage = Stage::Idle;
        }
    }

    pub(super) fn tell_waiting(&self, update: &Update) {
        for waiting in &self.waiting {
            let _ = waiting.updates.send(update.clone());
        }
    }

    pub(super) fn fail_waiting(&mut self, failure: &Failure) {
        self.tell_waiting(&Update::Event(Event::Failed(failure.clone())));
        self.waiting.clear();
        self.newcomers.drain(..).for_each(|newcomer| newcomer.refuse(Culprit::Model, failure.clone()));
    }

    pub(super) fn deadline(&self, memory: Duration) -> Option<Instant> {
        match self.stage {
            Stage::Pausing { until } | Stage::Quarantined { until, .. } => Some(until),
            Stage::Squeezing { since } => Some(since + memory),
            _ => None,
        }
    }

    fn give_up(&mut self, failure: Failure) {
        self.fail_waiting(&failure);
        self.last_failure = Some(failure);
        (self.stage, self.plan) = (Stage::Idle, None);
    }
}

impl Crew {
    /// Does whatever brings a model nearer to answering whoever waits for it.
    pub(super) fn advance_model(&mut self, index: usize, now: Instant) {
        let model = &mut self.models[index];
        match model.stage {
            Stage::Idle if !model.waiting.is_empty() || !model.newcomers.is_empty() => self.probe(index),
            Stage::Pausing { until } if now >= until => self.probe(index),
            Stage::Quarantined { until, .. } if now >= until => model.release(),
            Stage::Squeezing { since } => self.make_room(index, since, now),
            Stage::Loading(serial) => {
                let Some(hand) = self.hands.get_mut(&serial) else { return };
                if hand.loaded.is_some() && hand.attaching.is_empty() {
                    model.stage = Stage::Ready(serial);
                    self.uses += 1;
                    (hand.used, hand.used_at) = (self.uses, now);
                    for Waiting { job, updates } in model.waiting.drain(..) {
                        hand.submit(job, updates);
                    }
                    for newcomer in std::mem::take(&mut model.newcomers) {
                        self.bring(serial, newcomer, now);
                    }
                }
            }
            _ => {}
        }
    }

    fn probe(&mut self, index: usize) {
        let Some(orders) = self.orders.upgrade() else { return };
        self.models[index].stage = Stage::Probing;
        let (prober, catalogue, config) = (self.prober.clone(), self.catalogue.borrow().clone(), self.config.clone());
        tokio::spawn(async move {
            let model = &config.models[index];
            let result = prober.probe(&model.source, &model.options, &catalogue).await;
            // The fleet may have ended meanwhile.
            let _ = orders.send(Order::Probed { model: index, result });
        });
    }

    pub(super) fn probed(&mut self, index: usize, result: Result<Probed, Failure>, now: Instant) {
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        if model.stage != Stage::Probing {
            return;
        }
        let planned = result.and_then(|probed| {
            let adapters = self.shelf.has_some(index) || !model.newcomers.is_empty();
            let need = memory::plan(self.config.memory_bytes, config, adapters, &probed.card)?;
            Ok(Plan { probed, need })
        });
        match planned {
            Ok(plan) => (model.plan, model.stage) = (Some(plan), Stage::Squeezing { since: now }),
            Err(mut failure) => {
                failure.message = format!("model '{}': {}", config.id, failure.message);
                model.give_up(failure);
            }
        }
    }

    fn make_room(&mut self, index: usize, since: Instant, now: Instant) {
        let model = &mut self.models[index];
        let Some(need) = model.plan.as_ref().map(|plan| plan.need) else {
            model.stage = Stage::Idle;
            return;
        };
        let residents: Vec<Resident> = self.hands.iter().map(|(serial, hand)| hand.resident(*serial)).collect();
        match memory::room(self.config.memory_bytes, &residents, need.bytes) {
            Room::Yes => self.load(index, now),
            Room::After(going) => {
                for serial in going {
                    if let Some(hand) = self.hands.get_mut(&serial) {
                        let evicted = &mut self.models[hand.model];
                        evicted.newcomers.extend(hand.dismiss(now));
                        if evicted.stage == Stage::Ready(serial) {
                            evicted.stage = Stage::Idle;
                        }
                    }
                }
            }
            Room::Later | Room::Never if now >= since + self.config.deadlines.memory => {
                let id = &self.config.models[index].id;
                let message = format!("model '{id}' finds no memory: other models are busy");
                model.give_up(Failure::new(FailureCode::Busy, message).with_help("try again later"));
            }
            Room::Later | Room::Never => {}
        }
    }

    fn load(&mut self, index: usize, now: Instant) {
        let (config, model) = (&self.config.models[index], &mut self.models[index]);
        let (Some(Plan { probed, need }), Some(orders)) = (model.plan.take(), self.orders.upgrade()) else { return };
        let catalogue = self.catalogue.borrow().clone();
        let (samplers, formats) = (distinct(catalogue.samplers()), distinct(catalogue.adapter_formats()));
        let paths = |plugins: &[Arc<Plugin>]| plugins.iter().map(|plugin| plugin.copy.path().to_path_buf()).collect();
        let load = Load {
            architecture: Provider { plugin: probed.plugin.copy.path().into(), name: probed.architecture },
            samplers: paths(&samplers),
            adapter_formats: paths(&formats),
            merged: self.shelf.merged(index),
            adapter_bytes: config.adapter_bytes,
            adapter_deadline: self.config.deadlines.load,
            source: config.source.clone(),
            options: config.options.clone(),
            device: if config.device.is_empty() { "auto".into() } else { config.device.clone() },
            context: config.context,
            state_bytes: need.state_bytes,
            threads: config.threads,
            disk: config.disk.clone(),
            limits: config.limits.clone(),
        };
        self.next_serial += 1;
        let serial = self.next_serial;
        let orders = orders.downgrade();
        let hear = move |said| orders.upgrade().is_some_and(|orders| orders.send(Order::Said { serial, said }).is_ok());
        let patience = Patience { silence: self.config.deadlines.silence, step: config.limits.step_deadline };
        let worker = match Worker::start(self.config.place(), &config.id, patience, hear) {
            Ok(worker) => worker,
            Err(error) => {
                let message = format!("model '{}': a worker process does not start: {error}", config.id);
                return model
                    .give_up(Failure::new(FailureCode::Internal, message).with_help("free processes or memory"));
            }
        };
        worker.tell(Command::Load(Box::new(load)));
        model.plugin = Some(probed.plugin.copy.sha256().to_owned());
        (model.stage, model.loads_total) = (Stage::Loading(serial), model.loads_total + 1);
        let plugins = [probed.plugin].into_iter().chain(samplers).chain(formats).collect();
        let hand = Hand {
            worker,
            model: index,
            plugins,
            bytes: need.bytes,
            adapter_bytes: need.adapter_bytes,
            jobs: HashMap::new(),
            attaching: BTreeMap::new(),
            attempts: 0,
            refused: HashMap::new(),
            progress: None,
            loaded: None,
            stats: None,
            going: false,
            used: self.uses,
            used_at: now,
            moved_at: now,
        };
        self.hands.insert(serial, hand);
    }

    /// What is known of all models.
    pub(super) fn stats(&self) -> FleetStats {
        let models = self.config.models.iter().zip(&self.models).enumerate().map(|(index, (config, model))| {
            let hand = match model.stage {
                Stage::Loading(serial) | Stage::Ready(serial) => self.hands.get(&serial),
                _ => None,
            };
            let hands = self.hands.values().filter(|hand| hand.model == index);
            ModelStats {
                id: config.id.clone(),
                state: match model.stage {
                    Stage::Idle => ModelState::Idle,
                    Stage::Probing | Stage::Squeezing { .. } | Stage::Loading(_) => ModelState::Loading,
                    Stage::Ready(_) => ModelState::Ready,
                    Stage::Pausing { .. } => ModelState::Pausing,
                    Stage::Quarantined { .. } => ModelState::Quarantined,
                },
                reason: match &model.stage {
                    Stage::Quarantined { failure, .. } => Some(failure.to_string()),
                    _ => model.last_failure.as_ref().map(ToString::to_string),
                },
                streams: hands.clone().map(|hand| hand.jobs.len() as u64).sum(),
                waiting: model.waiting.len() as u64,
                workers: hands.clone().count() as u64,
                pid: hand.and_then(|hand| hand.worker.pid),
                bytes: hands.map(|hand| hand.bytes).sum(),
                loads: model.loads_total,
                deaths: model.deaths_total,
                progress: hand.filter(|hand| hand.loaded.is_none()).and_then(|hand| hand.progress.clone()),
                loaded: hand.and_then(|hand| hand.loaded.clone()),
                worker: hand.and_then(|hand| hand.stats.clone()),
                adapters: self.adapter_states(index, hand),
            }
        });
        let memory_used = self.hands.values().map(|hand| hand.bytes).sum();
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
