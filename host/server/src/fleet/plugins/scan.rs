//! Lists the plugin folders without opening a file.

use std::{
    collections::HashSet,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Settings, trust};
use pensieve_packages::Installed;
use pensieve_protocol::{
    outside::Outside,
    refusal::{Refusal, RefusalKind},
};

/// Tells two states of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// For how long the file has been as it is, by the system's clock.
    pub(super) fn age(self, clock: SystemTime) -> Duration {
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return Duration::ZERO;
        };
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
        changed.and_then(|changed| clock.duration_since(changed).ok()).unwrap_or_default()
    }
}

/// A folder that is there. One that was removed and made again is another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    identity: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The path where the user put it, by which it is named.
    pub(super) path: PathBuf,
    /// The same with symlinks resolved.
    pub(super) target: PathBuf,
    pub(super) stamp: Stamp,
}

/// All that was found, in the order of precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// The folders that are there and trusted.
    pub(super) folders: Vec<Folder>,
    pub(super) files: Vec<Found>,
    /// Folders and files that cannot be looked at, and why.
    pub(super) refused: Vec<(PathBuf, Refusal)>,
    /// Room for private copies.
    pub(super) free_bytes: Option<u64>,
    /// The states of the files that decide which libraries are allowed.
    pub(super) rules: Vec<Option<Stamp>>,
}

impl Scan {
    /// Looks into the folders; one that is named twice counts where it is named first.
    pub(super) fn run(settings: &Settings) -> Self {
        let rules = Installed::sources(&settings.home);
        let rules = rules.map(|path| path.metadata().ok().map(|metadata| Stamp::of(&metadata)));
        let mut scan = Self { rules: rules.to_vec(), ..Self::default() };
        let mut seen = HashSet::new();
        for named in &settings.folders {
            match trust::folder(named) {
                Ok(None) => {}
                Ok(Some(folder)) if seen.insert(folder.clone()) => scan.look_into(named, folder, settings),
                Ok(Some(_)) => {}
                Err(refusal) => scan.refused.push((named.clone(), refusal)),
            }
        }
        scan
    }

    fn look_into(&mut self, named: &Path, folder: PathBuf, settings: &Settings) {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                let reason = format!("plugin folder '{}' cannot be read: {error}", Outside::path(&named));
                let refusal = Refusal::new(RefusalKind::Unreadable, reason, "check that this user may read it");
                return self.refused.push((named.to_path_buf(), refusal));
            }
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.filter(|name| is_library(&name.to_string_lossy())).collect();
        names.sort();
        if names.len() > settings.limits.files_max {
            let reason = format!(
                "plugin folder '{}' has {} libraries; the first {} were looked at",
                Outside::path(&named),
                names.len(),
                settings.limits.files_max
            );
            let refusal =
                Refusal::new(RefusalKind::TooMany, reason, "move those that are not plugins out of the folder");
            self.refused.push((named.to_path_buf(), refusal));
            names.truncate(settings.limits.files_max);
        }
        for name in names {
            let path = folder.join(name);
            match look_at(&path) {
                Ok(Some((target, stamp))) => self.files.push(Found { path, target, stamp }),
                Ok(None) => {}
                Err(refusal) => self.refused.push((path, refusal)),
            }
        }
        if let Ok(metadata) = folder.metadata() {
            self.folders.push(Folder { path: folder, identity: (metadata.dev(), metadata.ino()) });
        }
    }
}

/// Where a name in a folder leads; nothing, if it leads to a folder or has just gone.
fn look_at(path: &Path) -> Result<Option<(PathBuf, Stamp)>, Refusal> {
    let seen = path.canonicalize().and_then(|target| Ok((target.metadata()?, target)));
    match seen {
        Ok((metadata, target)) if metadata.is_file() => Ok(Some((target, Stamp::of(&metadata)))),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => Ok(None),
        Err(error) => {
            let reason = format!("plugin '{}' cannot be found: {error}", Outside::path(&path));
            Err(Refusal::new(RefusalKind::Unreadable, reason, "check where the link leads, or remove it"))
        }
    }
}

/// Downloads and editors give unfinished files hidden names or other endings.
fn is_library(name: &str) -> bool {
    !name.starts_with('.') && name.ends_with(std::env::consts::DLL_SUFFIX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(scan: &Scan) -> Vec<String> {
        let name = |found: &Found| found.path.file_name().unwrap().to_string_lossy().into_owned();
        scan.files.iter().map(name).collect()
    }

    fn library(name: &str) -> String {
        format!("{name}{}", std::env::consts::DLL_SUFFIX)
    }

    #[test]
    fn finds_libraries_in_the_order_of_folders_and_names() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = (root.path().join("1"), root.path().join("2"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        for path in [first.join(library("b")), first.join(library("a")), second.join(library("0"))] {
            fs::write(path, "x").unwrap();
        }
        for other in [".hidden.so", "readme.md", "c.so.part"] {
            fs::write(first.join(other), "x").unwrap();
        }
        fs::create_dir(first.join(library("folder"))).unwrap();
        let missing = root.path().join("3");
        let folders = vec![first.clone(), missing, second, first.join("../1")];
        let scan = Scan::run(&Settings::for_tests(folders, root.path()));
        assert_eq!(names(&scan), [library("a"), library("b"), library("0")]);
        assert_eq!(scan.refused, []);
    }

    #[test]
    fn follows_links_and_tells_of_those_that_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("plugins");
        fs::create_dir(&folder).unwrap();
        let target = root.path().join("build.so");
        fs::write(&target, "x").unwrap();
        symlink(&target, folder.join(library("good"))).unwrap();
        symlink(root.path().join("nothing"), folder.join(library("bad"))).unwrap();
        let scan = Scan::run(&Settings::for_tests(vec![folder], root.path()));
        assert_eq!(names(&scan), [library("good")]);
        assert_eq!(scan.files[0].target, target.canonicalize().unwrap());
        assert_eq!(scan.refused[0].1.kind, RefusalKind::Unreadable);
    }

    #[test]
    fn looks_at_no_more_files_than_allowed() {
        let root = tempfile::tempdir().unwrap();
        for index in 0..4 {
            fs::write(root.path().join(library(&index.to_string())), "x").unwrap();
        }
        let mut settings = Settings::for_tests(vec![root.path().to_path_buf()], root.path());
        settings.limits.files_max = 3;
        let scan = Scan::run(&settings);
        assert_eq!((scan.files.len(), &scan.refused[0].1.kind), (3, &RefusalKind::TooMany));
    }
}
