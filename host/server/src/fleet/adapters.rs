//! Adapters on their way to a model's worker, and away from it. One that comes while the server runs is known to clients
//! once the worker has it; one that the configuration names is known from the beginning, and a request
//! that names it fails with the reason why the worker did not take it.

use std::time::Instant;
use tokio::sync::oneshot;

use super::{
    Adapter, AdapterState, adapter_registry,
    memory::{self, MemoryVerdict, Resident},
    model::LoadState,
    supervisor::Supervisor,
    worker_handle::{AttachAttempt, WorkerHandle},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::{AttachedAdapter, Attachment},
};

/// Why an adapter was not taken in, or not taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFailure {
    /// What of the request it is about.
    pub culprit: Culprit,
    /// What happened.
    pub failure: Failure,
}

/// What of a request about an adapter is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// The model that it belongs to.
    Model,
    /// Its name.
    Name,
    /// Where it was to come from, or what lies there.
    Source,
    /// None of them.
    Other,
}

impl Culprit {
    pub(super) fn of(self, failure: Failure) -> AdapterFailure {
        AdapterFailure { culprit: self, failure }
    }
}

/// An adapter that is to come, and who waits for that.
#[derive(Debug)]
pub(super) struct PendingAdapter {
    pub(super) name: String,
    pub(super) adapter: Adapter,
    pub(super) reply: oneshot::Sender<Result<AttachedAdapter, AdapterFailure>>,
}

impl PendingAdapter {
    pub(super) fn refuse(self, culprit: Culprit, failure: Failure) {
        // The requester may have disconnected.
        let _ = self.reply.send(Err(culprit.of(failure)));
    }
}

/// How many adapters a model takes in at once: each is in memory as a whole while it is read.
const COMING_MAX: usize = 4;

impl Supervisor {
    /// Has a model take in an adapter, as soon as the model is there.
    pub(super) fn attach(&mut self, index: usize, pending: PendingAdapter, now: Instant) {
        let (id, model) = (&self.config.models[index].id, &self.models[index]);
        let (names, name) = (self.registry.of(index), &pending.name);
        let handles = self.handles.values().filter(|handle| handle.model == index);
        let read = handles.flat_map(|handle| handle.attaching.values()).filter_map(|attempt| attempt.pending.as_ref());
        let coming: Vec<&str> = read.chain(&model.pending_adapters).map(|pending| pending.name.as_str()).collect();
        let refused = |culprit, code, what: String, help: &str| {
            Some((culprit, Failure::new(code, format!("model '{id}' {what}")).with_help(help)))
        };
        let refusal = if self.is_closing() {
            Some((Culprit::Other, Failure::new(FailureCode::Draining, "the server is about to end")))
        } else if let LoadState::Quarantined { failure, .. } = &model.state {
            Some((Culprit::Model, failure.clone()))
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
            (Some((culprit, failure)), _) => pending.refuse(culprit, failure),
            (None, LoadState::Ready(serial)) => self.start_attaching(*serial, pending, now),
            (None, _) => self.models[index].pending_adapters.push(pending),
        }
    }

    /// Hands an adapter to a worker, with memory for it.
    pub(super) fn start_attaching(&mut self, serial: u64, pending: PendingAdapter, now: Instant) {
        if let Err(failure) = self.reserve(serial) {
            return pending.refuse(Culprit::Other, failure);
        }
        let Some(handle) = self.handles.get_mut(&serial) else {
            let failure = Failure::new(FailureCode::WorkerLost, "the model's worker has ended");
            return pending.refuse(Culprit::Other, failure);
        };
        let (name, location) = (pending.name.clone(), pending.adapter.location.clone());
        handle.attach(name, location, Some(pending), now);
    }

    /// Sets memory aside for the adapters of a worker that had none so far.
    fn reserve(&mut self, serial: u64) -> Result<(), Failure> {
        let Some(handle) = self.handles.get(&serial) else { return Ok(()) };
        let model = &self.config.models[handle.model];
        if handle.adapter_bytes > 0 || model.adapter_memory == 0 {
            return Ok(());
        }
        let residents: Vec<Resident> = self.handles.iter().map(|(serial, handle)| handle.resident(*serial)).collect();
        if memory::admit(self.config.memory_bytes, &residents, model.adapter_memory) != MemoryVerdict::Fits {
            let (id, bytes) = (&model.id, model.adapter_memory);
            let message = format!("there is no memory left for adapters of model '{id}', which may take {bytes} bytes");
            let help =
                "lower the model's adapter_memory, or name an adapter in its [models.adapters]: then room is kept";
            return Err(Failure::new(FailureCode::Busy, message).with_help(help));
        }
        if let Some(handle) = self.handles.get_mut(&serial) {
            handle.adapter_bytes = model.adapter_memory;
            handle.bytes = handle.bytes.saturating_add(model.adapter_memory);
        }
        Ok(())
    }

