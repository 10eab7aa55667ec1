//! What the worker says, on its way to the socket. A thread of its own encodes and writes, so that a step does not wait for
//! a server that is busy; all that has piled up goes out in one write.
//!
//! The queue is bounded. A server that does not read while it fills is not there any more, even if its socket is: after a
//! while the worker ends, instead of holding on to a machine's memory for nobody.

use std::{
    collections::VecDeque,
    io::Write,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{EXIT_SERVER_GONE, EXIT_UNHEARD, Pulse, leave, start};
use pensieve_protocol::wire::{self, Report};

/// How many reports wait at most. One holds all events of a step.
const REPORTS_MAX: usize = 1024;
/// How long a full queue is endured.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long last words may take.
const LAST_WORDS: Duration = Duration::from_millis(200);
const HEARTBEAT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    reports: VecDeque<Report>,
    writing: bool,
}

impl Outbox {
    /// Starts to write to the socket.
    pub(super) fn start(socket: UnixStream, pulse: Arc<Pulse>) -> Arc<Self> {
        let outbox = Arc::new(Self::default());
        let writer = outbox.clone();
        start("writer", move || writer.write(socket, &pulse));
        outbox
    }

    /// Says something. Waits while the queue is full, and ends the process if that does not change.
    pub(super) fn send(&self, report: Report) {
        let until = Instant::now() + PATIENCE;
        let mut queue = self.lock();
        while queue.reports.len() >= REPORTS_MAX {
            let Some(left) = until.checked_duration_since(Instant::now()) else { leave(EXIT_UNHEARD) };
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.reports.push_back(report);
        self.changed.notify_all();
    }

    /// Says something that may as well be left out: from within a plugin's call, or a panic.
    pub(super) fn try_send(&self, report: Report) {
        if let Ok(mut queue) = self.queue.try_lock()
            && queue.reports.len() < REPORTS_MAX / 2
        {
            queue.reports.push_back(report);
            self.changed.notify_all();
        }
    }

    /// Says something before the process ends, if the queue can be had at all.
    pub(super) fn last_words(&self, report: Report) {
        if let Ok(mut queue) = self.queue.try_lock() {
            queue.reports.push_back(report);
            self.changed.notify_all();
        }
        self.flush();
    }

    /// Waits until everything is written, but not for long.
    pub(super) fn flush(&self) {
        let until = Instant::now() + LAST_WORDS;
        let mut queue = self.lock();
        while !queue.reports.is_empty() || queue.writing {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write(&self, mut socket: UnixStream, pulse: &Pulse) {
        let mut bytes = Vec::new();
        let mut beaten = Instant::now();
        while !pulse.has_stopped() {
            let reports = self.next(beaten + HEARTBEAT);
            bytes.clear();
            for report in &reports {
                if let Err(error) = wire::encode_into(report, &mut bytes) {
                    // Only a defect makes such a report; without it the stream would be wrong.
                    eprintln!("pensieve worker: {error}");
                    leave(EXIT_UNHEARD);
                }
            }
            if beaten.elapsed() >= HEARTBEAT {
                beaten = Instant::now();
                let heartbeat = Report::Heartbeat { steps: pulse.steps(), step_ms: pulse.step_ms() };
                // Two numbers always fit.
                let _ = wire::encode_into(&heartbeat, &mut bytes);
            }
            if socket.write_all(&bytes).is_err() && !pulse.has_stopped() {
                leave(EXIT_SERVER_GONE);
            }
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }

    /// All that waits; nothing if it is time for a heartbeat.
    fn next(&self, until: Instant) -> VecDeque<Report> {
        let mut queue = self.lock();
        while queue.reports.is_empty() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.writing = true;
        let reports = std::mem::take(&mut queue.reports);
        drop(queue);
        self.changed.notify_all();
        reports
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
