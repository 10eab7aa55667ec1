//! The secret of a disk tier, which keys hashes and checksums. It is made once, by whichever worker comes first, and lies
//! beside the blocks: without it they could not be found again after a restart.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const FILE: &str = "secret";

/// The folder's secret.
pub(super) fn read_or_make(folder: &Path) -> io::Result<[u8; 16]> {
    match read(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let own = folder.join(format!("{FILE}.{}", std::process::id()));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&own)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    // A link fails where a file is: of two workers that come at once, the second takes the first one's.
    let linked = fs::hard_link(&own, folder.join(FILE));
    fs::remove_file(&own)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read(folder),
    }
}

fn read(folder: &Path) -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    File::open(folder.join(FILE))?.read_exact(&mut secret)?;
    Ok(secret)
}
