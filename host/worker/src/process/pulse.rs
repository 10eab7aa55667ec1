//! Whether the engine's thread lives and is in a step, and since when. A plugin that loops or waits for ever cannot be interrupted:
//! the watchdog says why, and ends the process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{EXIT_STALLED, Outbox, leave, start};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::Report,
};

/// The most that the watchdog lets pass between two looks.
const LOOK: Duration = Duration::from_millis(200);

pub(super) struct Pulse {
    born: Instant,
    /// Milliseconds from birth to the step's beginning, plus one; zero between steps.
    began: AtomicU64,
    steps: AtomicU64,
    /// There are no more steps.
    stopped: AtomicBool,
}

/// A step that lasts as long as this value.
pub(super) struct Beat<'a>(&'a Pulse);

impl Default for Pulse {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            began: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }
}

impl Pulse {
    pub(super) fn begin(&self) -> Beat<'_> {
        self.began.store(self.now() + 1, Ordering::Release);
        Beat(self)
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// How long the current step has been running.
    pub(super) fn step_ms(&self) -> Option<u64> {
        let began = self.began.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.now().saturating_sub(began))
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        self.0.began.store(0, Ordering::Release);
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the process when a step takes longer than the deadline.
pub(super) fn watch(pulse: &Arc<Pulse>, outbox: &Arc<Outbox>, deadline: Duration) {
    let (pulse, outbox) = (pulse.clone(), outbox.clone());
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    start("watchdog", move || {
        while pulse.step_ms().is_none_or(|elapsed| elapsed <= deadline_ms) {
            thread::sleep(LOOK.min(deadline / 4).max(Duration::from_millis(1)));
            if pulse.has_stopped() {
                return;
            }
        }
        let message = format!("a step did not end within {} s: a plugin hangs", deadline.as_secs_f32());
        let failure = Failure::new(FailureCode::Stalled, message).with_help("tell the plugin's author");
        outbox.last_words(Report::Dying(failure));
        leave(EXIT_STALLED);
    });
}
