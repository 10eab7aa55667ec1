//! Prepared items on their way to a worker. An item can be as long as many frames, so it goes ahead of its job in pieces:
//! neither side holds a second copy of a whole job. A worker holds items of all its jobs up to a limit, whatever the jobs wait
//! for; a job that finds no room arrives without them, and is refused.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;

use super::{Command, WireError, encode};
use crate::media::{ITEMS_MAX, PREPARED_BYTES_MAX};

/// The longest piece of an item.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The frames of a command, encoded one by one: those of a job's items, then the command.
pub fn command_frames(command: &Command) -> impl Iterator<Item = Result<Vec<u8>, WireError>> + '_ {
    let media = match command {
        Command::Submit(job) => &job.media[..],
        _ => &[],
    };
    let pieces = (0..).zip(media).flat_map(|(item, prompt_item)| {
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
                for (item, mut bytes) in job.media.iter_mut().zip(self.items.drain(..)) {
                    bytes.shrink_to_fit();
                    item.prepared = Held::hold(bytes, &self.held).into();
                }
                (self.bytes, self.is_refused) = (0, false);
                Ok(Some(Command::Submit(job)))
            }
            _ if self.bytes > 0 => Err(WireError::StrayItem),
            other => Ok(Some(other)),
        }
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
struct Held {
    bytes: Vec<u8>,
    all: Arc<AtomicUsize>,
}

impl Held {
    fn hold(bytes: Vec<u8>, all: &Arc<AtomicUsize>) -> Bytes {
        all.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Self { bytes, all: all.clone() })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}
