//! A worker as the supervisor sees it: what it runs, which jobs it serves, and whether it is draining.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use super::Effect;
use crate::fleet::{
    Adapter,
    adapter_registry::Culprit,
    plugins::{Catalogue, Plugin},
    stats::Progress,
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::{self, Command, Location},
};

#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) serial: u64,
    pub(super) model: usize,
    pub(super) pid: Option<u32>,
    /// The plugins that it has mapped, kept alive so that their copies stay on disk.
    pub(super) plugins: Vec<Arc<Plugin>>,
    /// Its claim of memory in bytes, estimated from the card until it was measured.
    pub(super) bytes: u64,
    pub(super) adapter_bytes: u64,
    /// Bytes that it may take by its card, without adapters.
    pub(super) planned: u64,
    /// The largest memory of its process so far; 0 if unknown.
    pub(super) peak: u64,
    /// An answer of it has ended, so its memory tells what the model needs.
    pub(super) has_answered: bool,
    /// Its jobs; cancelled ones count until the worker has ended them.
    pub(super) jobs: HashSet<u64>,
    pub(super) jobs_max: usize,
    /// Adapters that it is still reading, by attempt. Answers to other attempts are ignored.
    pub(super) attaching: BTreeMap<u64, AttachAttempt>,
    attempts: u64,
    /// Adapters that it refused, with the reasons.
    pub(super) refused: HashMap<String, Failure>,
    pub(super) progress: Option<Progress>,
    pub(super) loaded: Option<wire::Loaded>,
    pub(super) stats: Option<wire::Stats>,
    /// It gets no more jobs, and exits when it has none left.
    pub(super) draining: bool,
    /// Last use: in logical time for the LRU order, and in clock time.
    pub(super) used: u64,
    pub(super) used_at: Instant,
    /// Time of the last progress; the watchdog compares it with the deadline of a load or of draining.
    pub(super) progressed_at: Instant,
}

#[derive(Debug)]
pub(super) struct WaitingJob {
    pub(super) job: u64,
    pub(super) client: u64,
    pub(super) adapter: Option<String>,
}

/// An adapter to attach, and the ticket of the request that waits for it.
#[derive(Debug)]
pub(in crate::fleet) struct PendingAdapter {
    pub(in crate::fleet) name: String,
    pub(in crate::fleet) adapter: Adapter,
    pub(in crate::fleet) ticket: u64,
}

#[derive(Debug)]
pub(super) struct AttachAttempt {
    pub(super) name: String,
    /// The request that waits for it; `None` for an adapter from the configuration.
    pub(super) pending: Option<PendingAdapter>,
    pub(super) since: Instant,
}

/// How a worker's plugins compare with those that a new worker would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginFreshness {
    /// They are the same.
    Current,
    /// More plugins are available now, which it would get by a restart.
    Behind,
    /// One of its plugins was replaced or removed.
    Outdated,
}

impl PendingAdapter {
    pub(super) fn refuse(self, culprit: Culprit, failure: Failure) -> Effect {
        Effect::Answer { ticket: self.ticket, answer: Err(culprit.of(failure)) }
    }
}

impl WorkerState {
    pub(super) fn new(serial: u64, model: usize, plugins: Vec<Arc<Plugin>>, jobs_max: usize, now: Instant) -> Self {
        Self {
            serial,
            model,
            pid: None,
            plugins,
            bytes: 0,
            adapter_bytes: 0,
            planned: 0,
            peak: 0,
            has_answered: false,
            jobs: HashSet::new(),
            jobs_max,
            attaching: BTreeMap::new(),
            attempts: 0,
            refused: HashMap::new(),
            progress: None,
            loaded: None,
            stats: None,
            draining: false,
            used: 0,
            used_at: now,
            progressed_at: now,
        }
    }

    pub(super) fn send(&self, command: Command) -> Effect {
        Effect::Send { serial: self.serial, command }
    }

    pub(super) fn kill(&self, code: FailureCode, why: &str) -> Effect {
        Effect::Kill { serial: self.serial, reason: Failure::new(code, why) }
    }

