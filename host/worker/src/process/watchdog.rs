//! The watchdog: a plugin that loops or blocks forever cannot be interrupted, so a step that exceeds its deadline ends
//! the process, after a report with the reason.

use std::{sync::Arc, thread, time::Duration};

use super::{EXIT_STALLED, leave, report_writer::ReportWriter, start, step_clock::StepClock};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::Report,
};

/// Maximum time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Starts a thread that ends the process when a step exceeds the deadline.
pub(super) fn spawn(clock: &Arc<StepClock>, reports: &Arc<ReportWriter>, deadline: Duration) {
    let (clock, reports) = (clock.clone(), reports.clone());
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    start("watchdog", move || {
        while clock.step_ms().is_none_or(|elapsed| elapsed <= deadline_ms) {
            thread::sleep(CHECK_INTERVAL.min(deadline / 4).max(Duration::from_millis(1)));
            if clock.has_stopped() {
                return;
            }
        }
        let message = format!("a step did not end within {} s: a plugin hangs", deadline.as_secs_f32());
        let failure = Failure::new(FailureCode::Stalled, message).with_help("tell the plugin's author");
        reports.send_last(Report::Dying(failure));
        leave(EXIT_STALLED);
    });
}
