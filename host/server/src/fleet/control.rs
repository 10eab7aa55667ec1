//! The control loop: receives requests and workers' reports, passes them to the supervisor as events, and carries out
//! its effects.
//!
//! It owns everything that the supervisor refers to only by number: processes, waiting jobs, and reply channels. Slow
//! work (probing, loading, shutdown of workers) runs in other tasks, which report back.

use std::{
    collections::{HashMap, VecDeque},
    ops::ControlFlow,
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
    adapter_registry::Adapter,
    config::{Config, KeepAlive},
    departures::{DepartureReason, Departures},
    fence, log, needs,
    plugins::Catalogue,
    probe::{Probed, Prober},
    stats::FleetStats,
    streams::{JobStreams, UpdateSender},
    supervisor::{Answer, Effect, Event, PendingAdapter, Supervisor},
    worker::{Signals, Worker, WorkerDeadlines, WorkerSignal},
};
use crate::hub::Hub;
use pensieve_protocol::{
    awake::AwakeClock,
    checkpoint_files::readable,
    fence::Policy,
    job::{Failure, Job},
    wire::{Command, Load, Report},
};

/// Sleep of the loop without a deadline.
const FAR: Duration = Duration::from_secs(3600);

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large variant is the common one, and is moved only a few times")]
pub(super) enum Message {
    Submit { model: usize, job: Job, updates: UpdateSender },
    Cancel { job: u64 },
    Probed { model: usize, result: Result<Probed, Failure> },
    Stats { fresh: bool, reply: oneshot::Sender<FleetStats> },
    Release { model: usize },
    KeepAlive { model: usize, keep: Option<KeepAlive> },
    Pin { model: usize, pin: bool },
    Unload { model: usize },
    Reconfigure { config: Arc<Config> },
    Attach { model: usize, name: String, adapter: Adapter, reply: oneshot::Sender<Answer> },
    Detach { model: usize, name: String, reply: oneshot::Sender<Answer> },
    Shutdown { drain: Duration, reply: oneshot::Sender<()> },
}

/// The state of the control loop. Dropping it kills all workers.
pub(super) struct Control {
    config: Arc<Config>,
    prober: Prober,
    catalogue: watch::Receiver<Arc<Catalogue>>,
    /// Weak, so that the loop ends when the last sender is dropped.
    messages: WeakUnboundedSender<Message>,
    /// For signals of workers, with their serial numbers. Bounded, so that a worker that sends faster than this loop
    /// reads has to wait.
    signals: Sender<(u64, WorkerSignal)>,
    supervisor: Supervisor,
    /// The supervisor's time, in which its deadlines do not pass while this process is stopped.
    clock: AwakeClock,
    workers: HashMap<u64, (Worker, JobStreams)>,
    /// The models of workers that have not been asked to go, by the workers' serial numbers.
    serving: HashMap<u64, usize>,
    departures: Arc<Departures>,
    /// Jobs not submitted to a worker yet.
    jobs: HashMap<u64, (Job, UpdateSender)>,
    /// Reply channels, by ticket.
    replies: HashMap<u64, oneshot::Sender<Answer>>,
    next_ticket: u64,
    stats_replies: Vec<oneshot::Sender<FleetStats>>,
    shutdown_replies: Vec<oneshot::Sender<()>>,
}

impl Control {
    pub(super) fn new(
        config: Arc<Config>,
        supervisor: Supervisor,
        prober: Prober,
        catalogue: watch::Receiver<Arc<Catalogue>>,
        messages: WeakUnboundedSender<Message>,
        signals: Sender<(u64, WorkerSignal)>,
        departures: Arc<Departures>,
    ) -> Self {
        Self {
            config,
            prober,
            catalogue,
            messages,
            signals,
            supervisor,
            clock: AwakeClock::new(Instant::now()),
            workers: HashMap::new(),
            serving: HashMap::new(),
            departures,
            jobs: HashMap::new(),
            replies: HashMap::new(),
            next_ticket: 0,
            stats_replies: Vec::new(),
            shutdown_replies: Vec::new(),
        }
    }

