//! Writes reports to the server's socket. A separate thread encodes and writes, so that steps do not wait for a busy
//! server; all queued reports go out in one write.
//!
//! The queue is bounded and provides back-pressure: when it is full, the engine waits. A server that reads nothing for
//! `SEND_TIMEOUT` is considered dead, and the worker exits instead of holding memory that no client can use.

use std::{
    collections::VecDeque,
    io::Write,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{EXIT_REPORTS_UNREAD, EXIT_SERVER_GONE, StepClock, leave, start};
use pensieve_protocol::{
    awake::Silence,
    wire::{self, Report},
};

/// Maximum number of queued reports. A single report has all events of a step.
const REPORTS_MAX: usize = 1024;
/// Maximum time that `send` waits for room in a full queue. A server that was stopped (Ctrl-Z) goes on later; one that has
/// ended closes the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time limit for writing the last reports.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct ReportWriter {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    reports: VecDeque<Report>,
    writing: bool,
}

impl ReportWriter {
    pub(super) fn start(socket: UnixStream, clock: Arc<StepClock>) -> Arc<Self> {
        let reports = Arc::new(Self::default());
        let writer = reports.clone();
        start("writer", move || writer.write(socket, &clock));
        reports
    }

    /// Queues a report. Waits while the queue is full, and exits the process on timeout.
    pub(super) fn send(&self, report: Report) {
        let mut silence = Silence::new(SEND_TIMEOUT, Instant::now());
        let mut queue = self.lock();
        while queue.reports.len() >= REPORTS_MAX {
            if silence.is_over(Instant::now()) {
                leave(EXIT_REPORTS_UNREAD);
            }
            queue = self.changed.wait_timeout(queue, silence.wait()).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.reports.push_back(report);
        self.changed.notify_all();
    }

    /// Queues a report unless the queue is locked or half full. For log lines and progress, which may come from within
    /// a plugin's call.
    pub(super) fn try_send(&self, report: Report) {
        if let Ok(mut queue) = self.queue.try_lock()
            && queue.reports.len() < REPORTS_MAX / 2
        {
            queue.reports.push_back(report);
            self.changed.notify_all();
        }
    }

    /// Queues and writes a last report before the process exits, unless another thread holds the lock.
    pub(super) fn send_last(&self, report: Report) {
        if let Ok(mut queue) = self.queue.try_lock() {
            queue.reports.push_back(report);
            self.changed.notify_all();
        }
        self.flush();
    }

    /// Waits until everything is written, up to `FLUSH_TIMEOUT`.
    pub(super) fn flush(&self) {
        let until = Instant::now() + FLUSH_TIMEOUT;
        let mut queue = self.lock();
        while !queue.reports.is_empty() || queue.writing {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write(&self, mut socket: UnixStream, clock: &StepClock) {
        let mut bytes = Vec::new();
        let mut beaten = Instant::now();
        while !clock.has_stopped() {
            let reports = self.next(beaten + HEARTBEAT_INTERVAL);
            bytes.clear();
            for report in &reports {
                if let Err(error) = wire::encode_report_into(report, &mut bytes) {
                    // Only a bug creates such a report; skipping it would corrupt the stream.
                    eprintln!("pensieve worker: {error}");
                    leave(EXIT_REPORTS_UNREAD);
                }
            }
            if beaten.elapsed() >= HEARTBEAT_INTERVAL {
                beaten = Instant::now();
                let heartbeat = Report::Heartbeat { steps: clock.steps(), step_ms: clock.step_ms() };
                // Two numbers always fit into a frame.
                let _ = wire::encode_into(&heartbeat, &mut bytes);
            }
            if socket.write_all(&bytes).is_err() && !clock.has_stopped() {
                leave(EXIT_SERVER_GONE);
            }
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }

    /// Takes all queued reports; returns none if a heartbeat is due first.
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
