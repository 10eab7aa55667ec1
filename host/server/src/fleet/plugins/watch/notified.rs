//! Change events of folders by the system's way of telling (inotify on Linux), through the crate `notify`.

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::{collections::HashSet, sync::Arc};
use tokio::sync::Notify;

use super::super::scan::Folder;

/// A folder that cannot be listened to is only scanned now and then.
pub(super) struct FolderEvents {
    changed: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
    folders: HashSet<Folder>,
}

impl FolderEvents {
    pub(super) fn new() -> Self {
        let changed = Arc::new(Notify::new());
        let wake = changed.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading a file, as a scan's own copies do, is an event as well.
            if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
                wake.notify_one();
            }
        });
        Self { changed, watcher: watcher.ok(), folders: HashSet::new() }
    }

    pub(super) fn listen(&mut self, folders: &[Folder]) {
        let Some(watcher) = &mut self.watcher else { return };
        // A folder that has gone and come back is another one: it must be listened to anew.
        for gone in self.folders.extract_if(|folder| !folders.contains(folder)) {
            // The system has forgotten a removed folder by itself.
            let _ = watcher.unwatch(&gone.path);
        }
        for folder in folders {
            if !self.folders.contains(folder) && watcher.watch(&folder.path, RecursiveMode::NonRecursive).is_ok() {
                self.folders.insert(folder.clone());
            }
        }
    }

    /// Resolves after a change in one of the folders.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
