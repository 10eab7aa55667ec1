//! The supervisor's environment: stands in for the control loop and the tasks behind it, and checks invariants after
//! every event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fastrand::Rng;

use super::{
    super::{
        shutdown::KILL_WAIT,
        tests::{plugin, text},
    },
    *,
};
use crate::fleet::{Adapter, KeepAlive, memory::tests::card, needs::Need, plugins::Plugin, probe::Probed};
use pensieve_protocol::{
    card::State,
    wire::{AttachedAdapter, Load},
};

/// Names under which adapters are attached and requested.
const ADAPTERS: [&str; 4] = ["house", "one", "two", "three"];
/// Longer than anything can wait for a model: for a plugin that hangs twice, and for memory that never becomes
/// available.
const PATIENCE: Duration = Duration::from_secs(2000);

/// Shared by all runs, because plugins are files on disk and only a few are created.
pub(super) struct Parts {
    fleets: Vec<Arc<Config>>,
    /// Versions of the plugin with the models, and plugins with a sampler each.
    versions: Vec<Arc<Plugin>>,
    samplers: Vec<Arc<Plugin>>,
}

/// Event counts of all runs.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) jobs: u64,
    pub(super) finished: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) loads: u64,
    pub(super) drains: u64,
    pub(super) deaths: u64,
    pub(super) quarantines: u64,
    pub(super) kills: u64,
    pub(super) attached: u64,
    pub(super) refused: u64,
    pub(super) swaps: u64,
}

/// Where an unfinished job is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum JobLocation {
    Waiting(usize),
    Worker(u64),
}

/// A worker's process.
#[derive(Debug, Default)]
struct Process {
    model: usize,
    loaded: bool,
    /// It has reported a failed load or was asked to exit, so its exit does not count as a death of its model.
    leaving: bool,
    drained: bool,
    killed: bool,
    /// It no longer does anything except die when killed.
    stuck: bool,
    jobs: BTreeSet<u64>,
    attaching: Vec<u64>,
    asked_stats: bool,
}

/// The limits that follow from the deaths of a model's workers.
#[derive(Debug, Default)]
struct Deaths {
    times: Vec<Instant>,
    not_before: Option<Instant>,
}

pub(super) struct World<'a> {
    parts: &'a Parts,
    totals: &'a mut Totals,
    /// Prints a trace of events.
    tells: bool,
    rng: Rng,
    /// Probability that a worker misbehaves.
    odds: f64,
    config: Arc<Config>,
    supervisor: Supervisor,
    start: Instant,
    now: Instant,
    catalogue: Arc<Catalogue>,
    /// For each model being probed, the plugins that the child asks.
    probes: BTreeMap<usize, Arc<Catalogue>>,
    processes: BTreeMap<u64, Process>,
    jobs: BTreeMap<u64, JobLocation>,
    next_job: u64,
    tickets: BTreeSet<u64>,
    next_ticket: u64,
    stats_since: Option<Instant>,
    deaths: Vec<Deaths>,
    closing: bool,
    ended: bool,
}

