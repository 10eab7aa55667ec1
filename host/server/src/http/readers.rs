//! The readers of live events: their places, what is published to them, and the task that publishes while there is one.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

use crate::shares::{Share, Shares};

/// Readers of all clients.
pub(super) const READERS_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct Readers {
    places: Shares,
    /// Where the task publishes, while there is one.
    sender: Mutex<Option<Arc<watch::Sender<Snapshot>>>>,
    closing: watch::Sender<bool>,
}

#[derive(Clone, Default)]
pub(super) struct Snapshot {
    /// Empty before the first look.
    pub(super) server: Arc<str>,
    pub(super) sample: Arc<str>,
    /// The changes of the board of requests so far.
    pub(super) board: u64,
}

impl Default for Readers {
    fn default() -> Self {
        Self { places: Shares::new(READERS_MAX), sender: Mutex::default(), closing: watch::Sender::new(false) }
    }
}

impl Readers {
    /// A place for one reader of this client; `None` if its share is taken.
    pub(super) fn take(&self, client: u64) -> Option<Share> {
        self.places.take(client, 1)
    }

    /// Ends all readers' streams, as the server is about to end.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// True from the moment at which the server begins to end.
    pub(super) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Subscribes to what is published from now on; `start` begins the task if there is none.
    pub(super) fn subscribe(&self, start: impl FnOnce(Arc<watch::Sender<Snapshot>>)) -> watch::Receiver<Snapshot> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            return sender.subscribe();
        }
        let new = Arc::new(watch::Sender::new(Snapshot::default()));
        let receiver = new.subscribe();
        *sender = Some(new.clone());
        start(new);
        receiver
    }

    /// Forgets the task if it has no readers, which then ends.
    pub(super) fn rest(&self, own: &watch::Sender<Snapshot>) -> bool {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let rests = own.receiver_count() == 0;
        if rests {
            *sender = None;
        }
        rests
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("board", &self.board).finish_non_exhaustive()
    }
}
