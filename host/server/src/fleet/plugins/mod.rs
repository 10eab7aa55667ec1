//! The plugin folders: files that come and go while the server runs become plugins that new loads may use.
//!
//! The server maps none of them. A file that has stopped changing is copied to a private folder, a short-lived child inspects
//! the copy, and the server knows no more than the child reports. Writing to the file later changes no
//! running code; replacing it gives new loads a new copy, while workers keep theirs. A file that is damaged,
//! foreign or malicious costs a child process and one line in the list of plugins.

mod catalogue;
mod copy;
mod files;
mod inspection;
mod scan;
mod trust;
mod watch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync, task::JoinHandle, time::timeout};

pub use catalogue::{Catalogue, Claimant, Plugin, PluginState, Status};
pub use copy::PrivateCopy;

use pensieve_protocol::checkpoint::CheckpointName;
use pensieve_protocol::refusal::{Refusal, RefusalKind};

#[derive(Clone, Debug)]
pub struct Settings {
    /// The folders, the first of which wins where two have a plugin of one id.
    pub folders: Vec<PathBuf>,
    /// Where private copies lie.
    pub cache: PathBuf,
    /// This program, which the children run.
    pub program: PathBuf,
    /// The SHA-256 of the files that may be plugins; none for any file.
    pub allow: Option<Vec<String>>,
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time for which a file must not have changed before it is inspected.
    pub settle: Duration,
    /// Time for which a truncated file counts as being written still.
    pub patience: Duration,
    /// Interval of scans without a change event: on network drives there are none.
    pub rescan: Duration,
    /// Deadline of a child that inspects a file.
    pub inspection: Duration,
    pub file_bytes_max: u64,
    pub files_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(300),
            patience: Duration::from_secs(3),
            rescan: Duration::from_secs(2),
            inspection: Duration::from_secs(10),
            file_bytes_max: 1 << 30,
            files_max: 256,
        }
    }
}

impl Settings {
    /// The folders that plugins are found in: the given ones, those below `home` (`$PENSIEVE_HOME`) and the current folder,
    /// and the one that this program lies in.
    pub fn new(given: &[PathBuf], home: &Path) -> Self {
        let mut folders = given.to_vec();
        folders.push(home.join("plugins"));
        folders.push(PathBuf::from("plugins"));
        let executable = std::env::current_exe().unwrap_or_default();
        folders.extend(executable.parent().map(Path::to_path_buf));
        // The file may have been replaced by a newer version since; the children must be of this one.
        let running = Path::new("/proc/self/exe");
        let program = if running.exists() { running.to_path_buf() } else { executable };
        Self { folders, cache: home.join("cache/plugins"), program, allow: None, limits: Limits::default() }
    }

    #[cfg(test)]
    fn for_tests(folders: Vec<PathBuf>, home: &Path) -> Self {
        Self { folders, ..Self::new(&[], home) }
    }
}

/// The watched folders. Dropping it ends the watching and the children.
#[derive(Debug)]
pub struct PluginFolder {
    published: sync::watch::Receiver<Arc<Catalogue>>,
    watching: JoinHandle<()>,
}

impl PluginFolder {
    /// Opens the folders and waits until their files are inspected, but no longer than the slowest of them may take.
    pub async fn open(settings: Settings) -> Result<Self, Refusal> {
        let (path, bytes_max) = (settings.cache.clone(), settings.limits.file_bytes_max);
        let opened = tokio::task::spawn_blocking(move || copy::Cache::open(&path, bytes_max)).await;
        let cache = opened.map_err(|error| Refusal::new(RefusalKind::Cache, error.to_string(), ""))??;
        let limit = settings.limits.settle + settings.limits.patience + settings.limits.inspection;
        let (publish, published) = sync::watch::channel(Arc::new(Catalogue::default()));
        let mut first = published.clone();
        let watching = tokio::spawn(watch::run(settings, cache, publish));
        let folder = Self { published, watching };
        let known = async {
            while first.changed().await.is_ok() {
                let pending = |state: &PluginState| state.status == Status::Pending;
                if !first.borrow_and_update().states().iter().any(pending) {
                    break;
                }
            }
        };
        // What is still unknown then is shown as pending; the server does not wait for it.
        let _ = timeout(limit, known).await;
        Ok(folder)
    }

    pub fn snapshot(&self) -> Vec<PluginState> {
        self.published.borrow().states().to_vec()
    }

    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.published.borrow().clone()
    }

    pub fn subscribe(&self) -> sync::watch::Receiver<Arc<Catalogue>> {
        self.published.clone()
    }

    /// The architectures that claim such a checkpoint, in the order in which they are asked.
    pub fn claimants(&self, name: &CheckpointName) -> Vec<Claimant> {
        self.catalogue().claimants(name)
    }

    pub fn samplers(&self) -> Vec<(String, Arc<Plugin>)> {
        self.catalogue().samplers()
    }

    pub fn adapter_formats(&self) -> Vec<(String, Arc<Plugin>)> {
        self.catalogue().adapter_formats()
    }
}

impl Drop for PluginFolder {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
