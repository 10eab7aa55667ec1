//! The ids of pinned models, kept in a file for the time after a restart. A server changes only the ids that it is asked
//! about, so that several servers with one home do not undo each other's pins.

use std::{
    fs::{self, File},
    io::{self, Error, ErrorKind, Read as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

const FILE_BYTES_MAX: u64 = 64 << 10;

/// The pinned models; none if there is no such file. Lines that are no ids are left out.
pub(super) fn read(path: &Path) -> io::Result<Vec<String>> {
    Ok(lines(path)?.iter().filter_map(|line| id_of(line)).collect())
}

/// Adds an id to the file, or removes it. A file that cannot be read is not replaced.
pub(super) fn remember(path: &Path, id: &str, pin: bool) -> io::Result<()> {
    static WRITING: Mutex<()> = Mutex::new(());
    let _guard = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(folder) = path.parent().filter(|_| pin) {
        fs::create_dir_all(folder)?;
    }
    let _lock = match locked(path) {
        // There is no folder, and so no pin to remove.
        Err(error) if error.kind() == ErrorKind::NotFound && !pin => return Ok(()),
        lock => lock?,
    };
    let mut lines = lines(path)?;
    if lines.iter().any(|line| id_of(line).as_deref() == Some(id)) == pin {
        return Ok(());
    }
    lines.retain(|line| id_of(line).as_deref() != Some(id));
    lines.extend(pin.then(|| serde_json::Value::from(id).to_string()));
    if lines.is_empty() {
        return fs::remove_file(path);
    }
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(too_long(path));
    }
    let partial = path.with_extension(std::process::id().to_string());
    fs::write(&partial, text)?;
    fs::rename(&partial, path)
}

/// Keeps other servers from changing the file until the lock is dropped.
fn locked(path: &Path) -> io::Result<File> {
    let lock = File::options().create(true).truncate(false).write(true).open(path.with_extension("lock"))?;
    match lock.lock() {
        // Not every file system has locks; the change is made without.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(lock),
        locked => locked.map(|()| lock),
    }
}

fn lines(path: &Path) -> io::Result<Vec<String>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(file) if !file.is_file() => {
            return Err(Error::new(ErrorKind::InvalidData, format!("'{}' is no regular file", path.display())));
        }
        found => found?,
    };
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(too_long(path));
    }
    Ok(text.lines().map(str::to_owned).collect())
}

fn id_of(line: &str) -> Option<String> {
    serde_json::from_str(line).ok()
}

fn too_long(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidData, format!("'{}' is longer than {FILE_BYTES_MAX} bytes", path.display()))
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
            assert_eq!(read(&path).unwrap(), expect, "{id} {pin}");
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_left_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("pins");
        fs::write(&path, "a\n\"b\"\n[1]\n").unwrap();
        assert_eq!(read(&path).unwrap(), ["b"]);
        remember(&path, "c", true).unwrap();
        remember(&path, "b", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\n[1]\n\"c\"\n");
        for damaged in [vec![b'"'; FILE_BYTES_MAX as usize + 1], vec![0xff]] {
            fs::write(&path, &damaged).unwrap();
            assert!(read(&path).is_err());
            assert!(remember(&path, "c", true).is_err() && remember(&path, "c", false).is_err());
            assert_eq!(fs::read(&path).unwrap(), damaged);
        }
        assert!(read(home.path()).is_err());
        fs::remove_file(&path).unwrap();
        assert!(remember(&path, &"x".repeat(FILE_BYTES_MAX as usize), true).is_err() && !path.exists());
    }

    #[test]
    fn a_change_waits_for_that_of_another_server() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("pins");
        // A lock of another open file keeps this process out as it does another one.
        let held = locked(&path).unwrap();
        let changing = std::thread::spawn({
            let path = path.clone();
            move || remember(&path, "mine", true).unwrap()
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!changing.is_finished());
        fs::write(&path, "\"theirs\"\n").unwrap();
        drop(held);
        changing.join().unwrap();
        assert_eq!(read(&path).unwrap(), ["theirs", "mine"]);
    }
}
