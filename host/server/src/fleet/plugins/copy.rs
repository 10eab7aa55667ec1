//! Private copies of plugins: what is inspected and mapped is a copy that no other program writes to, named by its content.
//!
//! A user replaces a plugin by copying over it, which would change code under a running worker, and a check of a file that
//! can still change proves nothing. Several servers may share the cache folder, so a copy is locked (`flock`, shared) as long
//! as a process may still map it. The [`Cache`] owns the locks and deletes unused copies, now and then and when
//! it is dropped; a [`PrivateCopy`] is data and may be dropped anywhere. What a killed server left is swept at the next start.

use sha2::{Digest, Sha256};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{scan::Stamp, trust};
use pensieve_protocol::{
    outside::Outside,
    refusal::{Refusal, RefusalKind},
};

/// How long a copy may take that is not locked yet.
const UNLOCKED_AGE_MAX: Duration = Duration::from_secs(60);

/// How often a name is tried that other servers give and remove at the same time, before the copy gets a name of its own.
const LINK_ATTEMPTS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    file_bytes_max: u64,
    held: Mutex<Vec<HeldCopy>>,
}

/// A copy that stays where it is as long as this value and the cache live.
#[derive(Debug)]
pub struct PrivateCopy {
    path: PathBuf,
    sha256: String,
    bytes: u64,
    /// The cache counts its users by this.
    _used: Arc<()>,
}

/// The cache's side of a copy.
#[derive(Debug)]
struct HeldCopy {
    path: PathBuf,
    lock: File,
    used: Weak<()>,
}

#[derive(Debug)]
pub(super) enum CopyError {
    /// The file changed meanwhile; look again later.
    Changed,
    Refused(Refusal),
}

impl PrivateCopy {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A copy of nothing, which is never mapped.
    #[cfg(test)]
    pub(in crate::fleet) fn for_tests(sha256: &str) -> Self {
        Self { path: sha256.into(), sha256: sha256.into(), bytes: 0, _used: Arc::new(()) }
    }
}

impl Cache {
    /// Opens the folder, makes it if need be, and sweeps unused copies.
    pub(super) fn open(folder: &Path, file_bytes_max: u64) -> Result<Self, Refusal> {
        let help = "set $PENSIEVE_HOME to a folder of your own";
        let failed = |error: io::Error| {
            let reason = format!("the plugin cache '{}' cannot be used: {error}", Outside::path(&folder));
            Refusal::new(RefusalKind::Cache, reason, help)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let metadata = fs::symlink_metadata(folder).map_err(failed)?;
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
            let reason = format!("the plugin cache '{}' is not a folder of this user", Outside::path(&folder));
            return Err(Refusal::new(RefusalKind::Cache, reason, help));
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let folder = folder.canonicalize().map_err(failed)?;
        let cache = Self { folder, file_bytes_max, held: Mutex::default() };
        cache.sweep();
        Ok(cache)
    }

    /// Deletes unused copies: its own first, then what other servers left. A copy whose lock a child has just
    /// inherited, which keeps it until it runs its program, is deleted by a later sweep.
    pub(super) fn sweep(&self) {
        let held = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for copy in held.extract_if(.., |copy| copy.used.strong_count() == 0) {
            remove_unused(&copy.path, &copy.lock);
        }
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let age = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let age = age.and_then(|modified| modified.elapsed().ok()).unwrap_or_default();
            // Another server may be about to lock the copy that it has just begun.
            if (entry.file_name().to_string_lossy().starts_with('.') && age < UNLOCKED_AGE_MAX)
                || entry.file_type().is_ok_and(|kind| !kind.is_file())
            {
                continue;
            }
            if let Ok(file) = File::open(entry.path()) {
                remove_unused(&entry.path(), &file);
            }
        }
    }

