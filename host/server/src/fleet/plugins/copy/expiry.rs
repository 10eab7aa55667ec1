//! Which files of the cache may go. Whether a process still maps one is for its lock to say.

use std::{
    fs::DirEntry,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a copy may take that is not locked yet.
pub(super) const UNLOCKED_AGE_MAX: Duration = Duration::from_secs(60);
/// How long an unused copy is kept.
pub(super) const UNUSED_AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
const DIGEST_CHARS: usize = 64;

/// The digest that a copy is named by; nothing for any other file.
pub(super) fn digest(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?.strip_suffix(std::env::consts::DLL_SUFFIX)?;
    let is_digest = name.len() == DIGEST_CHARS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_digest.then_some(name)
}

/// A file of the cache that may be unused.
pub(super) struct Unused {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// How long ago it was used, or written if it is no copy.
    pub(super) age: Duration,
}

impl Unused {
    pub(super) fn of(entry: &DirEntry) -> Option<Self> {
        let metadata = entry.metadata().ok()?;
        let path = entry.path();
        let time = if digest(&path).is_some() { metadata.accessed() } else { metadata.modified() };
        let age = time.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        Some(Self { path, bytes: metadata.len(), age })
    }
}

/// The files to remove unless they are locked: old copies, copies beyond the limit of bytes, and files that are no copies. Another
/// server may be about to lock the copy that it has just begun.
pub(super) fn expired(mut files: Vec<Unused>, bytes_max: u64) -> Vec<PathBuf> {
    files.sort_by_key(|file| file.age);
    let mut bytes = 0_u64;
    files.retain(|file| {
        if digest(&file.path).is_none() {
            let is_begun = file.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            return !is_begun || file.age >= UNLOCKED_AGE_MAX;
        }
        bytes = bytes.saturating_add(file.bytes);
        file.age >= UNUSED_AGE_MAX || bytes > bytes_max
    });
    files.into_iter().map(|file| file.path).collect()
}
