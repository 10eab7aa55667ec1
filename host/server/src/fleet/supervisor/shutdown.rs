//! The end of a server: running answers may finish for a while, then their workers are killed.

use std::time::{Duration, Instant};

use super::{Effect, Supervisor, model::LoadState};
use pensieve_protocol::job::{Failure, FailureCode};

/// Time for a killed worker to exit.
pub(super) const KILL_WAIT: Duration = Duration::from_secs(3);

pub(super) struct ShutdownState {
    pub(super) until: Instant,
    killed: bool,
}

impl Supervisor {
    pub(super) fn begin_shutdown(&mut self, drain: Duration, now: Instant) {
        for worker in self.workers.values_mut() {
            let pending = worker.drain(now, &mut self.effects);
            self.models[worker.model].pending_adapters.extend(pending);
        }
        for model in &mut self.models {
            model.fail_waiting(&ending(), &mut self.effects);
            model.state = LoadState::Idle;
        }
        self.closing = Some(ShutdownState { until: now + drain, killed: false });
    }

    /// Completes a finished shutdown, and kills workers that are past its deadline.
    pub(super) fn advance_shutdown(&mut self, now: Instant) {
        let Some(closing) = &mut self.closing else { return };
        if now >= closing.until && !closing.killed {
            *closing = ShutdownState { killed: true, until: now + KILL_WAIT };
            for serial in self.workers.keys().copied() {
                let reason = Failure::new(FailureCode::Draining, "had not finished when the server ended");
                let reason = reason.with_help("send the request again once it runs again");
                self.effects.push(Effect::Kill { serial, reason });
            }
        }
        if self.workers.is_empty() || (closing.killed && now >= closing.until) {
            self.effects.push(Effect::End);
        }
    }
}

pub(super) fn ending() -> Failure {
    Failure::new(FailureCode::Draining, "the server is about to end")
}