    /// Copies a plugin's file, whose stamp must be this one before and after.
    pub(super) fn take(&self, source: &Path, stamp: Stamp) -> Result<PrivateCopy, CopyError> {
        let unreadable = |error: io::Error| {
            let reason = format!("plugin '{}' cannot be copied: {error}", Outside::path(&source));
            CopyError::Refused(Refusal::new(RefusalKind::Unreadable, reason, "check that this user may read it"))
        };
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CopyError::Changed),
            opened => opened.map_err(unreadable)?,
        };
        let metadata = file.metadata().map_err(unreadable)?;
        if Stamp::of(&metadata) != stamp {
            return Err(CopyError::Changed);
        }
        trust::file(source, &metadata).map_err(CopyError::Refused)?;
        if metadata.len() > self.file_bytes_max {
            let reason = format!(
                "plugin '{}' has {} bytes, more than {}",
                Outside::path(&source),
                metadata.len(),
                self.file_bytes_max
            );
            return Err(CopyError::Refused(Refusal::new(
                RefusalKind::TooLarge,
                reason,
                "strip it of debug information",
            )));
        }
        let mut partial = PartialCopy::create(&self.folder).map_err(unreadable)?;
        let sha256 = copy_and_hash(&mut file, Some(&mut partial.file), stamp.bytes()).map_err(unreadable)?;
        if file.metadata().map_or(true, |metadata| Stamp::of(&metadata) != stamp) {
            return Err(CopyError::Changed);
        }
        self.keep(partial, sha256, stamp.bytes()).map_err(unreadable)
    }

    /// Gives a whole copy its name, unless a sound one already has it. A name is never taken from another file: a server that
    /// has locked that file would go on to use the name, and lose it when this server ends.
    fn keep(&self, mut partial: PartialCopy, sha256: String, bytes: u64) -> io::Result<PrivateCopy> {
        partial.file.set_permissions(Permissions::from_mode(0o500))?;
        partial.file.sync_all()?;
        // The lock lives as long as the copy; the descriptor that wrote the file must not.
        let lock = File::open(&partial.path)?;
        lock.lock_shared()?;
        let path = self.folder.join(format!("{sha256}{}", std::env::consts::DLL_SUFFIX));
        for _ in 0..LINK_ATTEMPTS_MAX {
            match fs::hard_link(&partial.path, &path) {
                Ok(()) => return Ok(self.hold(path, sha256, bytes, lock)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // This file system has no links.
                Err(_) => break,
            }
            match existing(&path, &sha256, bytes) {
                Existing::Sound(lock) => return Ok(self.hold(path, sha256, bytes, lock)),
                Existing::Removed => {}
                Existing::Damaged => break,
            }
        }
        let own = partial.path.file_name().unwrap_or_default().to_string_lossy().replace(['.', '-'], "");
        let path = self.folder.join(format!("{sha256}-{own}{}", std::env::consts::DLL_SUFFIX));
        fs::rename(&partial.path, &path)?;
        partial.path.clear();
        Ok(self.hold(path, sha256, bytes, lock))
    }

    fn hold(&self, path: PathBuf, sha256: String, bytes: u64, lock: File) -> PrivateCopy {
        let used = Arc::new(());
        let held = HeldCopy { path: path.clone(), lock, used: Arc::downgrade(&used) };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(held);
        PrivateCopy { path, sha256, bytes, _used: used }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        for copy in held.drain(..) {
            remove_unused(&copy.path, &copy.lock);
        }
    }
}

/// The file under a name that another server has already given to a copy of the same content.
enum Existing {
    /// A copy whose content is right, locked.
    Sound(File),
    /// It is gone: its last user has removed it.
    Removed,
    /// A file with other content, or one that cannot be read.
    Damaged,
}

fn existing(path: &Path, sha256: &str, bytes: u64) -> Existing {
    let locked = || -> io::Result<File> {
        let file = File::open(path)?;
        file.lock_shared()?;
        Ok(file)
    };
    let mut file = match locked() {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Existing::Removed,
        Err(_) => return Existing::Damaged,
    };
    // It may have been removed between opening and locking, and the name given anew.
    if !is_named(path, &file) {
        return Existing::Removed;
    }
    let sound = file.metadata().is_ok_and(|metadata| metadata.len() == bytes)
        && copy_and_hash(&mut file, None, bytes).is_ok_and(|found| found == sha256)
        && file.seek(SeekFrom::Start(0)).is_ok();
    if sound { Existing::Sound(file) } else { Existing::Damaged }
}

/// True if this name leads to this open file.
fn is_named(path: &Path, file: &File) -> bool {
    let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    matches!((fs::symlink_metadata(path), file.metadata()), (Ok(named), Ok(open)) if same(&named, &open))
}

/// Reads exactly `bytes` bytes, writes them on, and tells their SHA-256.
fn copy_and_hash(from: &mut File, mut to: Option<&mut File>, bytes: u64) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut rest = bytes;
    while rest > 0 {
        let len = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let read = from.read(&mut buffer[..len])?;
        if read == 0 {
            // The file shrank; its stamp will tell.
            break;
        }
        digest.update(&buffer[..read]);
        if let Some(to) = &mut to {
            to.write_all(&buffer[..read])?;
        }
        rest = rest.saturating_sub(read as u64);
    }
    Ok(format!("{:x}", digest.finalize()))
}

/// Removes a copy if no other process, and no other user in this one, holds its lock.
fn remove_unused(path: &Path, file: &File) {
    if file.try_lock().is_ok() && is_named(path, file) {
        // Another process may have removed it.
        let _ = fs::remove_file(path);
    }
}

/// A copy that is being written; removed unless it was given a name.
struct PartialCopy {
    path: PathBuf,
    file: File,
}

impl PartialCopy {
    fn create(folder: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{}-{next}.partial", std::process::id()));
        // A process of the same id may have left one.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.lock_shared()?;
        Ok(Self { path, file })
    }
}

impl Drop for PartialCopy {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn stamp(path: &Path) -> Stamp {
        Stamp::of(&path.metadata().unwrap())
    }

