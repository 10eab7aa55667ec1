//! A worker as the supervisor sees it: what it runs, which jobs it serves, and whether it is draining.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    adapters::{Culprit, PendingAdapter},
    memory::Resident,
    plugins::{Catalogue, Plugin},
    stats::Progress,
    streams::{JobStreams, UpdateSender},
    worker::Worker,
};
use pensieve_protocol::{
    job::{Failure, FailureCode, Job},
    wire::{self, Command, Location},
};

/// A worker and its streams.
#[derive(Debug)]
pub(super) struct WorkerHandle {
    pub(super) worker: Worker,
    pub(super) model: usize,
    /// What it has mapped; kept so that the copies stay.
    pub(super) plugins: Vec<Arc<Plugin>>,
    /// What it takes, by the card.
    pub(super) bytes: u64,
    /// Its jobs' streams, which the task that reads its socket serves.
    pub(super) streams: JobStreams,
    /// How many jobs it may have; those that are cancelled count until the worker has ended them.
    pub(super) jobs_max: usize,
    /// What of its bytes is for adapters.
    pub(super) adapter_bytes: u64,
    /// Adapters that it is still reading, by the numbers of the attempts. An answer to any other is of no interest any more.
    pub(super) attaching: BTreeMap<u64, AttachAttempt>,
    /// The number of the last attempt.
    pub(super) attempts: u64,
    /// Adapters that it does not take, and why.
    pub(super) refused: HashMap<String, Failure>,
    /// How far its load is.
    pub(super) progress: Option<Progress>,
    pub(super) loaded: Option<wire::Loaded>,
    pub(super) stats: Option<wire::Stats>,
    /// It takes no more jobs and ends when it has none.
    pub(super) draining: bool,
    /// When it was used last: in the order of uses, and by the clock.
    pub(super) used: u64,
    pub(super) used_at: Instant,
    /// When it last did what it is waited for.
    pub(super) progressed_at: Instant,
}

/// An adapter that a worker is reading.
#[derive(Debug)]
pub(super) struct AttachAttempt {
    pub(super) name: String,
    /// The request that waits for it; none for an adapter of the configuration.
    pub(super) pending: Option<PendingAdapter>,
    pub(super) since: Instant,
}

/// How a worker's plugins compare with those that a new one would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginFreshness {
    /// They are the same.
    Current,
    /// There are more by now, which it could offer after a new start.
    Behind,
    /// One of them was replaced or removed.
    Outdated,
}

impl WorkerHandle {
    pub(super) fn submit(&mut self, job: Job, updates: UpdateSender) {
        if self.streams.len() >= self.jobs_max {
            let message = format!("{} jobs run or wait at this model's worker", self.jobs_max);
            return updates.fail(Failure::new(FailureCode::Busy, message).with_help("try again later"));
        }
        if let Some(failure) = job.adapter.as_ref().and_then(|wish| self.refused.get(&wish.name)) {
            return updates.fail(failure.clone());
        }
        self.streams.insert(&job, updates);
        self.worker.send(Command::Submit(job));
    }

    /// Ends every stream and every pending adapter with this failure.
    pub(super) fn fail(&mut self, failure: &Failure) {
        self.streams.fail(failure);
        for pending in mem::take(&mut self.attaching).into_values().filter_map(|attempt| attempt.pending) {
            pending.refuse(Culprit::Other, failure.clone());
        }
    }

    /// Has it read an adapter.
    pub(super) fn attach(&mut self, name: String, location: Location, pending: Option<PendingAdapter>, now: Instant) {
        self.attempts += 1;
        self.worker.send(Command::Attach { attempt: self.attempts, name: name.clone(), location });
        self.attaching.insert(self.attempts, AttachAttempt { name, pending, since: now });
    }

    /// Has it forget an adapter that was taken away, whether it has that or is still reading it.
    pub(super) fn detach(&mut self, name: &str) {
        self.attaching.retain(|_, attempt| attempt.name != name);
        self.refused.remove(name);
        self.worker.send(Command::Detach { name: name.to_owned() });
    }

    /// Waits no longer for adapters that have been read for as long as `patience`: their format hangs.
    pub(super) fn fail_hung_attachments(&mut self, patience: Duration, now: Instant) {
        let hung = self.attaching.extract_if(.., |_, attempt| now >= attempt.since + patience);
        for (_, AttachAttempt { name, pending, .. }) in hung {
            let message = format!("adapter '{name}': its format did not come back from reading it");
            let failure = Failure::new(FailureCode::Stalled, message).with_help("replace its plugin");
            self.worker.send(Command::Detach { name: name.clone() });
            match pending {
                Some(pending) => pending.refuse(Culprit::Other, failure),
                None => drop(self.refused.insert(name, failure)),
            }
        }
    }

    /// Asks it to finish what it has and to end. It waits for no adapter any more, as no request will name one here: those
    /// who are on their way to the model are given back for its next worker.
    #[must_use]
    pub(super) fn drain(&mut self, now: Instant) -> Vec<PendingAdapter> {
        if !self.draining {
            (self.draining, self.progressed_at) = (true, now);
            self.worker.send(Command::Drain);
        }
        mem::take(&mut self.attaching).into_values().filter_map(|attempt| attempt.pending).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty() && self.attaching.is_empty()
    }

    pub(super) fn resident(&self, serial: u64) -> Resident {
        let idle = self.is_idle() && !self.draining && self.loaded.is_some();
        Resident { serial, bytes: self.bytes, idle, used: self.used }
    }

    pub(super) fn freshness(&self, catalogue: &Catalogue) -> PluginFreshness {
        let has =
            |plugins: &[Arc<Plugin>], plugin: &Arc<Plugin>| plugins.iter().any(|known| Arc::ptr_eq(known, plugin));
        if !self.plugins.iter().all(|plugin| has(catalogue.plugins(), plugin)) {
            return PluginFreshness::Outdated;
        }
        let mut offered = catalogue.samplers().into_iter().chain(catalogue.adapter_formats());
        if offered.all(|(_, plugin)| has(&self.plugins, &plugin)) {
            PluginFreshness::Current
        } else {
            PluginFreshness::Behind
        }
    }

    /// When it has to be ended, if it does not move until then.
    pub(super) fn deadline(&self, load: Duration, drain: Duration) -> Option<Instant> {
        match (self.draining, &self.loaded) {
            (true, _) if self.is_idle() => Some(self.progressed_at + drain),
            (false, None) => Some(self.progressed_at + load),
            (false, Some(_)) => self.attaching.values().map(|attempt| attempt.since + load).min(),
            _ => None,
        }
    }
}
