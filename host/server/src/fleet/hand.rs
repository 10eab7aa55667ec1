//! A worker as the fleet sees it: what it runs, whom it serves, and whether it is to go.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    adapters::{Culprit, Newcomer},
    memory::Resident,
    plugins::{Catalogue, Plugin},
    stats::Progress,
    stream::Update,
    worker::Worker,
};
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Job},
    wire::{self, Command, Location},
};

/// A worker and its streams.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) worker: Worker,
    pub(super) model: usize,
    /// What it has mapped; kept so that the copies stay.
    pub(super) plugins: Vec<Arc<Plugin>>,
    /// What it takes, by the card.
    pub(super) bytes: u64,
    pub(super) jobs: HashMap<u64, UnboundedSender<Update>>,
    /// What of its bytes is for adapters.
    pub(super) adapter_bytes: u64,
    /// Adapters that it is still reading, by the numbers of the attempts. An answer to any other is of no interest any more.
    pub(super) attaching: BTreeMap<u64, Attempt>,
    /// The number of the last attempt.
    pub(super) attempts: u64,
    /// Adapters that it does not take, and why.
    pub(super) refused: HashMap<String, Failure>,
    /// How far its load is.
    pub(super) progress: Option<Progress>,
    pub(super) loaded: Option<wire::Loaded>,
    pub(super) stats: Option<wire::Stats>,
    /// It takes no more jobs and ends when it has none.
    pub(super) going: bool,
    /// When it was used last: in the order of uses, and by the clock.
    pub(super) used: u64,
    pub(super) used_at: Instant,
    /// When it last did what it is waited for.
    pub(super) moved_at: Instant,
}

/// An adapter that a worker is reading.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) name: String,
    /// Who waits for it; nobody for one that the model has anyway.
    pub(super) newcomer: Option<Newcomer>,
    pub(super) since: Instant,
}

/// How a worker's plugins compare with those that a new one would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// They are the same.
    Current,
    /// There are more by now, which it could offer after a new start.
    Behind,
    /// One of them was replaced or removed.
    Outdated,
}

impl Hand {
    pub(super) fn submit(&mut self, job: Job, updates: UnboundedSender<Update>) {
        if let Some(failure) = job.adapter.as_ref().and_then(|wish| self.refused.get(&wish.name)) {
            // Whoever has gone need not hear it.
            let _ = updates.send(Update::Event(Event::Failed(failure.clone())));
            return;
        }
        self.jobs.insert(job.id, updates);
        self.worker.tell(Command::Submit(job));
    }

    /// Passes an event on; true if it was the last one of its job.
    pub(super) fn pass_on(&mut self, job: u64, event: Event) -> bool {
        let last = event.is_last();
        if let Some(updates) = self.jobs.get(&job) {
            // Whoever has gone has cancelled the job.
            let _ = updates.send(Update::Event(event));
        }
        if last {
            self.jobs.remove(&job);
        }
        last
    }

    /// Tells every stream that it is over.
    pub(super) fn fail(&mut self, failure: &Failure) {
        for (_, updates) in self.jobs.drain() {
            let _ = updates.send(Update::Event(Event::Failed(failure.clone())));
        }
        for newcomer in mem::take(&mut self.attaching).into_values().filter_map(|attempt| attempt.newcomer) {
            newcomer.refuse(Culprit::Nobody, failure.clone());
        }
    }

    /// Has it read an adapter.
    pub(super) fn attach(&mut self, name: String, location: Location, newcomer: Option<Newcomer>, now: Instant) {
        self.attempts += 1;
        self.worker.tell(Command::Attach { attempt: self.attempts, name: name.clone(), location });
        self.attaching.insert(self.attempts, Attempt { name, newcomer, since: now });
    }

    /// Has it forget an adapter that was taken away, whether it has that or is still reading it.
    pub(super) fn detach(&mut self, name: &str) {
        self.attaching.retain(|_, attempt| attempt.name != name);
        self.refused.remove(name);
        self.worker.tell(Command::Detach { name: name.to_owned() });
    }

    /// Waits no longer for adapters that have been read for as long as `patience`: their format hangs.
    pub(super) fn give_hung_up(&mut self, patience: Duration, now: Instant) {
        let hung = self.attaching.extract_if(.., |_, attempt| now >= attempt.since + patience);
        for (_, Attempt { name, newcomer, .. }) in hung {
            let message = format!("adapter '{name}': its format did not come back from reading it");
            let failure = Failure::new(FailureCode::Stalled, message).with_help("replace its plugin");
            self.worker.tell(Command::Detach { name: name.clone() });
            match newcomer {
                Some(newcomer) => newcomer.refuse(Culprit::Nobody, failure),
                None => drop(self.refused.insert(name, failure)),
            }
        }
    }

    /// Asks it to finish what it has and to end. It waits for no adapter any more, as no request will name one here: those
    /// who are on their way to the model are given back for its next worker.
    #[must_use]
    pub(super) fn dismiss(&mut self, now: Instant) -> Vec<Newcomer> {
        if !self.going {
            (self.going, self.moved_at) = (true, now);
            self.worker.tell(Command::Drain);
        }
        mem::take(&mut self.attaching).into_values().filter_map(|attempt| attempt.newcomer).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.attaching.is_empty()
    }

    pub(super) fn resident(&self, serial: u64) -> Resident {
        let idle = self.is_idle() && !self.going && self.loaded.is_some();
        Resident { serial, bytes: self.bytes, idle, used: self.used }
    }

    pub(super) fn age(&self, catalogue: &Catalogue) -> Age {
        let has =
            |plugins: &[Arc<Plugin>], plugin: &Arc<Plugin>| plugins.iter().any(|known| Arc::ptr_eq(known, plugin));
        if !self.plugins.iter().all(|plugin| has(catalogue.plugins(), plugin)) {
            return Age::Outdated;
        }
        let mut offered = catalogue.samplers().into_iter().chain(catalogue.adapter_formats());
        if offered.all(|(_, plugin)| has(&self.plugins, &plugin)) { Age::Current } else { Age::Behind }
    }

    /// When it has to be ended, if it does not move until then.
    pub(super) fn deadline(&self, load: Duration, farewell: Duration) -> Option<Instant> {
        match (self.going, &self.loaded) {
            (true, _) if self.is_idle() => Some(self.moved_at + farewell),
            (false, None) => Some(self.moved_at + load),
            (false, Some(_)) => self.attaching.values().map(|attempt| attempt.since + load).min(),
            _ => None,
        }
    }
}
