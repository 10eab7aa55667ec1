//! When a model hands requests over to another one, usually one that lives elsewhere: its prompt is too long, its queue is too
//! deep, or it is not loaded and others need the memory. Never without a rule in the configuration.

use super::{Fleet, FleetStats, ModelState, ModelStats};
use pensieve_protocol::job::Failure;

/// A model's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The id of the model that takes over.
    pub to: String,
    /// Prompts that do not fit are handed over.
    pub too_long: bool,
    /// Requests that run or wait from which on further ones are handed over; `None` for never.
    pub streams: Option<u64>,
    /// Requests are handed over while it is not loaded and models with running answers leave too little memory for it.
    pub memory: bool,
}

/// The rules of the model that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverRules {
    /// The model's id.
    pub id: String,
    pub rules: Handover,
}

/// Why a request was handed over, in a word for headers and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverReason {
    TooLong,
    Queue,
    Memory,
}

impl HandoverReason {
    pub fn word(self) -> &'static str {
        match self {
            Self::TooLong => "prompt-too-long",
            Self::Queue => "queue",
            Self::Memory => "memory",
        }
    }
}

impl Fleet {
    /// The rules of the model of this name; `None` if there are none, or if the name chooses an adapter, which others lack.
    pub fn handover(&self, name: &str) -> Result<Option<HandoverRules>, Failure> {
        let config = self.config();
        let route = self.names(&config, |names| names.resolve(name))?;
        let model = &config.models[route.model];
        let rules = model.handover.clone().filter(|_| route.adapter.is_none());
        Ok(rules.map(|rules| HandoverRules { id: model.id.clone(), rules }))
    }

    /// Why the model should not get another request now, if there is a reason.
    pub async fn overflow(&self, model: &HandoverRules) -> Option<HandoverReason> {
        if model.rules.streams.is_none() && !model.rules.memory {
            return None;
        }
        let needed = if model.rules.memory { self.need(&model.id).await } else { None };
        overflow(&self.stats(false).await, model, needed)
    }

    /// Bytes that a model takes when it is loaded, as far as that is known.
    async fn need(&self, id: &str) -> Option<u64> {
        match self.measured(id).await {
            Ok(Some(bytes)) => Some(bytes),
            Ok(None) => self.target(id).await.ok().map(|target| target.card.weight_bytes),
            Err(_) => None,
        }
    }
}

fn overflow(stats: &FleetStats, model: &HandoverRules, needed: Option<u64>) -> Option<HandoverReason> {
    let own = stats.models.iter().find(|own| own.id == model.id)?;
    if model.rules.streams.is_some_and(|most| own.streams + own.waiting >= most) {
        return Some(HandoverReason::Queue);
    }
    if !model.rules.memory || own.state != ModelState::Idle {
        return None;
    }
    // Idle models make room; those with answers, and pinned ones, do not.
    let stays = |other: &&ModelStats| other.id != model.id && (other.pinned || other.streams + other.waiting > 0);
    let taken: u64 = stats.models.iter().filter(stays).map(|other| other.bytes).sum();
    let room = stats.memory_budget.saturating_sub(taken);
    needed.filter(|needed| *needed > room).map(|_| HandoverReason::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str, state: ModelState, streams: u64, bytes: u64) -> ModelStats {
        ModelStats {
            id: id.into(),
            state,
            reason: None,
            streams,
            waiting: 0,
            workers: 0,
            pid: None,
            bytes,
            measured_bytes: None,
            pinned: false,
            expires_in_s: None,
            loads: 0,
            deaths: 0,
            progress: None,
            loaded: None,
            worker: None,
            adapters: Vec::new(),
        }
    }

    #[test]
    fn a_model_hands_over_when_its_queue_is_deep_or_others_need_the_memory() {
        let check = |streams: Option<u64>, memory: bool, models: Vec<ModelStats>, expected| {
            let stats = FleetStats { memory_budget: 100, memory_used: 0, models };
            let rules = Handover { to: "big".into(), too_long: true, streams, memory };
            assert_eq!(overflow(&stats, &HandoverRules { id: "m".into(), rules }, Some(60)), expected);
        };
        let loaded = |streams| model("m", ModelState::Ready, streams, 60);
        check(Some(2), false, vec![loaded(1)], None);
        check(Some(2), false, vec![loaded(2)], Some(HandoverReason::Queue));
        check(None, false, vec![loaded(99)], None);
        let idle = || model("m", ModelState::Idle, 0, 0);
        let other = |streams| model("o", ModelState::Ready, streams, 50);
        check(None, true, vec![idle(), other(0)], None);
        check(None, true, vec![idle(), other(1)], Some(HandoverReason::Memory));
        check(None, true, vec![loaded(0), other(1)], None);
        check(None, true, vec![idle(), ModelStats { pinned: true, ..other(0) }], Some(HandoverReason::Memory));
        check(None, false, vec![idle(), other(1)], None);
    }
}
