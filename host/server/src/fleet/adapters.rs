//! Adapters on their way to a model's worker, and away from it. One that comes while the server runs is known to clients
//! once the worker has it; one that the configuration names is known from the beginning, and whoever asks for it hears
//! why the worker does not take it.

use std::time::Instant;
use tokio::sync::oneshot;

use super::{
    Adapter, AdapterState,
    crew::Crew,
    hand::{Attempt, Hand},
    memory::{self, Resident, Room},
    model::Stage,
    shelf,
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
    Nobody,
}

impl Culprit {
    pub(super) fn of(self, failure: Failure) -> AdapterFailure {
        AdapterFailure { culprit: self, failure }
    }
}

/// An adapter that is to come, and who waits for that.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub(super) name: String,
    pub(super) adapter: Adapter,
    pub(super) reply: oneshot::Sender<Result<AttachedAdapter, AdapterFailure>>,
}

impl Newcomer {
    pub(super) fn refuse(self, culprit: Culprit, failure: Failure) {
        // Whoever has gone need not hear it.
        let _ = self.reply.send(Err(culprit.of(failure)));
    }
}

/// How many adapters a model takes in at once: each is in memory as a whole while it is read.
const COMING_MAX: usize = 4;

impl Crew {
    /// Has a model take in an adapter, as soon as the model is there.
    pub(super) fn attach(&mut self, index: usize, newcomer: Newcomer, now: Instant) {
        let (id, model) = (&self.config.models[index].id, &self.models[index]);
        let (names, name) = (self.shelf.of(index), &newcomer.name);
        let hands = self.hands.values().filter(|hand| hand.model == index);
        let read = hands.flat_map(|hand| hand.attaching.values()).filter_map(|attempt| attempt.newcomer.as_ref());
        let coming: Vec<&str> = read.chain(&model.newcomers).map(|newcomer| newcomer.name.as_str()).collect();
        let refused = |culprit, code, what: String, help: &str| {
            Some((culprit, Failure::new(code, format!("model '{id}' {what}")).with_help(help)))
        };
        let refusal = if self.is_closing() {
            Some((Culprit::Nobody, Failure::new(FailureCode::Draining, "the server is about to end")))
        } else if let Stage::Quarantined { failure, .. } = &model.stage {
            Some((Culprit::Model, failure.clone()))
        } else if names.contains_key(name) {
            let (what, help) = (format!("has an adapter '{name}' already"), "DELETE it first, or choose another name");
            refused(Culprit::Name, FailureCode::Conflict, what, help)
        } else if coming.contains(&name.as_str()) {
            let what = format!("is taking in an adapter '{name}' already");
            refused(Culprit::Name, FailureCode::Conflict, what, "wait for that, or choose another name")
        } else if coming.len() >= COMING_MAX {
            let what = format!("is taking in {} adapters already", coming.len());
            refused(Culprit::Nobody, FailureCode::Busy, what, "try again later")
        } else if names.len() + coming.len() >= shelf::ADAPTERS_MAX {
            let what = format!("has {} adapters, and {} are on their way", names.len(), coming.len());
            refused(Culprit::Nobody, FailureCode::Conflict, what, "it takes no more: DELETE some first")
        } else {
            None
        };
        match (refusal, &model.stage) {
            (Some((culprit, failure)), _) => newcomer.refuse(culprit, failure),
            (None, Stage::Ready(serial)) => self.bring(*serial, newcomer, now),
            (None, _) => self.models[index].newcomers.push(newcomer),
        }
    }

    /// Hands an adapter to a worker, with memory for it.
    pub(super) fn bring(&mut self, serial: u64, newcomer: Newcomer, now: Instant) {
        if let Err(failure) = self.reserve(serial) {
            return newcomer.refuse(Culprit::Nobody, failure);
        }
        let Some(hand) = self.hands.get_mut(&serial) else {
            let failure = Failure::new(FailureCode::WorkerLost, "the model's worker has ended");
            return newcomer.refuse(Culprit::Nobody, failure);
        };
        let (name, location) = (newcomer.name.clone(), newcomer.adapter.location.clone());
        hand.attach(name, location, Some(newcomer), now);
    }

