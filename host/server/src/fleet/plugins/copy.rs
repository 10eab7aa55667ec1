//! Private copies of plugins: what is inspected and mapped is a copy that no other program writes to, named by its content.
//!
//! A user replaces a plugin by copying over it, which would change code under a running worker, and a check of a file that
//! can still change proves nothing. Several servers may share the cache folder, so a copy is locked (`flock`, shared) as long
//! as a process may still map it. The [`Cache`] owns the locks and deletes unused copies, now and then and when
//! it is dropped; a [`PrivateCopy`] is data and may be dropped anywhere.
//!
//! Copies of plugins that were in use when a server ended stay for the next one: macOS examines each new file at its first load,
//! which takes up to seconds for a large library, and a copy that is there need not be written. Its content is compared with its
//! name before it is used, so nothing depends on what was on its way to the disk when the machine stopped. They go when
//! they have not been used for a month, or when there are too many, those that were not used for longest first.

mod expiry;
#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};
use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

use super::{scan::Stamp, trust};
use crate::fleet::space::{self, NoRoom};
use expiry::{Unused, digest, expired};
use pensieve_protocol::{
    outside::Outside,
    refusal::{Refusal, RefusalKind},
};

/// How often a name is tried that other servers give and remove at the same time, before the copy gets a name of its own.
const NAME_ATTEMPTS_MAX: usize = 64;
/// Limit on the bytes of all unused copies: room for those of several releases.
const UNUSED_BYTES_MAX: u64 = 2 << 30;

/// Remedy for a private copy that cannot be written.
pub const NO_SPACE_HELP: &str =
    "free some room there, or set $PENSIEVE_HOME to a folder on another disk; it is tried again by itself";

#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    file_bytes_max: u64,
    unused_bytes_max: u64,
    free_bytes_of: fn(&Path) -> Option<u64>,
    held: Mutex<Vec<HeldCopy>>,
}

/// A copy that stays where it is as long as this value and the cache live.
#[derive(Debug)]
pub struct PrivateCopy {
    path: PathBuf,
    sha256: String,
    bytes: u64,
    /// True if it was written just now.
    is_new: bool,
    /// True for a copy that shall stay for later servers.
    stays: Arc<AtomicBool>,
    /// The cache counts its users by this.
    _used: Arc<()>,
}

/// The cache's side of a copy.
#[derive(Debug)]
struct HeldCopy {
    path: PathBuf,
    lock: File,
    stays: Arc<AtomicBool>,
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

    /// True if no process has mapped this very file yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Leaves it to the servers that come after this one. For a copy that turned out to be a plugin.
    pub(super) fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    /// A copy of nothing, which is never mapped.
    #[cfg(test)]
    pub(in crate::fleet) fn for_tests(sha256: &str) -> Self {
        let (path, sha256) = (sha256.into(), sha256.into());
        Self { path, sha256, bytes: 0, is_new: false, stays: Arc::default(), _used: Arc::new(()) }
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
        let (unused_bytes_max, free_bytes_of) = (UNUSED_BYTES_MAX, space::free_bytes as fn(&Path) -> Option<u64>);
        let cache = Self { folder, file_bytes_max, unused_bytes_max, free_bytes_of, held: Mutex::default() };
        cache.sweep();
        Ok(cache)
    }

    /// Deletes unused copies: its own first, then what other servers left, as far as that is not worth keeping. A copy whose
    /// lock a child has just inherited, which keeps it until it runs its program, is deleted by a later sweep.
    pub(super) fn sweep(&self) {
        let held = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for copy in held.extract_if(.., |copy| copy.used.strong_count() == 0) {
            remove_unused(&copy.path, &copy.lock);
        }
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        for path in expired(files.filter_map(|entry| Unused::of(&entry)).collect(), self.unused_bytes_max) {
            if let Ok(file) = File::open(&path) {
                remove_unused(&path, &file);
            }
        }
    }

