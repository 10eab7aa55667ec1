//! Prepared items on their way to a worker. An item can be as long as many frames, so it goes ahead of its job in pieces:
//! neither side holds a second copy of a whole job. A worker holds items of all its jobs up to a limit, whatever the jobs wait
//! for; a job that finds no room arrives without them, and is refused. Equal items are sent once in a job, and kept once for
//! all jobs.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;

use super::{Command, WireError, encode};
use crate::media::{ITEMS_MAX, PREPARED_BYTES_MAX, PreparedBytes, PromptItem};

/// The longest piece of an item.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The frames of a command, encoded one by one: those of a job's items, then the command.
pub fn command_frames(command: &Command) -> impl Iterator<Item = Result<Vec<u8>, WireError>> + '_ {
    let media = match command {
        Command::Submit(job) => &job.media[..],
        _ => &[],
    };
    let is_first = move |(index, item): &(u32, &PromptItem)| {
        let same = |other: &PromptItem| other.digest == item.digest && other.prepared == item.prepared;
        !media[..*index as usize].iter().any(same)
    };
    let pieces = (0..).zip(media).filter(is_first).flat_map(|(item, prompt_item)| {
        let pieces = prompt_item.prepared.pieces(PIECE_BYTES_MAX);
        pieces.map(move |bytes| encode(&Command::Prepared { item, bytes }))
    });
    pieces.chain(std::iter::once_with(|| encode(command)))
}

/// Collects the pieces of items until their job arrives.
#[derive(Debug, Default)]
pub struct ItemAssembly {
    items: Vec<Vec<u8>>,
    bytes: usize,
    /// Bytes of the items of earlier jobs that are still in memory.
    held: Arc<AtomicUsize>,
    /// These items, by digest.
    known: HashMap<[u8; 32], Weak<Held>>,
    /// The next job found no room.
    is_refused: bool,
}

impl ItemAssembly {
    /// Takes the next command in. Returns it unless it is a piece of an item; a job has its items.
    pub fn take(&mut self, command: Command) -> Result<Option<Command>, WireError> {
        match command {
            Command::Prepared { item, bytes } => {
                self.add(item as usize, &bytes)?;
                Ok(None)
            }
            Command::Submit(mut job) => {
                if self.items.len() > job.media.len() {
                    return Err(WireError::StrayItem);
                }
                self.known.retain(|_, held| held.strong_count() > 0);
                let mut sent = std::mem::take(&mut self.items).into_iter();
                for item in &mut job.media {
                    item.prepared = self.keep(item.digest, sent.next().unwrap_or_default());
                }
                (self.bytes, self.is_refused) = (0, false);
                Ok(Some(Command::Submit(job)))
            }
            _ if self.bytes > 0 => Err(WireError::StrayItem),
            other => Ok(Some(other)),
        }
    }

    /// An item of a job: what was sent, or without it what an equal item has.
    fn keep(&mut self, digest: [u8; 32], mut sent: Vec<u8>) -> PreparedBytes {
        let known = self.known.get(&digest).and_then(Weak::upgrade);
        if let Some(held) = known.filter(|held| sent.is_empty() || held.bytes == sent) {
            return Bytes::from_owner(Shared(held)).into();
        }
        if sent.is_empty() {
            return PreparedBytes::default();
        }
        sent.shrink_to_fit();
        let held = Arc::new(Held::new(sent, &self.held));
        self.known.insert(digest, Arc::downgrade(&held));
        Bytes::from_owner(Shared(held)).into()
    }

    fn add(&mut self, item: usize, bytes: &[u8]) -> Result<(), WireError> {
        let total = self.bytes.saturating_add(bytes.len());
        if total > PREPARED_BYTES_MAX {
            return Err(WireError::TooLong { bytes: total, bytes_max: PREPARED_BYTES_MAX });
        }
        if item >= ITEMS_MAX || item + 1 < self.items.len() {
            return Err(WireError::StrayItem);
        }
        self.bytes = total;
        if self.held.load(Ordering::Relaxed).saturating_add(total) > PREPARED_BYTES_MAX {
            self.is_refused = true;
            self.items.clear();
        }
        if !self.is_refused {
            self.items.resize(item + 1, Vec::new());
            self.items[item].extend_from_slice(bytes);
        }
        Ok(())
    }
}

/// Bytes that count until they are dropped.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    all: Arc<AtomicUsize>,
}

impl Held {
    fn new(bytes: Vec<u8>, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(bytes.len(), Ordering::Relaxed);
        Self { bytes, all: all.clone() }
    }
}

/// Bytes that several jobs may have.
struct Shared(Arc<Held>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}
