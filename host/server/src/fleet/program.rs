//! The file of this program, which children run with other subcommands.
//!
//! On Linux `/proc/self/exe` is the running version, whatever happens to the file. On other systems children are
//! started by path. If the file was replaced in the meantime, it is another version; and if it was overwritten in
//! place, macOS kills processes started from it, because its pages no longer match the signature that the kernel
//! remembers. So children are started only from the file that was there when this process started.

use std::{
    fs::Metadata,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::SystemTime,
};

use pensieve_protocol::outside::Outside;

const LINUX: &str = "/proc/self/exe";

static RUNNING: OnceLock<ProgramFile> = OnceLock::new();

/// Returns the path from which children are started.
pub(super) fn running() -> PathBuf {
    let found = || {
        let linux = Path::new(LINUX);
        let executable = std::env::current_exe().unwrap_or_default();
        // A link may point to another version later.
        let resolved = executable.canonicalize().unwrap_or(executable);
        ProgramFile::new(if linux.exists() { linux.to_path_buf() } else { resolved })
    };
    RUNNING.get_or_init(found).path.clone()
}

/// Fails if this is the path of the running program but the file there has changed.
pub(crate) fn check(program: &Path) -> io::Result<()> {
    RUNNING.get().filter(|running| running.path == program).map_or(Ok(()), ProgramFile::check)
}

struct ProgramFile {
    path: PathBuf,
    /// `None` if there was no such file; then nothing is checked.
    identity: Option<Identity>,
}

#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl ProgramFile {
    fn new(path: PathBuf) -> Self {
        let identity = path.metadata().ok().as_ref().map(Identity::of);
        Self { path, identity }
    }

    fn check(&self) -> io::Result<()> {
        let found = self.path.metadata().ok().as_ref().map(Identity::of);
        if self.identity.is_none() || found == self.identity {
            return Ok(());
        }
        let what = if found.is_some() { "replaced" } else { "removed" };
        Err(io::Error::other(format!(
            "'{}' was {what} while it runs; restart it, and put a new version there with mv, as cp writes over the running one",
            Outside::path(&self.path)
        )))
    }
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, time::Duration};

    #[test]
    fn a_program_that_was_replaced_or_written_over_starts_no_children() {
        let root = tempfile::tempdir().unwrap();
        let (path, next) = (root.path().join("pensieve"), root.path().join("next"));
        fs::write(&path, "one").unwrap();
        let running = ProgramFile::new(path.clone());
        running.check().unwrap();
        let said = || running.check().unwrap_err().to_string();
        fs::write(&path, "two").unwrap();
        let later = SystemTime::now() + Duration::from_secs(2);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(said().contains("was replaced while it runs") && said().contains("with mv"), "{}", said());
        let running = ProgramFile::new(path.clone());
        fs::write(&next, "two").unwrap();
        fs::rename(&next, &path).unwrap();
        assert!(running.check().unwrap_err().to_string().contains("was replaced"));
        fs::remove_file(&path).unwrap();
        assert!(running.check().unwrap_err().to_string().contains("was removed"));
        ProgramFile::new(path).check().unwrap();
    }

    #[test]
    fn this_program_is_the_one_that_runs() {
        check(&running()).unwrap();
        check(Path::new("/bin/sh")).unwrap();
    }
}