    /// Copies a plugin's file, whose stamp must be this one before and after, unless there is a copy of its content.
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
        trust::file(source, &file, &metadata).map_err(CopyError::Refused)?;
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
        let has_changed = |file: &File| file.metadata().map_or(true, |metadata| Stamp::of(&metadata) != stamp);
        let sha256 = copy_and_hash(&mut file, None, stamp.bytes()).map_err(unreadable)?;
        if has_changed(&file) {
            return Err(CopyError::Changed);
        }
        if let Some(copy) = self.find(&sha256, stamp.bytes()) {
            return Ok(copy);
        }
        let uncopied = |error: io::Error| {
            if space::is_full(&error) { self.no_room(source, stamp.bytes()) } else { unreadable(error) }
        };
        // Asked first, as the last bytes of a disk are of more use to others than as a part of a copy.
        if self.free_bytes().is_some_and(|free| free < stamp.bytes()) {
            return Err(self.no_room(source, stamp.bytes()));
        }
        let mut partial = PartialCopy::create(&self.folder).map_err(uncopied)?;
        file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        let copied = copy_and_hash(&mut file, Some(&mut partial.file), stamp.bytes()).map_err(uncopied)?;
        if copied != sha256 || has_changed(&file) {
            return Err(CopyError::Changed);
        }
        self.keep(partial, sha256, stamp.bytes()).map_err(uncopied)
    }

    /// Room for copies; `None` if the system does not tell.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        (self.free_bytes_of)(&self.folder)
    }

    fn no_room(&self, source: &Path, needed: u64) -> CopyError {
        let room = NoRoom { folder: &self.folder, needed, free: self.free_bytes() };
        let name = Outside::path(source.file_name().unwrap_or(source.as_os_str())).to_string();
        let reason = format!("the private copy of plugin '{name}' {room}");
        CopyError::Refused(Refusal::new(RefusalKind::NoSpace, reason, NO_SPACE_HELP))
    }

    /// The copy of this content that is there, if it is sound.
    fn find(&self, sha256: &str, bytes: u64) -> Option<PrivateCopy> {
        let path = self.path(sha256);
        match existing(&path, sha256, bytes) {
            Existing::Sound(lock) => Some(self.hold(path, sha256.to_owned(), bytes, lock, false)),
            Existing::Damaged | Existing::Removed => None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{}", std::env::consts::DLL_SUFFIX))
    }

    /// Gives a whole copy its name, unless a sound one already has it. A name is never taken from another file: a server that
    /// has locked that file would go on to use the name, and lose it when this server ends.
    fn keep(&self, mut partial: PartialCopy, sha256: String, bytes: u64) -> io::Result<PrivateCopy> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        partial.file.set_permissions(Permissions::from_mode(0o500))?;
        // The lock lives as long as the copy; the descriptor that wrote the file must not.
        let lock = File::open(&partial.path)?;
        lock.lock_shared()?;
        let path = self.path(&sha256);
        for _ in 0..NAME_ATTEMPTS_MAX {
            // Not by a link: macOS has been seen to kill programs that were started through a fresh one.
            match renameat_with(CWD, &partial.path, CWD, &path, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    partial.path.clear();
                    return Ok(self.hold(path, sha256, bytes, lock, true));
                }
                Err(rustix::io::Errno::EXIST) => {}
                // This file system cannot tell.
                Err(_) => break,
            }
            match existing(&path, &sha256, bytes) {
                Existing::Sound(lock) => return Ok(self.hold(path, sha256, bytes, lock, false)),
                Existing::Removed => {}
                Existing::Damaged => break,
            }
        }
        let own = partial.path.file_name().unwrap_or_default().to_string_lossy().replace(['.', '-'], "");
        let path = self.path(&format!("{sha256}-{own}"));
        fs::rename(&partial.path, &path)?;
        partial.path.clear();
        Ok(self.hold(path, sha256, bytes, lock, true))
    }

    fn hold(&self, path: PathBuf, sha256: String, bytes: u64, lock: File, is_new: bool) -> PrivateCopy {
        // The time of the last use decides what goes first. The time of change stays, as it may be part of what the system
        // remembers of a file that it has examined.
        let _ = lock.set_times(fs::FileTimes::new().set_accessed(SystemTime::now()));
        let (used, stays) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
        let held = HeldCopy { path: path.clone(), lock, stays: stays.clone(), used: Arc::downgrade(&used) };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(held);
        PrivateCopy { path, sha256, bytes, is_new, stays, _used: used }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let stays = |copy: &HeldCopy| copy.stays.load(Ordering::Relaxed) && digest(&copy.path).is_some();
        // One file may have been taken several times.
        let staying: HashSet<PathBuf> = held.iter().filter(|copy| stays(copy)).map(|copy| copy.path.clone()).collect();
        for copy in held.drain(..).filter(|copy| !staying.contains(&copy.path)) {
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
    if sound {
        return Existing::Sound(file);
    }
    // No other process can lock it now, but it may have been damaged since its last user ended.
    if file.unlock().is_ok() && remove_unused(path, &file) { Existing::Removed } else { Existing::Damaged }
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

/// Removes a copy if no other process, and no other user in this one, holds its lock; true if it is gone.
fn remove_unused(path: &Path, file: &File) -> bool {
    file.try_lock().is_ok() && is_named(path, file) && fs::remove_file(path).is_ok()
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
