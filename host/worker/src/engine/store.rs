//! The prefix cache on disk: blocks and states that outlive memory and the process. Each has one file, named by its key
//! and cache group, written to a temporary name and renamed, so that a crash leaves whole files or none. No separate
//! index has to be kept in sync: each file starts with the record that the block table needs, and its modification time
//! is its last use.
//!
//! Every file carries two checksums, keyed by the folder's secret: one of the header, one of the block. A file that
//! does not match is deleted, and its block is computed again. Blocks are only valid for models with the same identity
//! (weights, plugin, device, options), so each identity has its own folder; a folder that no worker has opened for
//! weeks, because its model was replaced, is deleted by the next worker that starts. Users' texts can be guessed from
//! their blocks, so other users cannot read the folders.

mod file;
mod secret;

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use sha2::{Digest, Sha256};

use super::blocks::{Key, Record};
use file::Checksums;
use pensieve_protocol::{outside::Outside, wire::DiskTier};

const LOCK: &str = "lock";
/// Interval between attempts to take a folder from another worker.
const TURN: Duration = Duration::from_millis(20);
/// How long an unopened folder is kept.
const UNUSED_MAX: Duration = Duration::from_secs(14 * 24 * 3600);

/// The blocks of one model on disk.
pub struct Store {
    folder: PathBuf,
    secret: [u8; 16],
    checksums: Checksums,
    block_tokens: usize,
    /// Bytes of a block or slot of each group.
    group_bytes: Vec<usize>,
    budget: u64,
    /// Keeps other workers out of the folder while it is open; `None` while another worker has it.
    lock: Option<File>,
    buffer: Vec<u8>,
}

impl Store {
    /// Opens or creates a model's folder, and takes it if no other worker has it.
    pub fn open(tier: &DiskTier, identity: &str, block_tokens: usize, group_bytes: Vec<usize>) -> io::Result<Self> {
        let private = |folder: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        private(&tier.folder)?;
        check_owner(&tier.folder)?;
        let secret = secret::read_or_make(&tier.folder)?;
        let mut hasher = Sha256::new();
        hasher.update(format!("{identity}\0{block_tokens}\0{group_bytes:?}"));
        let name = format!("{:x}", hasher.finalize());
        let folder = tier.folder.join(&name[..32]);
        private(&folder)?;
        check_owner(&folder)?;
        let (checksums, budget, buffer) = (Checksums::new(&secret), tier.bytes, Vec::new());
        let mut store = Self { folder, secret, checksums, block_tokens, group_bytes, budget, lock: None, buffer };
        store.take()?;
        Ok(store)
    }

