//! The prefix cache on disk: blocks and states that outlive memory and the process. One file for each, named by its key and its group
//! of caches, written beside its place and renamed into it, so that a crash leaves whole files or none. There is no index to keep in
//! step with them: each file opens with the record that the block table needs, and its time of modification is its last use.
//!
//! Every file carries two checksums, keyed by the folder's secret: of what is read at the start, and of the block. What
//! does not match is deleted and computed again. Blocks of one model only fit models with the same identity (weights,
//! plugin, device, options), so each identity has a folder of its own; one that no worker has opened for weeks, as its model
//! was replaced, is deleted by whichever worker starts next. The texts of users can be guessed from their blocks: folders
//! are closed to other users.

mod file;
mod secret;

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};

use super::blocks::{Key, Record};
use file::Checksums;
use pensieve_protocol::{outside::Outside, wire::DiskTier};

const LOCK: &str = "lock";
/// How long a folder is kept that no worker opens.
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
    /// Keeps other workers out of the folder for as long as it is open; none while another one has it.
    lock: Option<File>,
    buffer: Vec<u8>,
}

impl Store {
    /// Opens the folder of a model, or makes it, and takes it if no other worker has it.
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

    /// Takes the folder, unless another worker has it; true if it is this one's now.
    pub fn take(&mut self) -> io::Result<bool> {
        if self.lock.is_none() {
            match lock(&self.folder, true) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // A full disk keeps nobody from reading what is there.
                taken => drop(self.lock.insert(taken?).write_all_at(b"\n", 0)),
            }
            self.folder.parent().into_iter().for_each(sweep);
        }
        Ok(true)
    }

    /// True once the folder is this worker's. Until then nothing may be written there, and its content is not known.
    pub fn is_taken(&self) -> bool {
        self.lock.is_some()
    }

    /// The key of the hashes of blocks here.
    pub fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that the file of a group's block or slot takes.
    pub fn file_bytes(&self, group: usize) -> u64 {
        (file::header_bytes(self.block_tokens) + self.group_bytes.get(group).copied().unwrap_or(0)) as u64
    }

    pub fn group_bytes(&self, group: usize) -> usize {
        self.group_bytes.get(group).copied().unwrap_or(0)
    }

    /// The records that earlier runs left, the least recently used first. Files that are not whole blocks are deleted.
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
        // A clock that ticks slowly gives a parent and its child one time; the child is never the warmer one.
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

    /// Reads a block back into `block`, which has its length. After an error it holds nothing of use.
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
        // Only the order of eviction depends on it.
        let _ = touch(&file);
        Ok(())
    }

    pub fn remove(&self, key: Key, group: usize) {
        // A file that is gone already is what was wanted; one that stays is found again by the next run.
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

/// Makes this the time of a file's last modification, by writing what is there. The fence around a worker lets it change
/// bytes of files, and nothing else that belongs to them.
fn touch(file: &File) -> io::Result<()> {
    let mut first = [0];
    file.read_exact_at(&mut first, 0)?;
    file.write_all_at(&first, 0)
}

/// Refuses a folder in which another user may write. Whoever made it knows the secret in it, so that checksums would not
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

/// Keeps all others out of a model's folder.
fn lock(folder: &Path, create: bool) -> io::Result<File> {
    let lock = File::options().create(create).truncate(false).write(true).open(folder.join(LOCK))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::new(io::ErrorKind::WouldBlock, "another worker of this model has it"),
        TryLockError::Error(error) => error,
    })?;
    Ok(lock)
}

/// Deletes the folders of models that are not used any more. What cannot be deleted is met again by the next worker.
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
