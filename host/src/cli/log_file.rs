//! A server's log in a file, for `pensieve logs`: the same lines as on standard error, without colours. The file is named
//! after the server's port, so lines wait until that is known. Two files of bounded size are kept.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tracing_subscriber::fmt::MakeWriter;

const FILE_BYTES_MAX: u64 = 8 << 20;
/// Lines before the port is known are few.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// The log of a server on standard error and in a file. Clones share the file.
#[derive(Clone, Default)]
pub(super) struct LogFile(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    /// The file's name is not known yet.
    #[default]
    Closed,
    Early(Vec<u8>),
    Open {
        file: File,
        path: PathBuf,
        bytes: u64,
        bytes_max: u64,
    },
}

pub(super) fn folder(home: &Path) -> PathBuf {
    home.join("logs")
}

pub(super) fn path(home: &Path, port: u16) -> PathBuf {
    folder(home).join(format!("serve-{port}.log"))
}

impl LogFile {
    /// Keeps lines for the file that [`Self::open`] names.
    pub(super) fn expected() -> Self {
        Self(Arc::new(Mutex::new(State::Early(Vec::new()))))
    }

    /// Opens the file of a server with this port. A server whose file cannot be opened logs to standard error alone.
    pub(super) fn open(&self, home: &Path, port: u16) -> io::Result<()> {
        self.open_at(&path(home, port), FILE_BYTES_MAX)
    }

    fn open_at(&self, path: &Path, bytes_max: u64) -> io::Result<()> {
        let mut state = self.lock();
        let early = match std::mem::take(&mut *state) {
            State::Early(lines) => lines,
            State::Closed | State::Open { .. } => Vec::new(),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(Path::new(".")))?;
        let file = opened(path)?;
        let bytes = file.metadata()?.len();
        *state = State::Open { file, path: path.to_path_buf(), bytes, bytes_max };
        state.add(&early);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn opened(path: &Path) -> io::Result<File> {
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(nofollow).open(path)
}

impl State {
    /// Adds lines to the file. A full disk costs the lines, not the server.
    fn add(&mut self, lines: &[u8]) {
        match self {
            Self::Closed => {}
            Self::Early(early) => {
                if early.len().saturating_add(lines.len()) <= EARLY_BYTES_MAX {
                    early.extend_from_slice(lines);
                }
            }
            Self::Open { file, path, bytes, bytes_max } => {
                if *bytes > 0 && *bytes + lines.len() as u64 > *bytes_max {
                    let older = path.with_extension("log.1");
                    if let Ok(new) = fs::rename(&*path, older).and_then(|()| opened(path)) {
                        (*file, *bytes) = (new, 0);
                    }
                }
                if file.write_all(lines).is_ok() {
                    *bytes += lines.len() as u64;
                }
            }
        }
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for LogFile {
    /// The subscriber writes each line in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A terminal that is gone does not keep the line from the file.
        let _ = io::stderr().write_all(line);
        self.lock().add(&without_colours(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Removes the subscriber's colours. All else that comes from outside is escaped before.
fn without_colours(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(place) = rest.iter().position(|byte| *byte == 0x1b) {
        plain.extend_from_slice(&rest[..place]);
        let end = rest[place..].iter().position(|byte| *byte == b'm').map_or(rest.len(), |end| place + end + 1);
        rest = &rest[end..];
    }
    plain.extend_from_slice(rest);
    plain
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_are_kept_from_the_beginning_and_files_stay_small() {
        let home = tempfile::tempdir().unwrap();
        let path = path(home.path(), 8000);
        let log = LogFile::expected();
        let add = |text: &str| log.lock().add(text.as_bytes());
        add("early\n");
        log.open_at(&path, 100).unwrap();
        (0..9).for_each(|number| add(&format!("line number {number}\n")));
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let (older, newer) = (read(&path.with_extension("log.1")), read(&path));
        assert!(older.starts_with("early\nline number 0\n") && newer.ends_with("line number 8\n"), "{older}{newer}");
        assert!(older.len() <= 100 && newer.len() <= 100);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // The next server goes on with the file.
        let next = LogFile::expected();
        next.open_at(&path, 1000).unwrap();
        next.lock().add(b"next\n");
        assert_eq!(read(&path), format!("{newer}next\n"));
    }

    #[test]
    fn colours_stay_on_the_terminal() {
        assert_eq!(without_colours(b"\x1b[2mtime\x1b[0m \x1b[32m INFO\x1b[0m x\n"), b"time  INFO x\n");
        assert_eq!(without_colours(b"plain\n"), b"plain\n");
        assert_eq!(without_colours(b"cut \x1b[3"), b"cut ");
    }
}
