//! Adapters on their way to a model's worker, and away from it. An adapter attached at run time becomes known to
//! clients once the worker has loaded it. One from the configuration is known from the beginning; if the worker refused
//! it, requests that name it fail with the reason.

use std::time::Instant;

use super::{
    Effect, Happening, Note, Supervisor,
    model::LoadState,
    shutdown::ending,
    worker_state::{AttachAttempt, PendingAdapter, WorkerState},
};
use crate::fleet::{
    Adapter, AdapterState,
    adapter_registry::{self, AdapterFailure, Culprit},
    memory::{self, MemoryVerdict},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::Attachment,
};

/// Maximum number of adapters that a model reads at once; each is held in memory as a whole.
const COMING_MAX: usize = 4;

impl Supervisor {
    /// Attaches an adapter to a model, once the model is loaded.
    pub(super) fn attach(&mut self, index: usize, pending: PendingAdapter, now: Instant) {
        let (id, model) = (&self.config.models[index].id, &self.models[index]);
        let (names, name) = (self.registry.of(index), &pending.name);
        let workers = self.workers.values().filter(|worker| worker.model == index);
        let read = workers.flat_map(|worker| worker.attaching.values()).filter_map(|attempt| attempt.pending.as_ref());
        let coming: Vec<&str> = read.chain(&model.pending_adapters).map(|pending| pending.name.as_str()).collect();
        let refused = |culprit, code, what: String, help: &str| {
            Some((culprit, Failure::new(code, format!("model '{id}' {what}")).with_help(help)))
        };
        let refusal = if self.closing.is_some() {
            Some((Culprit::Other, ending()))
        } else if let LoadState::Quarantined { until, failure } = &model.state {
            let retry_after = Some(until.saturating_duration_since(now));
            Some((Culprit::Model, Failure { retry_after, ..failure.clone() }))
        } else if names.contains_key(name) {
            let (what, help) = (format!("has an adapter '{name}' already"), "DELETE it first, or choose another name");
            refused(Culprit::Name, FailureCode::Conflict, what, help)
        } else if coming.contains(&name.as_str()) {
            let what = format!("is taking in an adapter '{name}' already");
            refused(Culprit::Name, FailureCode::Conflict, what, "wait for that, or choose another name")
        } else if coming.len() >= COMING_MAX {
            let what = format!("is taking in {} adapters already", coming.len());
            refused(Culprit::Other, FailureCode::Busy, what, "try again later")
        } else if names.len() + coming.len() >= adapter_registry::ADAPTERS_MAX {
            let what = format!("has {} adapters, and {} are on their way", names.len(), coming.len());
            refused(Culprit::Other, FailureCode::Conflict, what, "it takes no more: DELETE some first")
        } else {
            None
        };
        match (refusal, &model.state) {
            (Some((culprit, failure)), _) => self.effects.push(pending.refuse(culprit, failure)),
            (None, LoadState::Ready(serial)) => self.start_attaching(*serial, pending, now),
            (None, _) => self.models[index].pending_adapters.push(pending),
        }
    }

    /// Sends an adapter to a worker, and reserves memory for it.
    pub(super) fn start_attaching(&mut self, serial: u64, pending: PendingAdapter, now: Instant) {
        if let Err(failure) = self.reserve(serial) {
            return self.effects.push(pending.refuse(Culprit::Other, failure));
        }
        let Some(worker) = self.workers.get_mut(&serial) else {
            let failure = Failure::new(FailureCode::WorkerLost, "the model's worker has ended");
            return self.effects.push(pending.refuse(Culprit::Other, failure));
        };
        let (name, location) = (pending.name.clone(), pending.adapter.location.clone());
        self.effects.push(worker.attach(name, location, Some(pending), now));
    }

    /// Reserves memory for the adapters of a worker that had none so far.
    pub(super) fn reserve(&mut self, serial: u64) -> Result<(), Failure> {
        let Some(worker) = self.workers.get(&serial) else { return Ok(()) };
        let model = &self.config.models[worker.model];
        let (id, bytes) = (&model.id, model.spec.adapter_memory);
        if worker.adapter_bytes > 0 || bytes == 0 {
            return Ok(());
        }
        if memory::admit(self.config.memory_bytes, &self.residents(), bytes) != MemoryVerdict::Fits {
            let message = format!("there is no memory left for adapters of model '{id}', which may take {bytes} bytes");
            let help =
                "lower the model's adapter_memory, or name an adapter in its [models.adapters]: then room is kept";
            return Err(Failure::new(FailureCode::Busy, message).with_help(help));
        }
        if let Some(worker) = self.workers.get_mut(&serial) {
            worker.adapter_bytes = bytes;
            worker.bytes = worker.bytes.saturating_add(bytes);
        }
        Ok(())
    }

