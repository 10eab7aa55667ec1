//! The ids of pinned models, kept in a file for the time after a restart. A server changes only the ids that it is asked
//! about, so that several servers with one home do not undo each other's pins.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
    sync::{Mutex, PoisonError},
};

const FILE_BYTES_MAX: u64 = 64 << 10;

/// The pinned models; none if there is no such file, or none that this server has written.
pub(super) fn read(path: &Path) -> Vec<String> {
    let short = fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.len() <= FILE_BYTES_MAX);
    let text = if short { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.collect()
}

/// Adds an id to the file, or removes it.
pub(super) fn remember(path: &Path, id: &str, pin: bool) -> io::Result<()> {
    static WRITING: Mutex<()> = Mutex::new(());
    let _guard = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ids = read(path);
    if ids.iter().any(|known| known == id) == pin {
        return Ok(());
    }
    ids.retain(|known| known != id);
    ids.extend(pin.then(|| id.to_owned()));
    if ids.is_empty() {
        return fs::remove_file(path)
            .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) });
    }
    let lines: String = ids.iter().map(|id| format!("{}\n", serde_json::Value::from(id.as_str()))).collect();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = path.with_extension(std::process::id().to_string());
    fs::write(&partial, lines)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_added_and_removed_one_by_one() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state").join("pins");
        remember(&path, "none", false).unwrap();
        assert!(!path.exists());
        for (id, pin, expect) in [
            ("a", true, vec!["a"]),
            ("b\nc", true, vec!["a", "b\nc"]),
            ("a", true, vec!["a", "b\nc"]),
            ("a", false, vec!["b\nc"]),
            ("a", false, vec!["b\nc"]),
            ("b\nc", false, vec![]),
        ] {
            remember(&path, id, pin).unwrap();
            assert_eq!(read(&path), expect, "{id} {pin}");
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_file_pins_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("pins");
        fs::write(&path, "a\n\"b\"\n[1]\n").unwrap();
        assert_eq!(read(&path), ["b"]);
        fs::write(&path, vec![b'"'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(read(&path).is_empty());
        assert!(read(home.path()).is_empty());
    }
}
