//! Whether a file may become code in this user's processes: only if nobody but this user and root can change it.
//!
//! The file itself and the folder it lies in must not be writable by a group or by others. Above the folder it is enough
//! that strangers cannot swap folders: group-writable homes of projects are common, and sticky folders such as `/tmp` let
//! nobody rename what belongs to somebody else.

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::fleet::Refusal;

const OTHERS_WRITE: u32 = 0o002;
const ANYBODY_WRITES: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Resolves a folder and checks it and all folders above it. None, if there is no such folder.
pub(super) fn folder(path: &Path) -> Result<Option<PathBuf>, Refusal> {
    let resolved = match path.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let metadata = resolved.metadata().map_err(|error| unreadable(path, &error))?;
    if !metadata.is_dir() {
        let reason = format!("'{}' is not a folder", path.display());
        return Err(Refusal::new("not-a-folder", reason, "name the folder that plugins lie in"));
    }
    check("plugin folder", &resolved, &metadata, ANYBODY_WRITES)?;
    for above in resolved.ancestors().skip(1) {
        let metadata = above.metadata().map_err(|error| unreadable(above, &error))?;
        let refused = if metadata.mode() & STICKY == 0 { OTHERS_WRITE } else { 0 };
        check("the plugin folder's parent", above, &metadata, refused)?;
    }
    Ok(Some(resolved))
}

/// Checks a plugin's file by what the open file says of itself.
pub(super) fn file(path: &Path, metadata: &Metadata) -> Result<(), Refusal> {
    check("plugin", path, metadata, ANYBODY_WRITES)
}

fn check(what: &str, path: &Path, metadata: &Metadata, refused: u32) -> Result<(), Refusal> {
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        let reason = format!("{what} '{}' belongs to another user (id {})", path.display(), metadata.uid());
        return Err(Refusal::new("untrusted", reason, "copy the plugin into a folder of your own"));
    }
    if metadata.mode() & refused != 0 {
        let mode = metadata.mode() & 0o7777;
        let reason = format!("{what} '{}' is writable by others (mode {mode:04o})", path.display());
        return Err(Refusal::new("untrusted", reason, format!("run: chmod go-w '{}'", path.display())));
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refusal {
    let reason = format!("plugin folder '{}' cannot be read: {error}", path.display());
    Refusal::new("unreadable", reason, "check that this user may read it")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    /// Whether a folder of this mode, in a folder of that mode, is taken.
    fn check_folder(mode: u32, above: u32) -> Result<Option<PathBuf>, Refusal> {
        let root = tempfile::tempdir().unwrap();
        let plugins = root.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        fs::set_permissions(&plugins, Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(above)).unwrap();
        folder(&plugins)
    }

    #[test]
    fn takes_a_folder_that_only_its_owner_writes_to() {
        check_folder(0o700, 0o700).unwrap().unwrap();
        check_folder(0o755, 0o775).unwrap().unwrap();
        check_folder(0o755, 0o1777).unwrap().unwrap();
    }

    #[test]
    fn refuses_folders_that_others_write_to_and_says_how_to_mend_them() {
        for (mode, above) in [(0o777, 0o755), (0o775, 0o755), (0o1777, 0o755), (0o755, 0o777)] {
            let refusal = check_folder(mode, above).unwrap_err();
            assert_eq!(refusal.kind, "untrusted");
            assert!(refusal.reason.contains("is writable by others (mode "), "{refusal}");
            assert!(refusal.help.starts_with("run: chmod go-w '/"), "{refusal}");
        }
    }

    #[test]
    fn a_missing_folder_is_no_error() {
        assert_eq!(folder(Path::new("/nowhere/plugins")).unwrap(), None);
    }
}
