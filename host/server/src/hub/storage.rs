//! The cache on disk: `models--OWNER--REPO/{blobs/DIGEST, snapshots/COMMIT/NAME → blob, refs/REVISION}`.
//!
//! A file is written to `blobs/DIGEST.partial`, and renamed once it is complete and its digest matches. The partial
//! file is locked meanwhile, so that two programs that pull the same file do not write to it at once. It remains if the
//! program is interrupted, and the next pull resumes it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use super::{
    HubError, HubErrorKind, HubName, Progress,
    remote::{Remote, is_hex},
    transfer::HubClient,
};
use pensieve_protocol::outside::Outside;

#[derive(Debug)]
pub(super) struct Storage {
    cached: hf_hub::CacheRepo,
    folder: PathBuf,
    revision: String,
}

impl Storage {
    pub(super) fn new(cache: &Path, name: &HubName) -> Self {
        let model = hf_hub::RepoType::Model;
        let repo = hf_hub::Repo::with_revision(name.repository(), model, name.revision().to_owned());
        let folder = cache.join(repo.folder_name());
        Self {
            cached: hf_hub::Cache::new(cache.to_path_buf()).repo(repo),
            folder,
            revision: name.revision().to_owned(),
        }
    }

    /// The commit that the revision resolved to at the last pull.
    pub(super) fn commit(&self) -> Option<String> {
        if is_hex(&self.revision, 40) {
            return Some(self.revision.clone());
        }
        let commit = fs::read_to_string(self.folder.join("refs").join(&self.revision)).ok()?;
        let commit = commit.trim();
        is_hex(commit, 40).then(|| commit.to_owned())
    }

    pub(super) fn remember(&self, commit: &str) -> Result<(), HubError> {
        self.cached.create_ref(commit).map_err(|error| HubError::file(&self.folder.join("refs"), &error))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.cached.pointer_path(commit)
    }

    /// Files present in a snapshot, by their names on the hub.
    pub(super) fn files(&self, commit: &str) -> Vec<String> {
        let root = self.snapshot(commit);
        let (mut files, mut pending) = (Vec::new(), vec![root.clone()]);
        while let Some(folder) = pending.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    pending.push(path);
                } else if path.is_file() {
                    files.extend(path.strip_prefix(&root).ok().and_then(Path::to_str).map(str::to_owned));
                }
            }
        }
        files
    }

    pub(super) fn prepare(&self, commit: &str) -> Result<(), HubError> {
        for folder in [self.blobs(), self.snapshot(commit)] {
            fs::create_dir_all(&folder).map_err(|error| HubError::file(&folder, &error))?;
        }
        Ok(())
    }

    /// Checks that the missing files fit on the disk.
    pub(super) fn check_space(&self, files: &[&Remote]) -> Result<(), HubError> {
        let mut missing = 0_u64;
        for remote in files {
            if !self.blob(remote).is_file() {
                let received = self.partial(remote).metadata().map_or(0, |metadata| metadata.len());
                missing = missing.saturating_add(remote.bytes.saturating_sub(received));
            }
        }
        let Ok(disk) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if missing <= free {
            return Ok(());
        }
        let message = format!(
            "no space for {} MB in '{}': {} MB are free",
            missing.div_ceil(1_000_000),
            Outside::path(&self.folder),
            free / 1_000_000
        );
        Err(HubError::new(HubErrorKind::Space, message).help("free some space, or set HF_HUB_CACHE to another disk"))
    }

    /// Downloads a file unless its blob exists.
    pub(super) fn receive(
        &self,
        client: &HubClient,
        url: &str,
        remote: &Remote,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let (blob, partial) = (self.blob(remote), self.partial(remote));
        let failed = |error: io::Error| HubError::file(&partial, &error);
        let mut file = loop {
            if is_whole(&blob, remote) {
                return Ok(());
            }
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&partial);
            let file = file.map_err(failed)?;
            if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
                progress.say(&format!("waiting for another program that is downloading {}", remote.name));
                file.lock().map_err(failed)?;
            }
            // The previous holder of the lock may have finished the file, or removed it.
            if is_same(&file, &partial) {
                break file;
            }
        };
        client.download(url, remote, &mut file, &partial, progress)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&partial, &blob).map_err(failed)
    }

    /// Links a file name to its blob. The link is relative, so that the cache can be moved.
    pub(super) fn link(&self, commit: &str, remote: &Remote) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(&remote.name);
        let failed = |error: io::Error| HubError::file(&link, &error);
        let up = "../".repeat(2 + remote.name.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", remote.digest.as_str()));
        if fs::read_link(&link).is_ok_and(|current| current == target) {
            return Ok(());
        }
        if let Some(folder) = link.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let fresh = self.blobs().join(format!("{}.link.{}", remote.digest.as_str(), std::process::id()));
        let _ = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&target, &fresh).map_err(failed)?;
        fs::rename(&fresh, &link).map_err(failed)
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    fn blob(&self, remote: &Remote) -> PathBuf {
        self.blobs().join(remote.digest.as_str())
    }

    fn partial(&self, remote: &Remote) -> PathBuf {
        self.blobs().join(format!("{}.partial", remote.digest.as_str()))
    }
}

/// True if a blob exists with the right length. Its digest was checked before it got its name.
fn is_whole(blob: &Path, remote: &Remote) -> bool {
    blob.metadata().is_ok_and(|metadata| metadata.len() == remote.bytes)
}

fn is_same(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(locked), Ok(current)) = (file.metadata(), path.metadata()) else { return false };
    (locked.dev(), locked.ino()) == (current.dev(), current.ino())
}
