//! The submitter's end of a job: receives its events in order, up to the last one.

use tokio::sync::mpsc::UnboundedSender;

use super::{
    awake::Busy,
    control::Message,
    streams::{Update, UpdateReceiver},
};
use pensieve_protocol::job::{Event, Failure, FailureCode};

/// The events of one job. Dropping it before the last one cancels the job.
#[derive(Debug)]
pub struct EventStream {
    pub(super) job: u64,
    pub(super) updates: UpdateReceiver,
    pub(super) messages: UnboundedSender<Message>,
    pub(super) ended: bool,
    pub(super) _busy: Busy,
}

impl EventStream {
    /// The job's number, which is unique among all models.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// Returns the next update; `None` after the last one.
    pub async fn next(&mut self) -> Option<Update> {
        if self.ended {
            return None;
        }
        let update = self.updates.recv().await.unwrap_or_else(|| {
            let failure = Failure::new(FailureCode::Draining, "the server has ended");
            Update::Event(Event::Failed(failure))
        });
        self.ended = update.is_last();
        Some(update)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if !self.ended {
            // Fails only if the fleet has ended, which has cancelled everything.
            let _ = self.messages.send(Message::Cancel { job: self.job });
        }
    }
}