    /// Sets memory aside for the adapters of a worker that had none so far.
    fn reserve(&mut self, serial: u64) -> Result<(), Failure> {
        let Some(hand) = self.hands.get(&serial) else { return Ok(()) };
        let model = &self.config.models[hand.model];
        if hand.adapter_bytes > 0 || model.adapter_bytes == 0 {
            return Ok(());
        }
        let residents: Vec<Resident> = self.hands.iter().map(|(serial, hand)| hand.resident(*serial)).collect();
        if memory::room(self.config.memory_bytes, &residents, model.adapter_bytes) != Room::Yes {
            let (id, bytes) = (&model.id, model.adapter_bytes);
            let message = format!("there is no memory left for adapters of model '{id}', which may take {bytes} bytes");
            let help =
                "lower the model's adapter_memory, or name an adapter in its [models.adapters]: then room is kept";
            return Err(Failure::new(FailureCode::Busy, message).with_help(help));
        }
        if let Some(hand) = self.hands.get_mut(&serial) {
            hand.adapter_bytes = model.adapter_bytes;
            hand.bytes = hand.bytes.saturating_add(model.adapter_bytes);
        }
        Ok(())
    }

    /// Other models may have what was set aside for adapters where none came, or none is left and nothing runs under one.
    pub(super) fn give_back_room(&mut self) {
        for (serial, hand) in &mut self.hands {
            let is_ready = self.models[hand.model].stage == Stage::Ready(*serial);
            if hand.adapter_bytes > 0 && is_ready && hand.is_idle() && !self.shelf.has_some(hand.model) {
                hand.bytes = hand.bytes.saturating_sub(hand.adapter_bytes);
                hand.adapter_bytes = 0;
            }
        }
    }

    /// A worker has taken an adapter in, or has not.
    pub(super) fn attached(&mut self, serial: u64, attempt: u64, result: Attachment) {
        let Some(hand) = self.hands.get_mut(&serial) else { return };
        // One that was taken away or given up while it was read is nobody's: the worker was told to let it go.
        let Some(Attempt { name, newcomer, .. }) = hand.attaching.remove(&attempt) else { return };
        let index = hand.model;
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
        match (newcomer, result) {
            (Some(Newcomer { name, adapter, reply }), Ok(attached)) => {
                self.shelf.insert(index, name, adapter);
                // It stays, whether or not somebody still waits to hear of it.
                let _ = reply.send(Ok(attached));
            }
            (Some(newcomer), Err(failure)) => newcomer.refuse(Culprit::Source, failure),
            (None, Ok(_)) => {}
            (None, Err(mut failure)) => {
                failure.message = format!("adapter '{name}': {}", failure.message);
                hand.refused.insert(name, failure);
            }
        }
    }

    /// Takes an adapter away: no request may name it any more, and workers let it go.
    pub(super) fn detach(&mut self, index: usize, name: &str) -> Result<(), AdapterFailure> {
        let newcomer = self.take_newcomer(index, name);
        let id = &self.config.models[index].id;
        if let Some(newcomer) = newcomer {
            let message = format!("adapter '{name}' was taken away while it was read");
            newcomer.refuse(Culprit::Name, Failure::new(FailureCode::NotFound, message));
        } else {
            self.shelf.remove(index, id, name).map_err(|failure| Culprit::Name.of(failure))?;
        }
        tracing::info!(model = id, "adapter '{name}' is taken away");
        self.hands.values_mut().filter(|hand| hand.model == index).for_each(|hand| hand.detach(name));
        Ok(())
    }

    /// One that is on its way, and that nobody has been told of as there.
    fn take_newcomer(&mut self, index: usize, name: &str) -> Option<Newcomer> {
        let waiting = &mut self.models[index].newcomers;
        if let Some(place) = waiting.iter().position(|newcomer| newcomer.name == name) {
            return Some(waiting.remove(place));
        }
        let hands = self.hands.values_mut().filter(|hand| hand.model == index);
        let mut attempts = hands.flat_map(|hand| hand.attaching.values_mut()).filter(|attempt| attempt.name == name);
        attempts.find_map(|attempt| attempt.newcomer.take())
    }

    /// What is known of a model's adapters.
    pub(super) fn adapter_states(&self, index: usize, hand: Option<&Hand>) -> Vec<AdapterState> {
        let stats = hand.and_then(|hand| hand.stats.as_ref());
        let state = |(name, adapter): (String, Adapter)| AdapterState {
            merged: adapter.merged.is_some(),
            refusal: hand.and_then(|hand| hand.refused.get(&name)).map(ToString::to_string),
            known: stats.and_then(|stats| stats.adapters.iter().find(|known| known.name == name)).cloned(),
            source: adapter.source,
            name,
        };
        self.shelf.of(index).into_iter().map(state).collect()
    }
}
