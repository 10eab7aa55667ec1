//! Documents in the program's data folder: read whole with a limit, written beside and renamed.

use std::{
    fs::{self, File, Permissions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{PackageError, PackageErrorKind, Sha256Hex, digest, error::Result};

const BYTES_MAX: u64 = 64 << 20;
/// Modes of files: for this user alone, and for folders that others read.
pub(crate) const PRIVATE: u32 = 0o600;
pub(crate) const PUBLIC: u32 = 0o644;

/// The file's bytes; `None` if there is no such file.
pub(crate) fn bytes(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| failed(path, &error))?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| failed(path, &error))?;
    if bytes.len() as u64 > bytes_max {
        return Err(PackageError::damaged(format!("'{}' has more than {bytes_max} bytes", path.display())));
    }
    Ok(Some(bytes))
}

/// Reads a JSON document; a missing file is an empty one.
pub(crate) fn read<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    let Some(bytes) = bytes(path, BYTES_MAX)? else { return Ok(T::default()) };
    let wrong = |why: &serde_json::Error| {
        let error = PackageError::damaged(format!("'{}' cannot be read: {why}", path.display()));
        error.help("restore it from a backup, or move it away and add the plugins again")
    };
    serde_json::from_slice(&bytes).map_err(|error| wrong(&error))
}

/// Writes a JSON document.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| PackageError::damaged(error.to_string()))?;
    text.push(b'\n');
    if text.len() as u64 > BYTES_MAX {
        let why = format!("'{}' would have more than {BYTES_MAX} bytes", path.display());
        return Err(PackageError::new(PackageErrorKind::System, why).help("ask fewer indexes"));
    }
    replace(path, &text, PRIVATE)
}

/// Replaces a file by these bytes, or leaves it as it was.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    beside(path, mode, |file| file.write_all(bytes)).map_err(|error| failed(path, &error))
}

/// Copies a file that has this digest whole, or leaves what was there.
pub(crate) fn copy(from: &Path, to: &Path, sha256: &Sha256Hex, mode: u32) -> Result<()> {
    let mut source = File::open(from).map_err(|error| failed(from, &error))?;
    let copied = beside(to, mode, |file| match digest::copy(&mut source, file)?.0 == *sha256 {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidData, "it changed while it was copied")),
    });
    copied.map_err(|error| failed(to, &error))
}

/// Writes a file of another name and renames it.
fn beside(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    write(file.as_file_mut())?;
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn failed(path: &Path, error: &io::Error) -> PackageError {
    PackageError::system(format!("'{}'", path.display()), error)
}
