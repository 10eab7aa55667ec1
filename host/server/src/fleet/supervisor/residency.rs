//! Which models stay loaded: pinned ones, those with a time of their own, and what changes with a new configuration or on
//! request. And how much memory each claims, once its workers were measured.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Effect, Happening, Note, Supervisor,
    model::{LoadState, Model},
};
use crate::fleet::{
    Config, KeepAlive, ModelConfig,
    memory::{self, MemoryVerdict},
};
use pensieve_protocol::job::{Failure, FailureCode};

/// A need is remembered anew when it grew by more than 1/N.
const GROWTH: u64 = 32;

impl Supervisor {
    pub(super) fn keep(&mut self, index: usize, keep: Option<KeepAlive>) {
        let model = &mut self.models[index];
        let is_gone = keep == Some(KeepAlive::For(Duration::ZERO)) && matches!(model.state, LoadState::Idle);
        // Nothing is left to unload, and the next load is as configured.
        model.keep = if is_gone { None } else { keep };
    }

    pub(super) fn pin(&mut self, index: usize, pin: bool) {
        let model = &mut self.models[index];
        (model.pinned, model.wanted) = (pin, pin);
    }

    /// Unloads a model once its running answers have ended. Waiting requests load it again.
    pub(super) fn unload(&mut self, index: usize, now: Instant) {
        let model = &mut self.models[index];
        (model.pinned, model.wanted, model.keep) = (false, false, None);
        self.let_go(index, "was unloaded before it was ready", now);
    }

    /// Takes a model's worker away from it. The worker finishes its answers.
    fn let_go(&mut self, index: usize, why: &str, now: Instant) {
        let model = &mut self.models[index];
        let Some(worker) = self.workers.values_mut().find(|worker| model.state.is_served_by(worker.serial)) else {
            return;
        };
        model.pending_adapters.extend(worker.drain(now, &mut self.effects));
        if worker.loaded.is_none() {
            self.effects.push(worker.kill(FailureCode::Draining, why));
        }
        model.state = LoadState::Idle;
    }

    /// Applies a new configuration, in which every model has the index that it had before.
    pub(super) fn reconfigure(&mut self, config: &Arc<Config>, now: Instant) {
        let before = std::mem::replace(&mut self.config, config.clone());
        self.models.resize_with(config.models.len(), Model::default);
        for (index, (old, new)) in before.models.iter().zip(&config.models).enumerate() {
            if new.removed && !old.removed {
                (self.models[index].pinned, self.models[index].wanted) = (false, false);
                self.reload(index, now);
                self.models[index].fail_waiting(&removed(&old.id), &mut self.effects);
            } else if !new.loads_like(old) {
                self.reload(index, now);
            }
            self.update_adapters(index, old, new, now);
        }
    }

    /// Ends whatever is under way with the old settings of a model.
    fn reload(&mut self, index: usize, now: Instant) {
        self.let_go(index, "was loading with settings that have changed", now);
        let model = &mut self.models[index];
        match model.state {
            LoadState::Probing => model.is_outdated = true,
            LoadState::AwaitingMemory { .. } => model.forget_plan(),
            LoadState::Pausing { .. } | LoadState::Quarantined { .. } => model.release(),
            LoadState::Idle | LoadState::Loading(_) | LoadState::Ready(_) => {}
        }
        model.deaths.forget();
        model.wanted = model.pinned;
    }

    fn update_adapters(&mut self, index: usize, old: &ModelConfig, new: &ModelConfig, now: Instant) {
        for name in old.adapters.iter().filter(|(name, adapter)| new.adapters.get(*name) != Some(*adapter)) {
            if name.1.merged.is_some() {
                self.registry.forget(index, name.0);
            } else {
                // One that a client has detached meanwhile is gone already.
                let _ = self.detach(index, name.0);
            }
        }
        let serial = match self.models[index].state {
            LoadState::Loading(serial) | LoadState::Ready(serial) => Some(serial),
            _ => None,
        };
        for (name, adapter) in new.adapters.iter().filter(|(name, adapter)| old.adapters.get(*name) != Some(*adapter)) {
            self.registry.insert(index, name.clone(), adapter.clone());
            let is_loaded = |serial: &u64| self.workers.get(serial).is_some_and(|worker| worker.loaded.is_some());
            let Some(serial) = serial.filter(is_loaded).filter(|_| adapter.merged.is_none()) else { continue };
            let reserved = self.reserve(serial);
            let Some(worker) = self.workers.get_mut(&serial) else { continue };
            match reserved {
                Ok(()) => self.effects.push(worker.attach(name.clone(), adapter.location.clone(), None, now)),
                Err(failure) => {
                    let what = Happening::AdapterRefused { name: name.clone(), failure: failure.clone() };
                    worker.refused.insert(name.clone(), failure);
                    self.effects.push(Effect::Note(Note { model: index, what }));
                }
            }
        }
    }

