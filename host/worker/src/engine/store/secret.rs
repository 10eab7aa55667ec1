//! The secret of a disk tier, which keys hashes and checksums. The first worker creates it and stores it beside the
//! blocks: without it they could not be found again after a restart.
//!
//! An incomplete secret (disk full, crash) is replaced: blocks written under it are lost, as their checksums no longer
//! match, and the cache keeps working. Workers that start together agree through a lock.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const FILE: &str = "secret";
const LOCK: &str = "secret.lock";

pub(super) fn read_or_make(folder: &Path) -> io::Result<[u8; 16]> {
    if let Some(secret) = read(folder)? {
        return Ok(secret);
    }
    let options = || File::options().write(true).create(true).truncate(true).mode(0o600).clone();
    let lock = options().open(folder.join(LOCK))?;
    lock.lock()?;
    // Another worker may have created it meanwhile.
    if let Some(secret) = read(folder)? {
        return Ok(secret);
    }
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let partial = folder.join(format!("{FILE}.partial"));
    let mut file = options().open(&partial)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    fs::rename(&partial, folder.join(FILE))?;
    Ok(secret)
}

/// Reads the secret; `None` if it is missing or incomplete.
fn read(folder: &Path) -> io::Result<Option<[u8; 16]>> {
    let mut bytes = Vec::new();
    match File::open(folder.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?.take(17).read_to_end(&mut bytes)?,
    };
    Ok(bytes.try_into().ok())
}
