//! Watches the folders: receives their events, waits until files are whole, has them looked at, and publishes what is known.
//!
//! Events only say when to look; what is true is what the next scan finds, so that a lost event, a full queue or a file
//! system without events costs a delay and nothing else.

#[cfg(target_os = "macos")]
mod kqueue;
#[cfg(not(target_os = "macos"))]
mod notified;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    sync::watch::Sender,
    task::JoinSet,
    time::{sleep, sleep_until},
};

use super::{
    Catalogue, Settings,
    copy::Cache,
    files::{Files, Task},
    inspection::{Inspected, inspect},
    scan::Scan,
};
#[cfg(target_os = "macos")]
use kqueue::FolderEvents;
#[cfg(not(target_os = "macos"))]
use notified::FolderEvents;

/// How many files are inspected at the same time.
const CHILDREN_MAX: usize = 4;
/// A copy in progress makes thousands of events; they are answered by one scan.
const EVENTS_GATHERED: Duration = Duration::from_millis(30);

/// Watches until it is aborted.
pub(super) async fn run(settings: Settings, cache: Cache, publish: Sender<Arc<Catalogue>>) {
    let (settings, cache) = (Arc::new(settings), Arc::new(cache));
    let mut files = Files::new(settings.limits.clone());
    let mut events = FolderEvents::new();
    let mut children = JoinSet::<(Task, Inspected)>::new();
    let mut rescan = Instant::now();
    loop {
        if Instant::now() >= rescan {
            let (scanned, swept) = (settings.clone(), cache.clone());
            let scanning = tokio::task::spawn_blocking(move || {
                swept.sweep();
                Scan { free_bytes: swept.free_bytes(), ..Scan::run(&scanned) }
            });
            if let Ok(scan) = scanning.await {
                events.listen(&scan.folders);
                files.observe(scan, Instant::now(), SystemTime::now());
            }
            rescan = Instant::now() + settings.limits.rescan;
        }
        while children.len() < CHILDREN_MAX
            && let Some(task) = files.next_task(Instant::now())
        {
            let (settings, cache) = (settings.clone(), cache.clone());
            children.spawn(async move {
                let inspected = inspect(settings, cache, task.found.clone(), task.before.clone()).await;
                (task, inspected)
            });
        }
        if let Some(catalogue) = files.changed_catalogue() {
            publish.send_replace(catalogue);
        }
        let wake = files.next_deadline().map_or(rescan, |deadline| deadline.min(rescan));
        // A file that is due while all children are busy waits for one of them.
        let wake = wake.max(Instant::now() + Duration::from_millis(5));
        tokio::select! {
            () = events.changed() => {
                sleep(EVENTS_GATHERED).await;
                rescan = Instant::now();
            }
            Some(done) = children.join_next() => {
                if let Ok((task, inspected)) = done {
                    files.decide(&task, inspected, Instant::now());
                }
            }
            () = sleep_until(wake.into()) => {}
        }
    }
}
