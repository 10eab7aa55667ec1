//! The one task that owns the fleet: models, workers, and the orders and reports that change them.
//!
//! Everything that happens arrives here as an [`Order`], one at a time, so that there is nothing to lock and no order of events
//! in which two parts disagree. Whatever takes time (probing, loading, ending) runs elsewhere and reports back.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender},
        oneshot, watch,
    },
    time::sleep_until,
};

use super::{
    Adapter, Config, FleetStats,
    adapters::{AdapterFailure, Newcomer},
    deaths::Sequel,
    hand::{Age, Hand},
    model::{Model, Stage, Waiting},
    plugins::Catalogue,
    probe::{Probed, Prober},
    shelf::Shelf,
    stats::Progress,
    stream::Update,
    worker::Said,
};
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Job},
    wire::{AttachedAdapter, Command, Level, Limits, Report},
};

/// How long workers have to answer for the statistics.
const STATS_WAIT: Duration = Duration::from_millis(500);
/// How long a killed worker may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// What the fleet is told.
#[derive(Debug)]
pub(super) enum Order {
    Submit {
        model: usize,
        job: Job,
        updates: UnboundedSender<Update>,
    },
    Cancel {
        job: u64,
    },
    Probed {
        model: usize,
        result: Result<Probed, Failure>,
    },
    Said {
        serial: u64,
        said: Said,
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
pub(super) struct Crew {
    pub(super) config: Arc<Config>,
    pub(super) prober: Prober,
    pub(super) catalogue: watch::Receiver<Arc<Catalogue>>,
    pub(super) shelf: Arc<Shelf>,
    /// Weak, so that the fleet ends when nobody can give orders any more.
    pub(super) orders: WeakUnboundedSender<Order>,
    pub(super) models: Vec<Model>,
    pub(super) hands: HashMap<u64, Hand>,
    pub(super) next_serial: u64,
    pub(super) uses: u64,
    pub(super) asked: Option<Asked>,
    pub(super) closing: Option<Closing>,
}

/// Statistics that are being gathered.
pub(super) struct Asked {
    replies: Vec<oneshot::Sender<FleetStats>>,
    missing: HashSet<u64>,
    until: Instant,
}

/// The end.
pub(super) struct Closing {
    until: Instant,
    killed: bool,
    reply: Option<oneshot::Sender<()>>,
}

impl Crew {
    /// Follows orders until there is nobody left to give any.
    pub(super) async fn run(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            self.advance(Instant::now());
            if self.is_over() {
                return;
            }
            let wake = self.next_deadline();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.follow(order, Instant::now()),
                    None => return,
                },
                Ok(()) = self.catalogue.changed() => self.compare_plugins(Instant::now()),
                () = sleep_until(wake.into()) => {}
            }
        }
    }

    fn follow(&mut self, order: Order, now: Instant) {
        match order {
            Order::Submit { model, job, updates } => self.submit(model, job, updates, now),
            Order::Cancel { job } => self.cancel(job),
            Order::Probed { model, result } => self.probed(model, result, now),
            Order::Said { serial, said: Said::Report(report) } => self.hear(serial, report, now),
            Order::Said { serial, said: Said::Ended(failure) } => self.bury(serial, &failure, now),
            Order::Stats { fresh, reply } => self.ask(fresh, reply, now),
            Order::Release { model } => self.models[model].release(),
            Order::Attach { model, name, adapter, reply } => self.attach(model, Newcomer { name, adapter, reply }, now),
            Order::Detach { model, name, reply } => drop(reply.send(self.detach(model, &name))),
            Order::Shutdown { drain, reply } => self.close(drain, reply, now),
        }
    }

    fn submit(&mut self, model: usize, job: Job, updates: UnboundedSender<Update>, now: Instant) {
        // Who gets a place once the model is there does not wait for others.
        let Limits { waiting_max, sequences_max, .. } = self.config.models[model].limits;
        let waiting_max = (waiting_max as usize).saturating_add(sequences_max as usize);
        let refusal = if self.closing.is_some() {
            Some(Failure::new(FailureCode::Draining, "the server is about to end"))
        } else if let Stage::Quarantined { failure, .. } = &self.models[model].stage {
            Some(failure.clone())
        } else if self.models[model].waiting.len() >= waiting_max {
            let message = format!("{waiting_max} requests wait for model '{}' already", self.config.models[model].id);
            Some(Failure::new(FailureCode::Busy, message).with_help("try again later"))
        } else {
            None
        };
        if let Some(failure) = refusal {
            let _ = updates.send(Update::Event(Event::Failed(failure)));
            return;
        }
        if let Stage::Ready(serial) = self.models[model].stage
            && let Some(hand) = self.hands.get_mut(&serial)
        {
            self.uses += 1;
            (hand.used, hand.used_at) = (self.uses, now);
            return hand.submit(job, updates);
        }
        self.models[model].waiting.push_back(Waiting { job, updates });
    }

    fn cancel(&mut self, job: u64) {
        for model in &mut self.models {
            model.waiting.retain(|waiting| waiting.job.id != job);
        }
        // The stream is forgotten when the worker says that it has ended: until then it is not idle.
        if let Some(hand) = self.hands.values().find(|hand| hand.jobs.contains_key(&job)) {
            hand.worker.tell(Command::Cancel { id: job });
        }
    }

    fn hear(&mut self, serial: u64, report: Report, now: Instant) {
        let Some(hand) = self.hands.get_mut(&serial) else { return };
        let model = &mut self.models[hand.model];
        let name = &self.config.models[hand.model].id;
        match report {
            Report::Progress { done, total, what } => {
                (hand.moved_at, hand.progress) = (now, Some(Progress { done, total, what: what.clone() }));
                model.tell_waiting(&Update::Loading { done, total, what });
            }
            Report::Loaded(loaded) => {
                tracing::info!(
                    model = name,
                    device = loaded.device,
                    state_bytes = loaded.state_bytes,
                    "loaded: {}",
                    loaded.note
                );
                (hand.loaded, hand.moved_at) = (Some(*loaded), now);
                for (name, adapter) in self.shelf.of(hand.model).into_iter().filter(|(_, it)| it.merged.is_none()) {
                    hand.attach(name, adapter.location, None, now);
                }
            }
            Report::LoadFailed(failure) => {
                // The same would happen again: whoever waits hears of it, and the next request tries anew.
                hand.going = true;
                if model.stage == Stage::Loading(serial) {
                    model.stage = Stage::Idle;
                    model.fail_waiting(&failure);
                }
                model.last_failure = Some(failure);
            }
            Report::Attached { attempt, result } => self.attached(serial, attempt, result),
            Report::Events(events) => {
                let ended = events.into_iter().map(|(job, event)| hand.pass_on(job, event)).filter(|last| *last);
                if ended.count() > 0 {
                    self.uses += 1;
                    (hand.used, hand.used_at, hand.moved_at) = (self.uses, now, now);
                }
            }
            Report::Stats(stats) => {
                hand.stats = Some(*stats);
                if let Some(asked) = &mut self.asked {
                    asked.missing.remove(&serial);
                }
            }
            Report::Log { level, message } => log(name, level, &pensieve_protocol::refusal::clean(&message)),
            Report::Hello { .. }
            | Report::Detached { .. }
            | Report::Heartbeat { .. }
            | Report::Drained
            | Report::Dying(_) => {}
        }
    }

    /// A worker is gone: its streams end, and its model is loaded again unless that was to be.
    fn bury(&mut self, serial: u64, failure: &Failure, now: Instant) {
        let Some(mut hand) = self.hands.remove(&serial) else { return };
        hand.fail(failure);
        if let Some(asked) = &mut self.asked {
            asked.missing.remove(&serial);
        }
        let (config, model) = (&self.config.models[hand.model], &mut self.models[hand.model]);
        if model.stage != Stage::Loading(serial) && model.stage != Stage::Ready(serial) {
            return;
        }
        tracing::error!(model = config.id, "{failure}");
        model.deaths_total += 1;
        model.last_failure = Some(failure.clone());
        model.stage = match model.deaths.count(now, &self.config.restart) {
            Sequel::Again(pause) => Stage::Pausing { until: now + pause },
            Sequel::Quarantine(length) => {
                let message = format!(
                    "model '{}' is in quarantine: its worker died {} times within {} s, the last time so: {}",
                    config.id,
                    model.deaths.len(),
                    self.config.restart.window.as_secs(),
                    failure.message
                );
                let help = format!("replace the plugin or the checkpoint, or try again in {} s", length.as_secs());
                let failure = Failure::new(failure.code, message).with_help(help);
                model.fail_waiting(&failure);
                Stage::Quarantined { until: now + length, failure }
            }
        };
    }

    /// New loads use the plugins of now; workers that run on others finish what they have.
    fn compare_plugins(&mut self, now: Instant) {
        let catalogue = self.catalogue.borrow_and_update().clone();
        for (serial, hand) in &mut self.hands {
            let model = &mut self.models[hand.model];
            let current = model.stage == Stage::Ready(*serial) || model.stage == Stage::Loading(*serial);
            if current && hand.age(&catalogue) == Age::Outdated {
                model.newcomers.extend(hand.dismiss(now));
                if hand.loaded.is_none() {
                    hand.worker.end(Failure::new(FailureCode::Draining, "was loading a plugin that is gone"));
                }
                model.stage = Stage::Idle;
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

    fn ask(&mut self, fresh: bool, reply: oneshot::Sender<FleetStats>, now: Instant) {
        if !fresh {
            let _ = reply.send(self.stats());
            return;
        }
        let asked = self.asked.get_or_insert_with(|| {
            let ready = self.hands.iter().filter(|(_, hand)| hand.loaded.is_some());
            let missing = ready.map(|(serial, hand)| {
                hand.worker.tell(Command::Stats);
                *serial
            });
            Asked { replies: Vec::new(), missing: missing.collect(), until: now + STATS_WAIT }
        });
        asked.replies.push(reply);
    }

    fn close(&mut self, drain: Duration, reply: oneshot::Sender<()>, now: Instant) {
        let failure = Failure::new(FailureCode::Draining, "the server is about to end");
        for hand in self.hands.values_mut() {
            self.models[hand.model].newcomers.extend(hand.dismiss(now));
        }
        for model in &mut self.models {
            model.fail_waiting(&failure);
            model.stage = Stage::Idle;
        }
        self.closing = Some(Closing { until: now + drain, killed: false, reply: Some(reply) });
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether the fleet has been told to end and has.
    fn is_over(&mut self) -> bool {
        let Some(closing) = &mut self.closing else { return false };
        let now = Instant::now();
        if now >= closing.until && !closing.killed {
            (closing.killed, closing.until) = (true, now + KILL_WAIT);
            for hand in self.hands.values_mut() {
                let failure = Failure::new(FailureCode::Draining, "had not finished when the server ended");
                hand.worker.end(failure.with_help("send the request again once it runs again"));
            }
        }
        let over = self.hands.is_empty() || (closing.killed && now >= closing.until);
        if over && let Some(reply) = closing.reply.take() {
            let _ = reply.send(());
        }
        over
    }

    /// Answers what is due, ends who is late, and moves every model on.
    fn advance(&mut self, now: Instant) {
        if let Some(asked) = self.asked.take_if(|asked| asked.missing.is_empty() || now >= asked.until) {
            asked.replies.into_iter().for_each(|reply| drop(reply.send(self.stats())));
        }
        let deadlines = self.config.deadlines;
        for hand in self.hands.values_mut() {
            let late = hand.deadline(deadlines.load, deadlines.farewell).is_some_and(|deadline| now >= deadline);
            if late && !hand.going && hand.loaded.is_some() {
                hand.give_hung_up(deadlines.load, now);
            } else if late {
                let what =
                    if hand.going { "did not end when it was asked to" } else { "made no progress with its load" };
                hand.worker.end(Failure::new(FailureCode::Stalled, what));
                hand.moved_at = now;
            }
        }
        if self.closing.is_none() {
            self.give_back_room();
            self.dismiss_idle(now);
            (0..self.models.len()).for_each(|model| self.advance_model(model, now));
        }
    }

    /// Lets go who was not used for long, and who could offer more after a new start.
    fn dismiss_idle(&mut self, now: Instant) {
        let catalogue = self.catalogue.borrow().clone();
        for (serial, hand) in &mut self.hands {
            let model = &mut self.models[hand.model];
            let ready = model.stage == Stage::Ready(*serial) && hand.is_idle();
            let unused = self.config.idle_timeout.is_some_and(|limit| now >= hand.used_at + limit);
            if ready && (unused || hand.age(&catalogue) != Age::Current) {
                model.newcomers.extend(hand.dismiss(now));
                model.stage = Stage::Idle;
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let (now, deadlines) = (Instant::now(), self.config.deadlines);
        let hands = self.hands.values().flat_map(|hand| {
            let idle =
                self.config.idle_timeout.filter(|_| hand.is_idle() && !hand.going).map(|limit| hand.used_at + limit);
            [hand.deadline(deadlines.load, deadlines.farewell), idle]
        });
        let models = self.models.iter().map(|model| model.deadline(deadlines.memory));
        let rest = [self.asked.as_ref().map(|asked| asked.until), self.closing.as_ref().map(|closing| closing.until)];
        let next = hands.chain(models).chain(rest).flatten().min();
        let far = now + Duration::from_secs(3600);
        next.unwrap_or(far).min(far).max(now + Duration::from_millis(1))
    }
}

/// What a worker says for the log.
fn log(model: &str, level: Level, message: &str) {
    match level {
        Level::Error => tracing::error!(model, "{message}"),
        Level::Warn => tracing::warn!(model, "{message}"),
        Level::Info => tracing::info!(model, "{message}"),
        Level::Debug => tracing::debug!(model, "{message}"),
    }
}