impl Parts {
    pub(super) fn new(fleets: Vec<Arc<Config>>) -> Self {
        let versions = (0..4).map(|version| plugin(&format!("version {version}"), &[])).collect();
        let samplers = ["x", "y"].map(|name| plugin(name, &[name])).into();
        Self { fleets, versions, samplers }
    }
}

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, parts: &'a Parts, totals: &'a mut Totals, tells: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let config = parts.fleets[rng.usize(0..parts.fleets.len())].clone();
        let odds = [0.0, 0.02, 0.2, 0.6][rng.usize(0..4)];
        let mut adapters = vec![BTreeMap::new(); MODELS.len()];
        adapters[0].insert(ADAPTERS[0].to_owned(), Adapter::at("/house"));
        let catalogue = Arc::new(Catalogue::for_tests(vec![parts.versions[0].clone()]));
        let registry = Arc::new(AdapterRegistry::new(adapters));
        let supervisor = Supervisor::new(config.clone(), registry, catalogue.clone());
        let start = Instant::now();
        Self {
            parts,
            totals,
            tells,
            rng,
            odds,
            config,
            supervisor,
            start,
            now: start,
            catalogue,
            probes: BTreeMap::new(),
            processes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_job: 0,
            tickets: BTreeSet::new(),
            next_ticket: 0,
            stats_since: None,
            deaths: MODELS.map(|_| Deaths::default()).into(),
            closing: false,
            ended: false,
        }
    }

    /// Makes one random event happen.
    pub(super) fn step(&mut self) {
        let model = self.rng.usize(0..MODELS.len());
        match self.rng.u32(0..100) {
            0..25 => self.submit(model),
            25..30 => self.cancel(),
            30..36 => self.attach(model),
            36..38 => {
                let (name, ticket) = (self.adapter(), self.ticket());
                self.on(Event::DetachRequested { model, name, ticket });
            }
            38..40 => {
                self.stats_since = self.stats_since.or(Some(self.now));
                self.on(Event::StatsRequested);
            }
            40..42 => self.swap_plugins(),
            42..43 => {
                self.deaths[model] = Deaths::default();
                self.on(Event::Released { model });
            }
            43..58 => self.answer_a_probe(),
            58..92 => self.work(self.odds),
            92 => {
                let pin = self.rng.u32(0..4) == 0;
                self.on(Event::PinRequested { model, pin });
            }
            93 => self.operate(model),
            _ => {
                let seconds = [1, 5, 60, 300][self.rng.usize(0..4)];
                let some = self.rng.u64(0..seconds * 1000);
                self.pass(Duration::from_millis(some));
            }
        }
        let some = self.rng.u64(0..40);
        self.pass(Duration::from_millis(some));
    }

    /// An operator or a client changes which models stay loaded, and with which settings.
    fn operate(&mut self, model: usize) {
        let event = match self.rng.u32(0..4) {
            0 => Event::UnloadRequested { model },
            1 => {
                let keep = [None, Some(KeepAlive::Always), Some(KeepAlive::For(Duration::ZERO))][self.rng.usize(0..3)];
                Event::KeptAlive { model, keep }
            }
            _ => {
                let mut config = (*self.config).clone();
                config.models[model].spec.threads = self.rng.u32(1..4);
                self.config = Arc::new(config);
                self.deaths[model] = Deaths::default();
                Event::Reconfigured(self.config.clone())
            }
        };
        self.on(event);
    }

    /// Lets everything in progress finish.
    pub(super) fn settle(&mut self) {
        let since = self.now;
        while !(self.jobs.is_empty() && self.tickets.is_empty() && self.stats_since.is_none()) {
            self.answer_a_probe();
            self.work(0.0);
            self.pass(Duration::from_millis(200));
            assert!(self.now - since < PATIENCE, "they do not end: {:?}, {:?}", self.jobs, self.tickets);
        }
    }

    /// Shuts the server down, possibly with work in progress.
    pub(super) fn shut_down(&mut self) {
        for _ in 0..self.rng.u32(0..20) {
            self.step();
        }
        let (since, drain) = (self.now, Duration::from_secs(self.rng.u64(1..30)));
        self.closing = true;
        self.on(Event::ShutdownRequested { drain });
        while !self.ended {
            match self.rng.u32(0..10) {
                0 => self.submit(0),
                1 => self.attach(1),
                2 => self.answer_a_probe(),
                _ => self.work(0.0),
            }
            self.pass(Duration::from_millis(100));
            assert!(self.now - since <= drain + KILL_WAIT + Duration::from_secs(1), "it does not end");
        }
        assert!(self.processes.is_empty(), "left behind: {:?}", self.processes);
        assert!(self.jobs.is_empty() && self.tickets.is_empty(), "left behind: {:?}, {:?}", self.jobs, self.tickets);
    }

    fn submit(&mut self, model: usize) {
        self.next_job += 1;
        self.totals.jobs += 1;
        let (job, client) = (self.next_job, self.rng.u64(0..4));
        let adapter = (self.rng.u32(0..3) == 0).then(|| self.adapter());
        self.jobs.insert(job, JobLocation::Waiting(model));
        self.on(Event::Submitted { model, job, client, adapter });
    }

    /// Cancels a job, possibly one that has just ended.
    fn cancel(&mut self) {
        let job = self.rng.u64(1..self.next_job + 2);
        if let Some(JobLocation::Waiting(_)) = self.jobs.get(&job) {
            self.jobs.remove(&job);
            self.totals.cancelled += 1;
        }
        self.on(Event::Cancelled { job });
    }

    fn attach(&mut self, model: usize) {
        let (name, ticket) = (self.adapter(), self.ticket());
        let pending = PendingAdapter { name, adapter: Adapter::at("/somewhere"), ticket };
        self.on(Event::AttachRequested { model, pending });
    }

    fn adapter(&mut self) -> String {
        ADAPTERS[self.rng.usize(0..ADAPTERS.len())].to_owned()
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket);
        self.next_ticket
    }

    /// Changes the plugins to one version of the model's plugin, or none, and any of the samplers.
    fn swap_plugins(&mut self) {
        self.totals.swaps += 1;
        let version = self.rng.usize(0..self.parts.versions.len() + 1);
        let samplers = self.parts.samplers.iter().filter(|_| self.rng.bool()).cloned();
        let plugins = samplers.chain(self.parts.versions.get(version).cloned()).collect();
        self.catalogue = Arc::new(Catalogue::for_tests(plugins));
        // As far as the supervisor can tell, this is another model now.
        self.deaths.iter_mut().for_each(|deaths| *deaths = Deaths::default());
        self.on(Event::PluginsChanged(self.catalogue.clone()));
    }

    /// Answers a probe, based on the plugins that it was started with.
    fn answer_a_probe(&mut self) {
        let Some((model, catalogue)) = self.probes.pop_first() else { return };
        let is_version = |plugin: &&Arc<Plugin>| plugin.manifest.samplers.is_empty();
        let result = match catalogue.plugins().iter().find(is_version) {
            Some(plugin) if self.rng.u32(0..10) > 0 => {
                let card = Arc::new(card(0, State::PerSequence { bytes: 1 }));
                Ok(Probed {
                    plugin: plugin.clone(),
                    architecture: "x".into(),
                    card,
                    need: Need::default(),
                    options: String::new(),
                })
            }
            _ => Err(Failure::new(FailureCode::Unsupported, "no plugin takes it")),
        };
        self.on(Event::Probed { model, result });
    }

    /// Makes some worker act, if there is one; with probability `odds` it misbehaves.
    fn work(&mut self, odds: f64) {
        let serials: Vec<u64> = self.processes.keys().copied().collect();
        let Some(serial) = self.rng.choice(serials) else { return };
        let (bad, choice) = (self.rng.f64() < odds, self.rng.u32(0..4));
        let Some(process) = self.processes.get_mut(&serial) else { return };
        process.stuck |= bad && choice > 1;
        // The task that reads the socket kills a worker that is stuck in a step or silent.
        let is_watched = process.stuck && !process.jobs.is_empty() && choice == 0;
        if process.killed || is_watched || (bad && choice < 2) {
            return self.exit(serial, "crashed");
        }
        if process.stuck {
            return;
        }
        let report = if let Some(attempt) = process.attaching.pop() {
            let adapter = AttachedAdapter { format: "x".into(), pairs: 1, bytes: 1 };
            let refused = Failure::new(FailureCode::Invalid, "no adapter");
            Report::Attached { attempt, result: if choice == 0 { Err(refused) } else { Ok(adapter) } }
        } else if std::mem::take(&mut process.asked_stats) {
            Report::Stats(Box::default())
        } else if let Some(job) = process.jobs.pop_first() {
            self.jobs.remove(&job);
            self.totals.finished += 1;
            self.on(Event::JobsEnded { serial, jobs: vec![job] });
            return;
        } else if process.leaving {
            return self.exit(serial, "was asked to");
        } else if process.loaded {
            return;
        } else if choice == 0 {
            Report::Progress { done: 1, total: 2, what: "weights".into() }
        } else if choice == 1 && odds > 0.0 {
            process.leaving = true;
            Report::LoadFailed(Failure::new(FailureCode::Invalid, "no weights"))
        } else {
            process.loaded = true;
            Report::Loaded(Box::default())
        };
        self.on(Event::Reported { serial, report });
    }

    fn exit(&mut self, serial: u64, why: &str) {
        let Some(process) = self.processes.remove(&serial) else { return };
        self.totals.failed += process.jobs.len() as u64;
        self.jobs.retain(|job, _| !process.jobs.contains(job));
        if !process.leaving {
            self.count_death(process.model);
        }
        self.on(Event::Exited { serial, failure: Failure::new(FailureCode::WorkerLost, why) });
    }

    /// Records a death and computes when the model may be tried again.
    fn count_death(&mut self, model: usize) {
        let (now, restart, deaths) = (self.now, self.config.restart, &mut self.deaths[model]);
        deaths.times.retain(|death| now - *death < restart.window);
        deaths.times.push(now);
        self.totals.deaths += 1;
        let count = deaths.times.len();
        let pause = if count >= restart.deaths_max {
            self.totals.quarantines += 1;
            restart.quarantine
        } else {
            (restart.pause * (1 << (count - 1))).min(restart.pause_max)
        };
        deaths.not_before = Some(now + pause);
    }

    /// Advances the clock, stopping at each deadline.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while !self.ended {
            let Some(deadline) = self.supervisor.next_deadline(self.now).filter(|deadline| *deadline <= until) else {
                break;
            };
            assert!(deadline > self.now, "time stands still");
            self.now = deadline;
            let effects = self.on(Event::TimePassed);
            self.reap();
            let next = self.supervisor.next_deadline(self.now);
            let is_dealt_with = effects > 0 || next.is_none_or(|next| next > self.now + 2 * INSTANT);
            assert!(is_dealt_with || self.ended, "a deadline has passed, and the supervisor wakes up for it again");
        }
        self.now = self.now.max(until);
    }

    /// Ends most killed processes before anything else happens.
    fn reap(&mut self) {
        let killed = self.processes.iter().filter(|(_, process)| process.killed).map(|(serial, _)| *serial);
        for serial in killed.collect::<Vec<_>>() {
            if self.rng.u32(0..4) > 0 {
                self.exit(serial, "was killed");
            }
        }
    }

    /// Passes an event to the supervisor as the control loop does, and checks its effects. Returns their number.
    fn on(&mut self, event: Event) -> usize {
        let (mut events, mut count) = (VecDeque::from([event]), 0);
        while let Some(event) = events.pop_front() {
            if self.tells {
                println!("{:.3} s: {event:?}", (self.now - self.start).as_secs_f64());
            }
            for effect in self.supervisor.on(event, self.now) {
                if self.tells {
                    println!("    {}", text(&effect));
                }
                if let Effect::Note(_) = effect {
                    continue;
                }
                assert!(!self.ended || effect == Effect::End, "after the end: {effect:?}");
                count += 1;
                events.extend(self.perform(effect));
            }
        }
        self.check();
        count
    }

    fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Probe { model } => {
                let not_before = self.deaths[model].not_before;
                assert!(not_before.is_none_or(|not_before| self.now >= not_before), "model {model} is tried too soon");
                assert!(self.probes.insert(model, self.catalogue.clone()).is_none(), "two probes of model {model}");
            }
            Effect::Start { serial, model, load, .. } => return Some(self.begin(serial, model, &load)),
            Effect::Submit { serial, job } => {
                let Some(process) = self.processes.get_mut(&serial) else { panic!("job {job} for no worker") };
                assert!(process.loaded && !process.leaving, "job {job} for {process:?}");
                assert_eq!(
                    self.jobs.insert(job, JobLocation::Worker(serial)),
                    Some(JobLocation::Waiting(process.model)),
                    "job {job}"
                );
                process.jobs.insert(job);
            }
            // Only a worker that was measured leads to it.
            Effect::Remember { .. } => {}
            Effect::Notify { job, .. } => {
                assert!(matches!(self.jobs.get(&job), Some(JobLocation::Waiting(_))), "job {job}");
            }
            Effect::Fail { job, .. } => {
                assert!(
                    matches!(self.jobs.remove(&job), Some(JobLocation::Waiting(_))),
                    "job {job} fails, and goes on"
                );
                self.totals.failed += 1;
            }
            Effect::Send { serial, command } => self.obey(serial, command),
            Effect::Kill { serial, .. } => {
                let Some(process) = self.processes.get_mut(&serial) else { panic!("no worker {serial} to kill") };
                process.killed = true;
                self.totals.kills += 1;
            }
            Effect::Answer { ticket, answer } => {
                assert!(self.tickets.remove(&ticket), "ticket {ticket} is answered twice");
                if answer.is_ok() { self.totals.attached += 1 } else { self.totals.refused += 1 }
            }
            Effect::AnswerStats => assert!(self.stats_since.take().is_some(), "nobody has asked"),
            Effect::Note(_) => {}
            Effect::End => {
                assert!(self.closing, "nobody has asked it to end");
                self.ended = true;
            }
        }
        None
    }

    fn begin(&mut self, serial: u64, model: usize, load: &Load) -> Event {
        let others = self.processes.values().filter(|process| process.model == model && !process.leaving);
        assert_eq!(others.count(), 0, "model {model} has a worker");
        let is_offered = |plugin: &Arc<Plugin>| plugin.copy.path() == load.architecture.plugin;
        assert!(self.catalogue.plugins().iter().any(is_offered), "model {model} is loaded by a plugin that is gone");
        if self.rng.u32(0..50) == 0 {
            return Event::NotStarted { serial, error: "no processes".into() };
        }
        self.totals.loads += 1;
        self.processes.insert(serial, Process { model, ..Process::default() });
        Event::Started { serial, pid: None }
    }

    fn obey(&mut self, serial: u64, command: Command) {
        let Some(process) = self.processes.get_mut(&serial) else { panic!("{command:?} for no worker") };
        match command {
            Command::Cancel { id } => {
                assert!(process.jobs.contains(&id), "worker {serial} does not have job {id}");
                self.totals.cancelled += 1;
            }
            Command::Attach { attempt, .. } => {
                assert!(process.loaded && !process.leaving, "an adapter for {process:?}");
                process.attaching.push(attempt);
            }
            Command::Drain => {
                assert!(!process.drained, "worker {serial} is asked to end twice");
                (process.drained, process.leaving) = (true, true);
                self.totals.drains += 1;
            }
            Command::Stats => process.asked_stats = true,
            // The answer to the attempt may already be on its way.
            Command::Detach { .. } => {}
            command => panic!("{command:?}"),
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        let supervisor = &self.supervisor;
        assert!(supervisor.workers.keys().eq(self.processes.keys()), "it knows other workers than there are");
        for (serial, worker) in &supervisor.workers {
            let jobs: BTreeSet<u64> = worker.jobs.iter().copied().collect();
            assert_eq!(jobs, self.processes[serial].jobs, "the jobs of worker {serial}");
            assert!(jobs.len() <= worker.jobs_max, "worker {serial} has too many jobs");
        }
        let (mut waiting, mut tickets) = (0, BTreeSet::new());
        for (index, model) in supervisor.models.iter().enumerate() {
            waiting += model.waiting.len();
            for job in model.waiting.iter().map(|waiting| waiting.job) {
                assert_eq!(self.jobs.get(&job), Some(&JobLocation::Waiting(index)), "job {job} waits");
            }
            tickets.extend(model.pending_adapters.iter().map(|pending| pending.ticket));
            assert!(model.waiting.len() <= 8, "too many wait for model {index}");
            match &model.state {
                LoadState::Loading(serial) | LoadState::Ready(serial) => {
                    let process = self.processes.get(serial);
                    assert!(process.is_some_and(|process| !process.leaving), "model {index} is served by {process:?}");
                }
                LoadState::Idle | LoadState::Quarantined { .. } => {
                    let nothing_waits = model.waiting.is_empty() && model.pending_adapters.is_empty();
                    assert!(nothing_waits || self.closing, "nothing is done for model {index}: {model:?}");
                }
                LoadState::Probing => assert!(self.probes.contains_key(&index), "model {index} waits for no answer"),
                LoadState::AwaitingMemory { .. } | LoadState::Pausing { .. } => {}
            }
        }
        let at_workers = self.processes.values().map(|process| process.jobs.len()).sum::<usize>();
        assert_eq!(waiting + at_workers, self.jobs.len(), "jobs are forgotten");
        let attempts = supervisor.workers.values().flat_map(|worker| worker.attaching.values());
        tickets.extend(attempts.filter_map(|attempt| attempt.pending.as_ref()).map(|pending| pending.ticket));
        assert_eq!(tickets, self.tickets, "requests about adapters are forgotten");
        let used = supervisor.stats(self.now).memory_used;
        assert!(used <= self.config.memory_bytes, "{used} bytes are taken");
        let is_late = self.stats_since.is_some_and(|since| self.now > since + STATS_WAIT + 2 * INSTANT);
        assert!(!is_late, "statistics are not answered");
    }
}