    /// Submits a job, unless the worker has too many or has refused the job's adapter.
    pub(super) fn submit(&mut self, WaitingJob { job, adapter, .. }: WaitingJob) -> Effect {
        if self.jobs.len() >= self.jobs_max {
            let message = format!("{} jobs run or wait at this model's worker", self.jobs_max);
            let failure = Failure::new(FailureCode::Busy, message).with_help("try again later");
            return Effect::Fail { job, failure };
        }
        if let Some(failure) = adapter.and_then(|adapter| self.refused.get(&adapter)) {
            return Effect::Fail { job, failure: failure.clone() };
        }
        self.jobs.insert(job);
        Effect::Submit { serial: self.serial, job }
    }

    pub(super) fn refuse_attachments(&mut self, failure: &Failure, effects: &mut Vec<Effect>) {
        let pending = mem::take(&mut self.attaching).into_values().filter_map(|attempt| attempt.pending);
        effects.extend(pending.map(|pending| pending.refuse(Culprit::Other, failure.clone())));
    }

    pub(super) fn attach(
        &mut self,
        name: String,
        location: Location,
        pending: Option<PendingAdapter>,
        now: Instant,
    ) -> Effect {
        self.attempts += 1;
        self.attaching.insert(self.attempts, AttachAttempt { name: name.clone(), pending, since: now });
        self.send(Command::Attach { attempt: self.attempts, name, location })
    }

    /// Makes the worker drop a detached adapter, even if it is still reading it.
    pub(super) fn detach(&mut self, name: &str) -> Effect {
        self.attaching.retain(|_, attempt| attempt.name != name);
        self.refused.remove(name);
        self.send(Command::Detach { name: name.to_owned() })
    }

    /// Gives up on adapters that have been read for longer than `patience`: their format hangs.
    pub(super) fn refuse_hung_attachments(&mut self, patience: Duration, now: Instant, effects: &mut Vec<Effect>) {
        let hung: Vec<_> = self.attaching.extract_if(.., |_, attempt| now >= attempt.since + patience).collect();
        for (_, AttachAttempt { name, pending, .. }) in hung {
            let message = format!("adapter '{name}': its format did not come back from reading it");
            let failure = Failure::new(FailureCode::Stalled, message).with_help("replace its plugin");
            effects.push(self.send(Command::Detach { name: name.clone() }));
            match pending {
                Some(pending) => effects.push(pending.refuse(Culprit::Other, failure)),
                None => drop(self.refused.insert(name, failure)),
            }
        }
    }

    /// Asks the worker to finish its jobs and exit. Returns the adapters that it was still attaching, for the model's
    /// next worker.
    #[must_use]
    pub(super) fn drain(&mut self, now: Instant, effects: &mut Vec<Effect>) -> Vec<PendingAdapter> {
        if !self.draining {
            (self.draining, self.progressed_at) = (true, now);
            effects.push(self.send(Command::Drain));
        }
        mem::take(&mut self.attaching).into_values().filter_map(|attempt| attempt.pending).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.attaching.is_empty()
    }

    pub(super) fn freshness(&self, catalogue: &Catalogue) -> PluginFreshness {
        if !self.plugins.iter().all(|plugin| catalogue.has(plugin)) {
            return PluginFreshness::Outdated;
        }
        let mut offered = catalogue.samplers().into_iter().chain(catalogue.adapter_formats());
        if offered.all(|(_, plugin)| self.plugins.iter().any(|own| Arc::ptr_eq(own, &plugin))) {
            PluginFreshness::Current
        } else {
            PluginFreshness::Behind
        }
    }

    /// When the worker is killed unless it makes progress; `None` for no deadline.
    pub(super) fn deadline(&self, load: Duration, drain: Duration) -> Option<Instant> {
        match (self.draining, &self.loaded) {
            (true, _) if self.is_idle() => Some(self.progressed_at + drain),
            (false, None) => Some(self.progressed_at + load),
            (false, Some(_)) => self.attaching.values().map(|attempt| attempt.since + load).min(),
            _ => None,
        }
    }
}
