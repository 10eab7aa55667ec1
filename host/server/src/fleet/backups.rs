//! Marks the caches below `$PENSIEVE_HOME` as expendable on macOS: Time Machine does not back them up, and Spotlight
//! does not index them.

use std::{fs::File, io, path::Path};

use rustix::fs::{XattrFlags, setxattr};

/// Set to [`EXCLUDED`], this attribute keeps a folder and its contents out of backups.
const ATTRIBUTE: &str = "com.apple.metadata:com_apple_backup_excludeItem";
/// The string `com.apple.backupd` as a binary property list: the header, the only object, its offset, and the trailer
/// with the location of the offsets.
const EXCLUDED: &[u8; 61] = b"bplist00\x5f\x10\x11com.apple.backupd\x08\
    \0\0\0\0\0\0\x01\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x1c";
/// Spotlight skips folders that contain a file with this name.
const NEVER_INDEX: &str = ".metadata_never_index";

/// Excludes the parent folder of this cache. If that fails, backups only take longer.
pub(super) fn exclude_caches(cache: &Path) {
    if cfg!(target_os = "macos")
        && let Some(folder) = cache.parent()
        && let Err(error) = exclude(folder, ATTRIBUTE)
    {
        tracing::debug!("the caches are not excluded from backups: {error}");
    }
}

fn exclude(folder: &Path, attribute: &str) -> io::Result<()> {
    let never_index = folder.join(NEVER_INDEX);
    if !never_index.exists() {
        File::create(never_index)?;
    }
    Ok(setxattr(folder, attribute, EXCLUDED, XattrFlags::empty())?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_marked_for_backups_and_for_the_index() {
        let root = tempfile::tempdir().unwrap();
        // Linux allows only attributes of certain classes.
        let attribute = "user.excluded";
        let marked = exclude(root.path(), attribute);
        assert!(root.path().join(NEVER_INDEX).exists());
        if marked.is_err() {
            return println!("SKIPPED: folders in {} can have no attributes", root.path().display());
        }
        let mut value = [0; 100];
        let length = rustix::fs::getxattr(root.path(), attribute, &mut value).unwrap();
        assert_eq!(&value[..length], EXCLUDED);
        exclude(root.path(), attribute).unwrap();
    }

    #[test]
    fn the_mark_is_a_property_list_of_one_text() {
        let (object, text) = (8, b"com.apple.backupd");
        assert_eq!(EXCLUDED[object..object + 3], [0x5f, 0x10, text.len() as u8], "a text, whose length is a byte");
        assert_eq!(&EXCLUDED[object + 3..object + 3 + text.len()], text);
        let (places, trailer) = EXCLUDED[object + 3 + text.len()..].split_at(1);
        assert_eq!(places, [object as u8]);
        assert_eq!(trailer.len(), 32);
        let number = |at: usize| u64::from_be_bytes(trailer[at..at + 8].try_into().unwrap());
        assert_eq!((trailer[6], trailer[7]), (1, 1), "bytes of a place and of a reference");
        assert_eq!((number(8), number(16), number(24)), (1, 0, 28), "objects, the topmost, and where the places are");
    }
}