    /// Takes the folder unless another worker has it; returns true if this worker has it now.
    pub fn take(&mut self) -> io::Result<bool> {
        if self.lock.is_none() {
            match lock(&self.folder, true) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // A full disk prevents nobody from reading.
                taken => drop(self.lock.insert(taken?).write_all_at(b"\n", 0)),
            }
            self.folder.parent().into_iter().for_each(sweep);
        }
        Ok(true)
    }

    /// Waits up to `patience` for another worker to give up the folder; returns true if this worker has it now.
    pub fn take_within(&mut self, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        loop {
            if self.take()? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(TURN);
        }
    }

    /// True once the folder is this worker's. Until then nothing may be written to it, and its content is unknown.
    pub fn is_taken(&self) -> bool {
        self.lock.is_some()
    }

    /// The key of the block hashes in this folder.
    pub fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Size of the file of a group's block or slot.
    pub fn file_bytes(&self, group: usize) -> u64 {
        (file::header_bytes(self.block_tokens) + self.group_bytes.get(group).copied().unwrap_or(0)) as u64
    }

    pub fn group_bytes(&self, group: usize) -> usize {
        self.group_bytes.get(group).copied().unwrap_or(0)
    }

    /// Returns the records that earlier runs left, least recently used first. Deletes files that are not whole blocks.
    pub fn records(&self) -> io::Result<Vec<Record>> {
        let mut found: Vec<(SystemTime, Record)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == LOCK {
                continue;
            }
            let record = name.to_str().and_then(file::key_of).and_then(|name| self.record(&entry.path(), name).ok());
            match (record, entry.metadata().and_then(|metadata| metadata.modified())) {
                (Some(record), Ok(used)) => found.push((used, record)),
                _ => drop(fs::remove_file(entry.path())),
            }
        }
        // A coarse clock may give parent and child the same time; the child must never be the warmer one.
        found.sort_by(|(a_used, a), (b_used, b)| a_used.cmp(b_used).then(b.depth.cmp(&a.depth)));
        Ok(found.into_iter().map(|(_, record)| record).collect())
    }

    pub fn write(&mut self, record: &Record, block: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        file::header(&self.checksums, record, block, &mut self.buffer);
        let (path, partial) = (self.path(record.key, record.group), self.folder.join("partial"));
        let mut file = File::create(&partial)?;
        io::Write::write_all(&mut file, &self.buffer)?;
        io::Write::write_all(&mut file, block)?;
        fs::rename(&partial, path)
    }

    /// Reads a block back into `block`, which must have its length. After an error its content is undefined.
    pub fn read(&self, key: Key, group: usize, block: &mut [u8]) -> io::Result<()> {
        let mut file = File::options().read(true).write(true).open(self.path(key, group))?;
        let (record, sum) = file::read_header(&self.checksums, &mut file, self.block_tokens, &self.group_bytes)?;
        if (record.key, record.group) != (key, group) || block.len() != self.group_bytes(group) {
            return Err(file::damaged());
        }
        io::Read::read_exact(&mut file, block)?;
        if self.checksums.of(block) != sum {
            return Err(file::damaged());
        }
        // Only the eviction order depends on it.
        let _ = touch(&file);
        Ok(())
    }

    pub fn remove(&self, key: Key, group: usize) {
        // If the file is already gone, fine; if it stays, the next run finds it.
        let _ = fs::remove_file(self.path(key, group));
    }

    fn record(&self, path: &Path, (key, group): (Key, usize)) -> io::Result<Record> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() != self.file_bytes(group) {
            return Err(file::damaged());
        }
        let (record, _) = file::read_header(&self.checksums, &mut file, self.block_tokens, &self.group_bytes)?;
        if (record.key, record.group) == (key, group) { Ok(record) } else { Err(file::damaged()) }
    }

    fn path(&self, key: Key, group: usize) -> PathBuf {
        self.folder.join(file::name_of(key, group))
    }
}

/// Sets a file's modification time to now by rewriting a byte of it. The fence around a worker lets it change file
/// contents but no metadata.
fn touch(file: &File) -> io::Result<()> {
    let mut first = [0];
    file.read_exact_at(&mut first, 0)?;
    file.write_all_at(&first, 0)
}

/// Rejects a folder in which another user may write. Whoever created it knows the secret in it, so checksums would not
/// keep forged blocks out of answers.
fn check_owner(folder: &Path) -> io::Result<()> {
    let about = fs::metadata(folder)?;
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    let own = rustix::process::geteuid().as_raw();
    if owner != own && owner != 0 {
        return Err(io::Error::other(format!("'{}' belongs to another user (id {owner})", Outside::path(folder))));
    }
    if mode & 0o022 != 0 {
        let what = format!("'{}' is writable by others (mode {mode:04o}): chmod go-w", Outside::path(folder));
        return Err(io::Error::other(what));
    }
    Ok(())
}

/// Locks a model's folder against all other workers.
fn lock(folder: &Path, create: bool) -> io::Result<File> {
    let lock = File::options().create(create).truncate(false).write(true).open(folder.join(LOCK))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::new(io::ErrorKind::WouldBlock, "another worker of this model has it"),
        TryLockError::Error(error) => error,
    })?;
    Ok(lock)
}

/// Deletes the folders of models no longer in use. A folder that cannot be deleted is left to the next worker.
fn sweep(tier: &Path) {
    let Ok(entries) = fs::read_dir(tier) else { return };
    for folder in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let opened = fs::symlink_metadata(folder.join(LOCK)).and_then(|lock| lock.modified());
        let unused = opened.is_ok_and(|opened| opened.elapsed().is_ok_and(|unused| unused > UNUSED_MAX));
        if unused && let Ok(_lock) = lock(&folder, false) {
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

#[cfg(test)]
mod tests;
