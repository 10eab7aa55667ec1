//! Room on disks. A full disk shows in many ways, so whatever is about to write much asks first, and says which folder has
//! how much room.

use std::{fmt, io, path::Path};

use pensieve_protocol::outside::Outside;

/// Bytes that this user may still write to the disk of a folder, which need not exist yet; `None` if the system does not
/// tell.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// True for the errors of a write to a disk without room, or beyond a quota.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A folder whose disk has no room. A predicate about what shall be written.
#[derive(Debug)]
pub(super) struct NoRoom<'a> {
    pub(super) folder: &'a Path,
    pub(super) needed: u64,
    pub(super) free: Option<u64>,
}

impl fmt::Display for NoRoom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "finds no room in '{}': it takes {}", Outside::path(&self.folder), Mebibytes(self.needed))?;
        match self.free {
            Some(free) => write!(f, ", and {} are free", Mebibytes(free)),
            None => Ok(()),
        }
    }
}

struct Mebibytes(u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[allow(clippy::cast_precision_loss, reason = "one decimal is shown")]
        let mebibytes = self.0 as f64 / f64::from(1 << 20);
        write!(f, "{mebibytes:.1} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_yet_is_on_the_disk_of_its_parent() {
        let home = std::env::temp_dir();
        let (there, below) = (free_bytes(&home), free_bytes(&home.join("not/there/yet")));
        assert!(there.is_some() && below.is_some());
    }

    #[test]
    fn says_where_how_much_is_needed_and_how_much_there_is() {
        let room = |free| NoRoom { folder: Path::new("/data"), needed: 25 << 19, free }.to_string();
        let expected = "finds no room in '/data': it takes 12.5 MiB, and 6.0 MiB are free";
        assert_eq!(room(Some(6 << 20)), expected);
        assert_eq!(room(None), "finds no room in '/data': it takes 12.5 MiB");
    }
}