    /// Releases memory reserved for adapters of workers that are idle and have none left.
    pub(super) fn release_adapter_memory(&mut self) {
        for (serial, worker) in &mut self.workers {
            let is_ready = self.models[worker.model].state == LoadState::Ready(*serial);
            if worker.adapter_bytes > 0 && is_ready && worker.is_idle() && !self.registry.has_some(worker.model) {
                worker.bytes = worker.bytes.saturating_sub(worker.adapter_bytes);
                worker.adapter_bytes = 0;
            }
        }
    }

    pub(super) fn on_attached(&mut self, serial: u64, attempt: u64, result: Attachment) {
        let Some(worker) = self.workers.get_mut(&serial) else { return };
        // An attempt that was cancelled while the adapter was being read has no entry: the worker was told to drop the
        // adapter.
        let Some(AttachAttempt { name, pending, .. }) = worker.attaching.remove(&attempt) else { return };
        let index = worker.model;
        let what = match result.clone() {
            Ok(adapter) => Happening::AdapterAttached { name: name.clone(), adapter },
            Err(failure) => Happening::AdapterRefused { name: name.clone(), failure },
        };
        self.effects.push(Effect::Note(Note { model: index, what }));
        match (pending, result) {
            (Some(PendingAdapter { name, adapter, ticket }), Ok(attached)) => {
                // The adapter stays even if the requester has disconnected.
                self.registry.insert(index, name, adapter);
                self.effects.push(Effect::Answer { ticket, answer: Ok(Some(attached)) });
            }
            (Some(pending), Err(failure)) => self.effects.push(pending.refuse(Culprit::Source, failure)),
            (None, Ok(_)) => {}
            (None, Err(mut failure)) => {
                failure.message = format!("adapter '{name}': {}", failure.message);
                worker.refused.insert(name, failure);
            }
        }
    }

    /// Detaches an adapter: requests can no longer name it, and workers drop it.
    pub(super) fn detach(&mut self, index: usize, name: &str) -> Result<(), AdapterFailure> {
        let pending = self.take_newcomer(index, name);
        let id = &self.config.models[index].id;
        if let Some(pending) = pending {
            let message = format!("adapter '{name}' was taken away while it was read");
            let refused = pending.refuse(Culprit::Name, Failure::new(FailureCode::NotFound, message));
            self.effects.push(refused);
        } else {
            self.registry.remove(index, id, name).map_err(|failure| Culprit::Name.of(failure))?;
        }
        let what = Happening::AdapterDetached { name: name.to_owned() };
        self.effects.push(Effect::Note(Note { model: index, what }));
        let workers = self.workers.values_mut().filter(|worker| worker.model == index);
        self.effects.extend(workers.map(|worker| worker.detach(name)));
        Ok(())
    }

    /// Removes a pending adapter whose requester has not been answered yet.
    fn take_newcomer(&mut self, index: usize, name: &str) -> Option<PendingAdapter> {
        let waiting = &mut self.models[index].pending_adapters;
        if let Some(place) = waiting.iter().position(|pending| pending.name == name) {
            return Some(waiting.remove(place));
        }
        let workers = self.workers.values_mut().filter(|worker| worker.model == index);
        let mut attempts =
            workers.flat_map(|worker| worker.attaching.values_mut()).filter(|attempt| attempt.name == name);
        attempts.find_map(|attempt| attempt.pending.take())
    }

    pub(super) fn adapter_states(&self, index: usize, worker: Option<&WorkerState>) -> Vec<AdapterState> {
        let stats = worker.and_then(|worker| worker.stats.as_ref());
        let state = |(name, adapter): (String, Adapter)| AdapterState {
            merged: adapter.merged.is_some(),
            refusal: worker.and_then(|worker| worker.refused.get(&name)).map(ToString::to_string),
            known: stats.and_then(|stats| stats.adapters.iter().find(|known| known.name == name)).cloned(),
            source: adapter.source,
            name,
        };
        self.registry.of(index).into_iter().map(state).collect()
    }
}
