//! The bundled model, which lets the program answer before anything is downloaded.
//!
//! It is embedded in the binary, the one file that is always present. Workers map checkpoints from disk, so it is
//! unpacked into the home once, and again whenever the copy there differs.

use pensieve_protocol::outside::Outside;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

#[cfg(feature = "starter")]
const STARTER: &[u8] = include_bytes!("../../examples/starter/pensieve-starter.gguf");
#[cfg(not(feature = "starter"))]
const STARTER: &[u8] = &[];

/// Unpacks the starter unless an identical copy exists, and returns its path.
pub fn path(home: &Path) -> io::Result<PathBuf> {
    unpack(STARTER, &home.join("models"))
}

fn unpack(bytes: &[u8], folder: &Path) -> io::Result<PathBuf> {
    if bytes.is_empty() {
        let what = "this program was built without it (the feature 'starter'); name another model";
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    let path = folder.join("pensieve-starter.gguf");
    let name = |error: io::Error| io::Error::new(error.kind(), format!("'{}': {error}", Outside::path(&path)));
    let same_size = path.metadata().is_ok_and(|metadata| metadata.len() == bytes.len() as u64);
    if same_size && fs::read(&path).is_ok_and(|existing| existing == bytes) {
        return Ok(path);
    }
    fs::create_dir_all(folder).map_err(name)?;
    let partial = folder.join(format!(".pensieve-starter.{}.partial", std::process::id()));
    let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map_err(name).map(|()| path.clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_once_and_replaces_a_damaged_copy() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("models");
        let path = unpack(b"GGUF1", &folder).unwrap();
        let written = path.metadata().unwrap().modified().unwrap();
        assert_eq!(unpack(b"GGUF1", &folder).unwrap(), path);
        assert_eq!(path.metadata().unwrap().modified().unwrap(), written);
        fs::write(&path, b"GGUX1").unwrap();
        unpack(b"GGUF1", &folder).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"GGUF1");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert!(unpack(b"", &folder).unwrap_err().to_string().contains("built without it"));
    }
}
