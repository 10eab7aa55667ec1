//! The start of the engine's current step, and the number of steps so far. Written by the engine, read by other
//! threads.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use pensieve_protocol::awake::AwakeClock;

/// Times steps.
pub(super) struct StepClock {
    born: Instant,
    /// Leaves out the time in which the process was stopped. The watchdog asks often enough.
    awake: Mutex<AwakeClock>,
    /// Milliseconds from `born` to the step's beginning, plus one; zero between steps.
    began: AtomicU64,
    steps: AtomicU64,
    /// No more steps follow.
    stopped: AtomicBool,
}

/// Marks a step as running, until dropped.
pub(super) struct StepGuard<'a>(&'a StepClock);

impl Default for StepClock {
    fn default() -> Self {
        let born = Instant::now();
        Self {
            born,
            awake: Mutex::new(AwakeClock::new(born)),
            began: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }
}

impl StepClock {
    pub(super) fn begin_step(&self) -> StepGuard<'_> {
        self.began.store(self.now() + 1, Ordering::Release);
        StepGuard(self)
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

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
        let mut awake = self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = awake.at(Instant::now()).saturating_duration_since(self.born);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX - 1)
    }
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.0.began.store(0, Ordering::Release);
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }
}
