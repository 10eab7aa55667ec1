//! The watchdog of the engine's thread: it knows whether a step is running and since when. A plugin that loops or blocks for ever
//! cannot be interrupted, so a step that exceeds its deadline ends the process, after a report that says why.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{EXIT_STALLED, ReportWriter, leave, start};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::Report,
};

/// The most that the watchdog lets pass between two looks.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Watchdog {
    born: Instant,
    /// Milliseconds from birth to the step's beginning, plus one; zero between steps.
    began: AtomicU64,
    steps: AtomicU64,
    /// There are no more steps.
    stopped: AtomicBool,
}

/// A step that lasts as long as this value.
pub(super) struct StepGuard<'a>(&'a Watchdog);

impl Default for Watchdog {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            began: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }
}

impl Watchdog {
    pub(super) fn begin_step(&self) -> StepGuard<'_> {
        self.began.store(self.now() + 1, Ordering::Release);
        StepGuard(self)
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

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.0.began.store(0, Ordering::Release);
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the process when a step takes longer than the deadline.
pub(super) fn spawn(watchdog: &Arc<Watchdog>, reports: &Arc<ReportWriter>, deadline: Duration) {
    let (watchdog, reports) = (watchdog.clone(), reports.clone());
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    start("watchdog", move || {
        while watchdog.step_ms().is_none_or(|elapsed| elapsed <= deadline_ms) {
            thread::sleep(CHECK_INTERVAL.min(deadline / 4).max(Duration::from_millis(1)));
            if watchdog.has_stopped() {
                return;
            }
        }
        let message = format!("a step did not end within {} s: a plugin hangs", deadline.as_secs_f32());
        let failure = Failure::new(FailureCode::Stalled, message).with_help("tell the plugin's author");
        reports.send_last(Report::Dying(failure));
        leave(EXIT_STALLED);
    });
}
