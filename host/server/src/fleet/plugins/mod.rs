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
mod packaged;
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
pub use copy::{NO_SPACE_HELP, PrivateCopy};
pub use packaged::{Packaged, PackagedLibraries};

use super::program;
use packaged::PackageLock;
use pensieve_protocol::checkpoint::CheckpointName;
use pensieve_protocol::refusal::{Refusal, RefusalKind};

/// Time in which a server starts even if its plugins are still being inspected.
const OPENING_TIME_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Settings {
    /// The folders, the first of which wins where two have a plugin of one id.
    pub folders: Vec<PathBuf>,
    /// The program's data folder, with the lock of installed packages.
    pub home: PathBuf,
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
    /// How many times that the first child to open a copy may take. macOS examines new files then, one after the other, however
    /// many children wait for theirs.
    pub first_inspection: u32,
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
            first_inspection: if cfg!(target_os = "macos") { 6 } else { 1 },
            file_bytes_max: 1 << 30,
            files_max: 256,
        }
    }
}

impl Limits {
    fn inspection_of(&self, is_new: bool) -> Duration {
        self.inspection * if is_new { self.first_inspection } else { 1 }
    }
}

impl Settings {
    /// The folders that plugins are found in: the given ones, those below `home` (`$PENSIEVE_HOME`) and the current folder,
    /// and those that this program is installed with.
    pub fn new(given: &[PathBuf], home: &Path) -> Self {
        let mut folders = given.to_vec();
        folders.push(home.join("plugins"));
        folders.push(PathBuf::from("plugins"));
        folders.extend(installed_with(&std::env::current_exe().unwrap_or_default()));
        let (cache, program) = (home.join("cache/plugins"), program::running());
        Self { folders, home: home.to_owned(), cache, program, allow: None, limits: Limits::default() }
    }

    #[cfg(test)]
    fn for_tests(folders: Vec<PathBuf>, home: &Path) -> Self {
        Self { folders, ..Self::new(&[], home) }
    }
}

/// The folders for the plugins that come with a program: its own, and `lib/pensieve` of the prefix that it is installed in. A
/// package manager may have put no more than a link to the program where it was started.
fn installed_with(program: &Path) -> Vec<PathBuf> {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_path_buf());
    let Some(folder) = program.parent() else { return Vec::new() };
    let prefix = folder.parent().map(|prefix| prefix.join("lib/pensieve"));
    [Some(folder.to_path_buf()), prefix].into_iter().flatten().collect()
}

/// The watched folders. Dropping it ends the watching and the children.
#[derive(Debug)]
pub struct PluginFolder {
    published: sync::watch::Receiver<Arc<Catalogue>>,
    lock: PackageLock,
    watching: JoinHandle<()>,
}

impl PluginFolder {
    /// Opens the folders and waits until their files are inspected, as long as one after the other is.
    pub async fn open(settings: Settings) -> Result<Self, Refusal> {
        let (path, bytes_max) = (settings.cache.clone(), settings.limits.file_bytes_max);
        let opened = tokio::task::spawn_blocking(move || copy::Cache::open(&path, bytes_max)).await;
        let cache = opened.map_err(|error| Refusal::new(RefusalKind::Cache, error.to_string(), ""))??;
        let limit = settings.limits.settle + settings.limits.patience + settings.limits.inspection_of(true);
        let (publish, published) = sync::watch::channel(Arc::new(Catalogue::default()));
        let mut first = published.clone();
        let lock = PackageLock::new(&settings.home);
        let watching = tokio::spawn(watch::run(settings, cache, publish));
        let folder = Self { published, lock, watching };
        let known = async {
            while let Ok(Ok(())) = timeout(limit, first.changed()).await {
                let pending = |state: &PluginState| state.status == Status::Pending;
                if !first.borrow_and_update().states().iter().any(pending) {
                    break;
                }
            }
        };
        // What is still unknown then is shown as pending; the server does not wait for it.
        let _ = timeout(limit.max(OPENING_TIME_MAX), known).await;
        Ok(folder)
    }

    /// The packages that libraries came in.
    pub fn packaged(&self) -> PackagedLibraries {
        self.lock.libraries()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use pensieve_protocol::{manifest::Manifest, questions::Checked};
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    #[test]
    fn a_program_that_is_started_by_a_link_has_the_plugins_beside_its_file() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        // As Homebrew installs: the formula has a prefix of its own, and one link in the folder that is on the path.
        let prefix = root.join("Cellar/pensieve/1.0");
        fs::create_dir_all(prefix.join("bin")).unwrap();
        fs::create_dir(root.join("bin")).unwrap();
        fs::write(prefix.join("bin/pensieve"), "").unwrap();
        symlink("../Cellar/pensieve/1.0/bin/pensieve", root.join("bin/pensieve")).unwrap();
        let expected = [prefix.join("bin"), prefix.join("lib/pensieve")];
        assert_eq!(installed_with(&root.join("bin/pensieve")), expected);
        assert_eq!(installed_with(&prefix.join("bin/pensieve")), expected);
        let gone = Path::new("/nowhere/bin/pensieve");
        assert_eq!(installed_with(gone), [Path::new("/nowhere/bin"), Path::new("/nowhere/lib/pensieve")]);
    }

    /// A program that inspects a plugin like a Mac that has never seen it: one file after the other, for 0.2 seconds each.
    fn examining_program(root: &Path) -> PathBuf {
        let (program, busy) = (root.join("program"), root.join("busy"));
        let answer = serde_json::to_string(&Checked::Manifest(Manifest { id: "ID".into(), ..Manifest::default() }));
        let script = format!(
            "#!/bin/sh\nwhile ! mkdir '{0}' 2>/dev/null; do sleep 0.01; done\nsleep 0.2\nrmdir '{0}'\n\
             echo '{1}' | sed \"s/ID/$(basename \"$4\" | cut -c 1-8)/\"\n",
            busy.display(),
            answer.unwrap()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        program
    }

    #[tokio::test]
    async fn plugins_that_the_system_examines_one_by_one_are_all_there_at_the_start() {
        const PLUGINS: usize = 21;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("plugins");
        fs::create_dir(&folder).unwrap();
        for number in 0..PLUGINS {
            fs::write(folder.join(format!("lib{number}{}", std::env::consts::DLL_SUFFIX)), number.to_string()).unwrap();
        }
        let mut settings = Settings::for_tests(vec![folder], root.path());
        settings.program = examining_program(root.path());
        let limits = &mut settings.limits;
        (limits.settle, limits.patience) = (Duration::ZERO, Duration::ZERO);
        // Four wait at a time, so that the last of them takes longer than a single inspection may. Which one is next is left to
        // chance, so one may be unlucky for long.
        (limits.inspection, limits.first_inspection) = (Duration::from_millis(500), 60);
        let folder = PluginFolder::open(settings.clone()).await.unwrap();
        let ready = |folder: &PluginFolder| {
            let states = folder.snapshot();
            assert!(states.iter().all(|state| matches!(state.status, Status::Ready { .. })), "{states:#?}");
            states.len()
        };
        assert_eq!(ready(&folder), PLUGINS);
    }
}
