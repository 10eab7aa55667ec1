//! Change events of folders on macOS, by kqueue alone. FSEvents would load CoreServices into this program, and so into each of its
//! children; `notify`'s way with kqueue opens whole trees of files below a folder in which something is created, such as that of
//! a build.
//!
//! A folder's event says that a file was created, renamed or removed. One that was written over in place causes none: the next
//! scan finds it.

use rustix::{
    event::kqueue::{Event, EventFilter, EventFlags, VnodeEvents, kevent, kqueue},
    fs::{Mode, OFlags, open},
};
use std::{
    collections::HashMap,
    future::pending,
    os::fd::{AsRawFd, OwnedFd},
    ptr::null_mut,
    time::Duration,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::super::scan::Folder;

const EVENTS_MAX: usize = 16;

/// A folder that cannot be listened to is only scanned now and then.
pub(super) struct FolderEvents {
    queue: Option<AsyncFd<OwnedFd>>,
    /// Closing a folder takes it out of the queue.
    folders: HashMap<Folder, OwnedFd>,
}

impl FolderEvents {
    pub(super) fn new() -> Self {
        // SAFETY: the descriptor belongs to this value alone, which closes it after the registration ends.
        let register = |queue| unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) }.ok();
        Self { queue: kqueue().ok().and_then(register), folders: HashMap::new() }
    }

    pub(super) fn listen(&mut self, folders: &[Folder]) {
        let Some(queue) = &self.queue else { return };
        // A folder that has gone and come back is another one: it must be listened to anew.
        self.folders.retain(|folder, _| folders.contains(folder));
        for folder in folders {
            if !self.folders.contains_key(folder)
                && let Ok(opened) = watched(queue.get_ref(), folder)
            {
                self.folders.insert(folder.clone(), opened);
            }
        }
    }

    /// Resolves after a change in one of the folders.
    pub(super) async fn changed(&self) {
        let Some(queue) = &self.queue else { return pending().await };
        let Ok(mut ready) = queue.readable().await else { return pending().await };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        // SAFETY: nothing is changed in the queue, and the events are only dropped.
        let taken =
            unsafe { kevent(queue.get_ref(), &[], rustix::buffer::spare_capacity(&mut events), Some(Duration::ZERO)) };
        // What is left over makes the queue readable again.
        if taken.is_ok_and(|taken| taken < EVENTS_MAX) {
            ready.clear_ready();
        }
    }
}

fn watched(queue: &OwnedFd, folder: &Folder) -> rustix::io::Result<OwnedFd> {
    let opened = open(&folder.path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = VnodeEvents::WRITE | VnodeEvents::EXTEND | VnodeEvents::DELETE | VnodeEvents::RENAME;
    let filter = EventFilter::Vnode { vnode: opened.as_raw_fd(), flags };
    let change = Event::new(filter, EventFlags::ADD | EventFlags::CLEAR, null_mut());
    let mut none: [Event; 0] = [];
    // SAFETY: the descriptor is open, and the queue forgets it when it is closed.
    unsafe { kevent(queue, &[change], &mut none, None)? };
    Ok(opened)
}
