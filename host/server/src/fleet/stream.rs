//! What a submitter holds: the events of its job, in message, up to the last one.

use tokio::sync::mpsc::UnboundedSender;

use super::{streams::UpdateReceiver, supervisor::Message};
use pensieve_protocol::job::{Event, Failure, FailureCode};

/// News of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The job waits for its model to be loaded; how far that is.
    Loading {
        /// Bytes or steps done.
        done: u64,
        /// Bytes or steps in all; 0 for unknown.
        total: u64,
        /// Of what.
        what: String,
    },
    /// The job itself.
    Event(Event),
}

impl Update {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Event(event) if event.is_last())
    }
}

/// The events of one job. Dropping it before the last one cancels the job.
#[derive(Debug)]
pub struct EventStream {
    pub(super) job: u64,
    pub(super) updates: UpdateReceiver,
    pub(super) messages: UnboundedSender<Message>,
    pub(super) ended: bool,
}

impl EventStream {
    /// The next update; none after the last one.
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
            // A fleet that has ended has cancelled everything.
            let _ = self.messages.send(Message::Cancel { job: self.job });
        }
    }
}