    /// Runs until the last sender of messages is dropped, or until a shutdown is complete.
    pub(super) async fn run(
        mut self,
        mut messages: UnboundedReceiver<Message>,
        mut signals: Receiver<(u64, WorkerSignal)>,
    ) {
        loop {
            let now = self.clock.at(Instant::now());
            let wake = match self.supervisor.next_deadline(now) {
                Some(deadline) => self.clock.next_question(deadline),
                None => {
                    self.clock.rest();
                    Instant::now() + FAR
                }
            };
            let event = tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.event_of(message),
                    None => return,
                },
                Some((serial, signal)) = signals.recv() => Some(self.event_of_signal(serial, signal)),
                Ok(()) = self.catalogue.changed() => {
                    Some(Event::PluginsChanged(self.catalogue.borrow_and_update().clone()))
                }
                () = sleep_until(wake.into()) => Some(Event::TimePassed),
            };
            if let Some(event) = event
                && self.handle(event).is_break()
            {
                return;
            }
        }
    }

    /// Converts a message to an event; `None` if the message is answered here.
    fn event_of(&mut self, message: Message) -> Option<Event> {
        Some(match message {
            Message::Submit { model, job, updates } => {
                let (id, client) = (job.id, job.client);
                let adapter = job.adapter.as_ref().map(|adapter| adapter.name.clone());
                self.jobs.insert(id, (job, updates));
                Event::Submitted { model, job: id, client, adapter }
            }
            Message::Cancel { job } => {
                self.jobs.remove(&job);
                Event::Cancelled { job }
            }
            Message::Probed { model, result } => Event::Probed { model, result },
            Message::Stats { fresh: false, reply } => {
                let _ = reply.send(self.supervisor.stats(self.clock.at(Instant::now())));
                return None;
            }
            Message::Stats { fresh: true, reply } => {
                self.stats_replies.push(reply);
                Event::StatsRequested
            }
            Message::Release { model } => Event::Released { model },
            Message::KeepAlive { model, keep } => Event::KeptAlive { model, keep },
            Message::Pin { model, pin } => Event::PinRequested { model, pin },
            Message::Unload { model } => Event::UnloadRequested { model },
            Message::Reconfigure { config } => {
                self.prober.forget();
                self.config = config.clone();
                Event::Reconfigured(config)
            }
            Message::Attach { model, name, adapter, reply } => {
                let ticket = self.ticket(reply);
                Event::AttachRequested { model, pending: PendingAdapter { name, adapter, ticket } }
            }
            Message::Detach { model, name, reply } => {
                Event::DetachRequested { model, name, ticket: self.ticket(reply) }
            }
            Message::Shutdown { drain, reply } => {
                self.shutdown_replies.push(reply);
                Event::ShutdownRequested { drain }
            }
        })
    }

    fn event_of_signal(&mut self, serial: u64, signal: WorkerSignal) -> Event {
        match signal {
            WorkerSignal::Report(report) => Event::Reported { serial, report },
            WorkerSignal::Measured(bytes) => Event::Measured { serial, bytes },
            WorkerSignal::JobsEnded(jobs) => Event::JobsEnded { serial, jobs },
            WorkerSignal::Exited(failure) => {
                if let Some((_, streams)) = self.workers.remove(&serial) {
                    streams.fail(&failure);
                }
                self.depart(serial, DepartureReason::Died);
                Event::Exited { serial, failure }
            }
        }
    }

    fn ticket(&mut self, reply: oneshot::Sender<Answer>) -> u64 {
        self.next_ticket += 1;
        self.replies.insert(self.next_ticket, reply);
        self.next_ticket
    }

    /// Passes an event to the supervisor and carries out its effects. Breaks when the fleet has ended.
    fn handle(&mut self, event: Event) -> ControlFlow<()> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let reason = DepartureReason::of(&event);
            for effect in self.supervisor.on(event, self.clock.at(Instant::now())) {
                match effect {
                    Effect::Start { serial, model, load, bytes, plugin } => {
                        events.push_back(match self.policy(model, &load, bytes, &plugin) {
                            Ok(policy) => self.start(serial, model, load, &policy),
                            Err(failure) => Event::NotStarted { serial, error: failure.to_string() },
                        });
                    }
                    Effect::Send { serial, command } => match refusal(&command) {
                        Some(report) => events.push_back(Event::Reported { serial, report }),
                        None => {
                            if command == Command::Drain {
                                self.depart(serial, reason);
                            }
                            self.perform(Effect::Send { serial, command });
                        }
                    },
                    Effect::End => {
                        for reply in self.shutdown_replies.drain(..) {
                            let _ = reply.send(());
                        }
                        return ControlFlow::Break(());
                    }
                    effect => self.perform(effect),
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Records that a worker goes, unless it was asked to before.
    fn depart(&mut self, serial: u64, reason: DepartureReason) {
        if let Some(model) = self.serving.remove(&serial) {
            self.departures.record(model, reason);
        }
    }

    /// Carries out an effect that does not lead to another event. The receiver of a reply may be gone.
    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Probe { model } => self.probe(model),
            Effect::Submit { serial, job } => {
                if let (Some((job, updates)), Some((worker, streams))) =
                    (self.jobs.remove(&job), self.workers.get(&serial))
                {
                    streams.insert(&job, updates);
                    worker.send(Command::Submit(job));
                }
            }
            Effect::Notify { job, update } => {
                if let Some((_, updates)) = self.jobs.get(&job) {
                    updates.send(update);
                }
            }
            Effect::Fail { job, failure } => {
                if let Some((_, updates)) = self.jobs.remove(&job) {
                    updates.fail(failure);
                }
            }
            Effect::Send { serial, command } => {
                if let Some((worker, _)) = self.workers.get(&serial) {
                    worker.send(command);
                }
            }
            Effect::Kill { serial, reason } => {
                if let Some((worker, _)) = self.workers.get_mut(&serial) {
                    worker.end(reason);
                }
            }
            Effect::Remember { key, bytes } => {
                let folder = self.config.needs.clone();
                tokio::task::spawn_blocking(move || {
                    if let Err(error) = needs::remember(&folder, &key, bytes) {
                        tracing::debug!("the memory of a model cannot be remembered: {error}");
                    }
                });
            }
            Effect::Answer { ticket, answer } => {
                if let Some(reply) = self.replies.remove(&ticket) {
                    let _ = reply.send(answer);
                }
            }
            Effect::AnswerStats => {
                let stats = self.supervisor.stats(self.clock.at(Instant::now()));
                self.stats_replies.drain(..).for_each(|reply| drop(reply.send(stats.clone())));
            }
            Effect::Note(note) => log::log(&self.config.models[note.model].id, &note.what),
            Effect::Start { .. } | Effect::End => {}
        }
    }

    fn probe(&self, model: usize) {
        let Some(messages) = self.messages.upgrade() else { return };
        let (prober, catalogue, config) = (self.prober.clone(), self.catalogue.borrow().clone(), self.config.clone());
        tokio::spawn(async move {
            let result = prober.probe(model, &config.models[model], &catalogue).await;
            // After shutdown there is no control loop left to receive it.
            let _ = messages.send(Message::Probed { model, result });
        });
    }

    fn start(&mut self, serial: u64, model: usize, load: Box<Load>, policy: &Policy) -> Event {
        let (config, streams) = (&self.config.models[model], JobStreams::default());
        let signals = Signals { serial, sender: self.signals.clone() };
        let deadlines =
            WorkerDeadlines { silence: self.config.deadlines.silence, step: config.spec.limits.step_timeout };
        match Worker::start(self.config.placement(policy), &config.id, deadlines, streams.clone(), signals) {
            Ok(worker) => {
                let pid = worker.pid;
                worker.send(Command::Load(load));
                self.workers.insert(serial, (worker, streams));
                self.serving.insert(serial, model);
                Event::Started { serial, pid }
            }
            Err(error) => Event::NotStarted { serial, error: error.to_string() },
        }
    }

    /// Builds the fence policy of a model's worker: it may read the model's files and the adapters that it has or may
    /// get later. Adapters with links that lead elsewhere are left out.
    fn policy(&self, model: usize, load: &Load, bytes: u64, plugin: &str) -> Result<Policy, Failure> {
        let adapters = self.supervisor.adapter_paths(model);
        let adapters = adapters.iter().filter_map(|path| readable(path).ok()).flatten();
        let sources = &self.config.sources;
        let downloads = Hub::from_environment().ok().filter(|_| sources.downloads).map(|hub| hub.cache);
        let later = sources.folders.iter().cloned().chain(downloads).map(|folder| fence::absolute(&folder));
        let open = self.config.unfenced.iter().any(|id| id == plugin);
        fence::worker(load, bytes, adapters.chain(later).collect(), open)
    }
}

/// Returns the reply to a command that is withheld from the worker: to read an adapter with links that lead elsewhere.
/// An adapter named by a client was confined to the open folders before, and the worker checks that again.
fn refusal(command: &Command) -> Option<Report> {
    let Command::Attach { attempt, location, .. } = command else { return None };
    let failure = readable(&location.path).err().filter(|_| location.folders.is_empty())?;
    Some(Report::Attached { attempt: *attempt, result: Err(failure) })
}