    /// How long a model stays loaded without a request; `None` for as long as there is room.
    pub(super) fn idle_limit(&self, index: usize) -> Option<Duration> {
        let model = &self.models[index];
        match model.keep {
            _ if model.pinned => None,
            Some(KeepAlive::Always) => None,
            Some(KeepAlive::For(time)) => Some(time),
            None => self.config.idle_timeout,
        }
    }

    /// Takes the largest memory that a worker has had so far.
    pub(super) fn on_measured(&mut self, serial: u64, peak: u64, now: Instant) {
        if let Some(worker) = self.workers.get_mut(&serial) {
            worker.peak = worker.peak.max(peak);
            self.claim_measured(serial);
            self.make_room(now);
        }
    }

    /// Replaces a worker's planned memory by what it has been seen to need. Only a worker that has answered shows that.
    pub(super) fn claim_measured(&mut self, serial: u64) {
        let Some(worker) = self.workers.get_mut(&serial) else { return };
        let Some(loaded) = worker.loaded.as_ref().filter(|_| worker.has_answered && worker.peak > 0) else { return };
        let needed = needed(&loaded.device, worker.peak, loaded.weight_bytes, cfg!(target_os = "macos"));
        let Some(peak) = needed else { return };
        let model = &mut self.models[worker.model];
        let known = model.need.measured.unwrap_or(0);
        let claim = memory::claim(worker.planned, Some(peak.max(known)));
        worker.bytes = claim.saturating_add(worker.adapter_bytes);
        if worker.jobs.is_empty() && peak > known.saturating_add(known / GROWTH) {
            model.need.measured = Some(peak);
            self.effects.push(Effect::Remember { key: model.need.key.clone(), bytes: peak });
        }
    }

    /// Evicts idle models if the others have grown beyond the budget.
    fn make_room(&mut self, now: Instant) {
        let MemoryVerdict::AfterEvicting(serials) = memory::admit(self.config.memory_bytes, &self.residents(), 0)
        else {
            return;
        };
        self.evict(&serials, now);
    }

    pub(super) fn evict(&mut self, serials: &[u64], now: Instant) {
        for serial in serials {
            if let Some(worker) = self.workers.get_mut(serial) {
                let evicted = &mut self.models[worker.model];
                evicted.pending_adapters.extend(worker.drain(now, &mut self.effects));
                if evicted.state == LoadState::Ready(*serial) {
                    (evicted.state, evicted.keep) = (LoadState::Idle, None);
                }
            }
        }
    }
}

/// The memory that a worker needs on this device, by what the system counted at most; none where it leaves out the device's.
fn needed(device: &str, peak: u64, weight_bytes: u64, on_macos: bool) -> Option<u64> {
    if device.starts_with("cpu") {
        return Some(peak);
    }
    // A Mac's GPU shares the machine's memory, and its buffers are counted, but not the file's pages that it reads in place.
    (on_macos && device.starts_with("metal")).then(|| peak.saturating_add(weight_bytes))
}

pub(super) fn removed(id: &str) -> Failure {
    let message = format!("model '{id}' was removed from the configuration");
    Failure::new(FailureCode::NotFound, message).with_help("name another model")
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn what_the_system_counts_is_a_need_where_it_counts_the_devices_memory() {
        // Weights on the CPU are counted, whether they are mapped or copied.
        assert_eq!([true, false].map(|on_macos| needed("cpu", 10, 4, on_macos)), [Some(10); 2]);
        assert_eq!(needed("metal:0", 10, 4, true), Some(14));
        assert_eq!((needed("cuda:0", 10, 4, false), needed("metal:0", 10, 4, false)), (None, None));
    }
}
