//! Documents in the program's data folder: read whole with a limit, written beside and renamed.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{PackageError, error::Result};

const BYTES_MAX: u64 = 64 << 20;

/// The file's bytes; `None` if there is no such file.
pub(crate) fn bytes(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let failed = |error: std::io::Error| PackageError::system(format!("'{}'", path.display()), &error);
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
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
    replace(path, &text)
}

/// Replaces a file by these bytes, or leaves it as it was.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| PackageError::system(format!("'{}'", path.display()), &error);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map(drop).map_err(|error| failed(error.error))
}
