//! Adapters on their way to a model's worker, and away from it. One that comes while the server runs is known to clients
//! once the worker has it; one that the configuration names is known from the beginning, and whoever asks for it hears
//! why the worker does not take it.

use std::time::Instant;
use tokio::sync::oneshot;

use super::{
    Adapter, AdapterState,
    crew::Crew,
    hand::Hand,
    memory::{self, Resident, Room},
    model::Stage,
    shelf,
};
use crate::{
    job::{Failure, FailureCode},
    wire::{Attachment, Command},
};

/// An adapter that is to come, and who waits for that.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub(super) name: String,
    pub(super) adapter: Adapter,
    pub(super) reply: oneshot::Sender<Attachment>,
}

impl Newcomer {
    pub(super) fn refuse(self, failure: Failure) {
        // Whoever has gone need not hear it.
        let _ = self.reply.send(Err(failure));
    }
}

impl Crew {
    /// Has a model take in an adapter, as soon as the model is there.
    pub(super) fn attach(&mut self, index: usize, newcomer: Newcomer, now: Instant) {
        let (id, model) = (&self.config.models[index].id, &self.models[index]);
        let (names, name) = (self.shelf.of(index), &newcomer.name);
        let hands = self.hands.values().filter(|hand| hand.model == index && !hand.going);
        let invalid = |what: &str, help: &str| {
            let message = format!("model '{id}' {what}");
            Some(Failure::new(FailureCode::Invalid, message).with_help(help))
        };
        let refusal = if self.is_closing() {
            Some(Failure::new(FailureCode::Draining, "the server is about to end"))
        } else if let Stage::Quarantined { failure, .. } = &model.stage {
            Some(failure.clone())
        } else if names.contains_key(name) {
            invalid(&format!("has an adapter '{name}' already"), "DELETE it first, or choose another name")
        } else if model.newcomers.iter().any(|other| other.name == *name)
            || hands.clone().any(|hand| hand.attaching.contains_key(name))
        {
            invalid(&format!("is taking in an adapter '{name}' already"), "wait for that, or choose another name")
        } else if names.len() + model.newcomers.len() >= shelf::ADAPTERS_MAX {
            invalid(&format!("has {} adapters already", names.len()), "DELETE some first")
        } else {
            None
        };
        match (refusal, &model.stage) {
            (Some(failure), _) => newcomer.refuse(failure),
            (None, Stage::Ready(serial)) => self.bring(*serial, newcomer, now),
            (None, _) => self.models[index].newcomers.push(newcomer),
        }
    }

    /// Hands an adapter to a worker, with memory for it.
    pub(super) fn bring(&mut self, serial: u64, newcomer: Newcomer, now: Instant) {
        if let Err(failure) = self.reserve(serial) {
            return newcomer.refuse(failure);
        }
        let Some(hand) = self.hands.get_mut(&serial) else {
            return newcomer.refuse(Failure::new(FailureCode::WorkerLost, "the model's worker has ended"));
        };
        let (name, path) = (newcomer.name.clone(), newcomer.adapter.path.clone());
        hand.attach(name, path, Some(newcomer), now);
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

    /// A worker has taken an adapter in, or has not.
    pub(super) fn attached(&mut self, serial: u64, name: String, result: Attachment) {
        let Some(hand) = self.hands.get_mut(&serial) else { return };
        let (index, newcomer) = (hand.model, hand.attaching.remove(&name).flatten());
        let id = &self.config.models[index].id;
        match &result {
            Ok(adapter) => {
                let (format, pairs, bytes) = (&adapter.format, adapter.pairs, adapter.bytes);
                tracing::info!(model = id, format, pairs, bytes, "adapter '{name}' is there");
            }
            Err(failure) => {
                tracing::error!(model = id, "adapter '{name}': {}", super::refusal::clean(&failure.to_string()));
            }
        }
        match (newcomer, result) {
            (Some(Newcomer { name, adapter, reply }), Ok(attached)) => {
                self.shelf.insert(index, name, adapter);
                // It stays, whether or not somebody still waits to hear of it.
                let _ = reply.send(Ok(attached));
            }
            (Some(newcomer), Err(failure)) => newcomer.refuse(failure),
            // It was taken away while it was read: nobody may ask for it, and another one may take its name.
            (None, result) if !self.shelf.of(index).contains_key(&name) => {
                if result.is_ok() {
                    hand.worker.tell(Command::Detach { name });
                }
            }
            (None, Ok(_)) => {}
            (None, Err(mut failure)) => {
                failure.message = format!("adapter '{name}': {}", failure.message);
                hand.refused.insert(name, failure);
            }
        }
    }

    /// An adapter was taken away: workers let it go.
    pub(super) fn detach(&mut self, index: usize, name: &str) {
        tracing::info!(model = self.config.models[index].id, "adapter '{name}' is taken away");
        for hand in self.hands.values_mut().filter(|hand| hand.model == index) {
            hand.refused.remove(name);
            hand.worker.tell(Command::Detach { name: name.to_owned() });
        }
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