    /// Other models may have what was set aside for adapters where none came, or none is left and nothing runs under one.
    pub(super) fn release_adapter_memory(&mut self) {
        for (serial, handle) in &mut self.handles {
            let is_ready = self.models[handle.model].state == LoadState::Ready(*serial);
            if handle.adapter_bytes > 0 && is_ready && handle.is_idle() && !self.registry.has_some(handle.model) {
                handle.bytes = handle.bytes.saturating_sub(handle.adapter_bytes);
                handle.adapter_bytes = 0;
            }
        }
    }

    /// A worker has taken an adapter in, or has not.
    pub(super) fn on_attached(&mut self, serial: u64, attempt: u64, result: Attachment) {
        let Some(handle) = self.handles.get_mut(&serial) else { return };
        // An attempt that was cancelled while the adapter was read has no entry: the worker was told to drop the adapter.
        let Some(AttachAttempt { name, pending, .. }) = handle.attaching.remove(&attempt) else { return };
        let index = handle.model;
        let id = &self.config.models[index].id;
        match &result {
            Ok(adapter) => {
                let (format, pairs, bytes) = (&adapter.format, adapter.pairs, adapter.bytes);
                tracing::info!(model = id, format, pairs, bytes, "adapter '{name}' is there");
            }
            Err(failure) => {
                tracing::error!(
                    model = id,
                    "adapter '{name}': {}",
                    pensieve_protocol::refusal::clean(&failure.to_string())
                );
            }
        }
        match (pending, result) {
            (Some(PendingAdapter { name, adapter, reply }), Ok(attached)) => {
                self.registry.insert(index, name, adapter);
                // The adapter stays even if the requester has disconnected.
                let _ = reply.send(Ok(attached));
            }
            (Some(pending), Err(failure)) => pending.refuse(Culprit::Source, failure),
            (None, Ok(_)) => {}
            (None, Err(mut failure)) => {
                failure.message = format!("adapter '{name}': {}", failure.message);
                handle.refused.insert(name, failure);
            }
        }
    }

    /// Takes an adapter away: no request may name it any more, and workers let it go.
    pub(super) fn detach(&mut self, index: usize, name: &str) -> Result<(), AdapterFailure> {
        let pending = self.take_newcomer(index, name);
        let id = &self.config.models[index].id;
        if let Some(pending) = pending {
            let message = format!("adapter '{name}' was taken away while it was read");
            pending.refuse(Culprit::Name, Failure::new(FailureCode::NotFound, message));
        } else {
            self.registry.remove(index, id, name).map_err(|failure| Culprit::Name.of(failure))?;
        }
        tracing::info!(model = id, "adapter '{name}' is taken away");
        self.handles.values_mut().filter(|handle| handle.model == index).for_each(|handle| handle.detach(name));
        Ok(())
    }

    /// Takes a pending adapter out: one whose requester has not had its answer yet.
    fn take_newcomer(&mut self, index: usize, name: &str) -> Option<PendingAdapter> {
        let waiting = &mut self.models[index].pending_adapters;
        if let Some(place) = waiting.iter().position(|pending| pending.name == name) {
            return Some(waiting.remove(place));
        }
        let handles = self.handles.values_mut().filter(|handle| handle.model == index);
        let mut attempts =
            handles.flat_map(|handle| handle.attaching.values_mut()).filter(|attempt| attempt.name == name);
        attempts.find_map(|attempt| attempt.pending.take())
    }

    /// What is known of a model's adapters.
    pub(super) fn adapter_states(&self, index: usize, handle: Option<&WorkerHandle>) -> Vec<AdapterState> {
        let stats = handle.and_then(|handle| handle.stats.as_ref());
        let state = |(name, adapter): (String, Adapter)| AdapterState {
            merged: adapter.merged.is_some(),
            refusal: handle.and_then(|handle| handle.refused.get(&name)).map(ToString::to_string),
            known: stats.and_then(|stats| stats.adapters.iter().find(|known| known.name == name)).cloned(),
            source: adapter.source,
            name,
        };
        self.registry.of(index).into_iter().map(state).collect()
    }
}