    fn copies(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn keeps_the_old_content_when_the_file_is_written_over() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
        let cache = Cache::open(&folder, 1 << 20).unwrap();
        fs::write(&source, b"one").unwrap();
        let one = cache.take(&source, stamp(&source)).unwrap();
        assert_eq!(one.sha256(), "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
        fs::write(&source, b"three").unwrap();
        let three = cache.take(&source, stamp(&source)).unwrap();
        assert_eq!(fs::read(one.path()).unwrap(), b"one");
        assert_eq!(fs::read(three.path()).unwrap(), b"three");
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn removes_a_copy_once_its_last_user_has_let_go() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
        fs::write(&source, b"one").unwrap();
        let (cache, other) = (Cache::open(&folder, 9).unwrap(), Cache::open(&folder, 9).unwrap());
        let first = cache.take(&source, stamp(&source)).unwrap();
        let second = other.take(&source, stamp(&source)).unwrap();
        assert_eq!((first.path(), copies(&folder)), (second.path(), 1));
        drop(first);
        cache.sweep();
        assert_eq!(copies(&folder), 1, "the second user still has it");
        cache.sweep();
        drop(second);
        assert_eq!(copies(&folder), 1, "dropping a copy deletes nothing");
        cache.sweep();
        assert_eq!(copies(&folder), 1, "it is the other server's to delete");
        other.sweep();
        assert_eq!(copies(&folder), 0);
        let _third = cache.take(&source, stamp(&source)).unwrap();
        drop(cache);
        assert_eq!(copies(&folder), 0, "a server that ends takes its copies with it");
    }

    #[test]
    fn sweeps_what_a_killed_server_left_and_spares_what_is_in_use() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
        fs::write(&source, b"one").unwrap();
        let cache = Cache::open(&folder, 9).unwrap();
        let used = cache.take(&source, stamp(&source)).unwrap();
        fs::write(folder.join("left.so"), b"left").unwrap();
        let partial = File::create(folder.join(".1-0.partial")).unwrap();
        partial.set_modified(SystemTime::now() - 2 * UNLOCKED_AGE_MAX).unwrap();
        drop(partial);
        Cache::open(&folder, 9).unwrap();
        assert_eq!(copies(&folder), 1);
        assert!(used.path().exists());
    }

    #[test]
    fn leaves_a_damaged_copy_alone_and_makes_another() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
        fs::write(&source, b"one").unwrap();
        let cache = Cache::open(&folder, 9).unwrap();
        let damaged = cache.take(&source, stamp(&source)).unwrap();
        fs::remove_file(damaged.path()).unwrap();
        fs::write(damaged.path(), b"two").unwrap();
        let sound = cache.take(&source, stamp(&source)).unwrap();
        assert_eq!(fs::read(sound.path()).unwrap(), b"one");
        assert_eq!(fs::read(damaged.path()).unwrap(), b"two");
        drop((damaged, sound));
        cache.sweep();
        assert_eq!(copies(&folder), 0);
    }

    /// Many servers that start and end at once: each must find the copy that it was given, for as long as it has it.
    #[test]
    fn a_copy_stays_while_other_users_take_and_release_theirs() {
        const USERS: usize = 8;
        const ROUNDS: usize = 200;
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
        fs::write(&source, b"one").unwrap();
        let stamp = stamp(&source);
        let take_and_release = || {
            let lost = (0..ROUNDS).filter(|_| {
                // Every round opens the cache as a server does that has just started.
                let cache = Cache::open(&folder, 9).unwrap();
                let copy = cache.take(&source, stamp).unwrap();
                std::thread::yield_now();
                fs::read(copy.path()).ok().as_deref() != Some(b"one".as_slice())
            });
            lost.count()
        };
        let lost: usize = std::thread::scope(|scope| {
            let users: Vec<_> = (0..USERS).map(|_| scope.spawn(take_and_release)).collect();
            users.into_iter().map(|user| user.join().unwrap()).sum()
        });
        assert_eq!(lost, 0, "of {} copies", USERS * ROUNDS);
        Cache::open(&folder, 9).unwrap();
        assert_eq!(copies(&folder), 0);
    }

    #[test]
    fn refuses_what_is_too_large_or_writable_by_others_or_has_changed() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
        fs::write(&source, b"0123456789").unwrap();
        let cache = Cache::open(&folder, 9).unwrap();
        let refusal = |found| match found {
            Err(CopyError::Refused(refusal)) => refusal.kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal(cache.take(&source, stamp(&source))), RefusalKind::TooLarge);
        fs::write(&source, b"0").unwrap();
        fs::set_permissions(&source, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(refusal(cache.take(&source, stamp(&source))), RefusalKind::Untrusted);
        let old = stamp(&source);
        fs::write(&source, b"01").unwrap();
        assert!(matches!(cache.take(&source, old), Err(CopyError::Changed)));
        assert_eq!(copies(&folder), 0);
    }
}
