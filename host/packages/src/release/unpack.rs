//! Unpacks an archive of a release: a tar, compressed by xz or gzip.
//!
//! The archive was compared with a signed digest before, as a decoder of xz takes the memory that a header asks for. And still only files with plain names below its one folder are
//! written, as many bytes as the list said, with modes of this module's choice.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufReader, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
};

use flate2::read::GzDecoder;
use lzma_rust2::XzReader;
use tar::{Archive, EntryType};

use crate::{PackageError, error::Result};
use pensieve_protocol::outside::Outside;

const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const FILES_MAX: usize = 10_000;
/// Folders below the archive's own.
const DEPTH_MAX: usize = 8;

/// Unpacks an archive into an existing folder, without the folder that all its names begin with.
pub fn unpack(archive: &Path, folder: &Path, bytes_max: u64) -> Result<()> {
    let system = |error: io::Error| PackageError::system(format!("'{}'", Outside::path(archive)), &error);
    let mut file = BufReader::new(fs::File::open(archive).map_err(system)?);
    let is_xz = io::BufRead::fill_buf(&mut file).map_err(system)?.starts_with(&XZ);
    let plain: Box<dyn Read> = if is_xz { Box::new(XzReader::new(file, true)) } else { Box::new(GzDecoder::new(file)) };
    let broken = |error: &io::Error| {
        PackageError::damaged(format!("'{}' cannot be unpacked: {error}", Outside::path(archive)))
            .help("download it again")
    };
    // Headers and padding, beside the files.
    let mut entries = Archive::new(plain.take(bytes_max.saturating_add(FILES_MAX as u64 * 1024)));
    let (mut files, mut left) = (0, bytes_max);
    for entry in entries.entries().map_err(|error| broken(&error))? {
        let mut entry = entry.map_err(|error| broken(&error))?;
        let refused = |why: &str| Err(PackageError::damaged(format!("'{}' {why}", Outside::path(archive))));
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            continue;
        }
        files += 1;
        let Some(name) = entry.path().ok().and_then(|path| below(&path)) else {
            return refused("has a file outside its folder");
        };
        if kind != EntryType::Regular || files > FILES_MAX {
            return refused("holds something else than a few plain files");
        }
        left = match left.checked_sub(entry.size()) {
            Some(left) => left,
            None => return refused("unpacks to more than its release says"),
        };
        write(&mut entry, &folder.join(&name), name.starts_with("bin")).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => broken(&error),
            _ => PackageError::system(format!("'{}'", Outside::path(&folder.join(&name))), &error),
        })?;
    }
    if files == 0 {
        return Err(
            PackageError::damaged(format!("'{}' has no files", Outside::path(archive))).help("download it again")
        );
    }
    Ok(())
}

/// The path without its first folder; `None` if it is no plain path below one.
fn below(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components().filter(|part| *part != Component::CurDir);
    let plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    parts.next().filter(plain)?;
    let rest: Vec<Component<'_>> = parts.collect();
    (!rest.is_empty() && rest.len() <= DEPTH_MAX && rest.iter().all(plain)).then(|| rest.iter().collect())
}

fn write(from: &mut impl Read, path: &Path, is_program: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mode = if is_program { 0o755 } else { 0o644 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    io::copy(from, &mut file)?;
    file.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::{io::Write, os::unix::fs::PermissionsExt};
    use tar::{Builder, Header};

    /// An archive of entries: a name, a type and a content each.
    fn archive(entries: &[(&str, EntryType, &[u8])]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, kind, bytes) in entries {
            let mut header = Header::new_ustar();
            // Names that the builder itself would refuse.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(bytes.len() as u64);
            header.set_mode(0o7777);
            header.set_cksum();
            archive.append(&header, *bytes).unwrap();
        }
        file.write_all(&archive.into_inner().unwrap().finish().unwrap()).unwrap();
        file
    }

    #[test]
    fn files_are_written_below_the_folder_with_modes_of_our_own() {
        let entries: &[(&str, EntryType, &[u8])] = &[
            ("p-1/", EntryType::Directory, b""),
            ("./p-1/bin/pensieve", EntryType::Regular, b"program"),
            ("p-1/lib/pensieve/libx.so", EntryType::Regular, b"library"),
        ];
        let folder = tempfile::tempdir().unwrap();
        unpack(archive(entries).path(), folder.path(), 14).unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("bin/pensieve") & 0o7700, 0o700);
        assert_eq!(mode("lib/pensieve/libx.so") & 0o7700, 0o600);
        assert_eq!(fs::read(folder.path().join("lib/pensieve/libx.so")).unwrap(), b"library");
        let refused = unpack(archive(entries).path(), tempfile::tempdir().unwrap().path(), 13).unwrap_err();
        assert!(refused.to_string().contains("more than its release says"), "{refused}");
    }

    #[test]
    fn names_and_kinds_that_reach_outside_are_refused() {
        let cases: &[(&str, EntryType, &str)] = &[
            ("../x", EntryType::Regular, "outside its folder"),
            ("p/../../x", EntryType::Regular, "outside its folder"),
            ("/etc/x", EntryType::Regular, "outside its folder"),
            ("x", EntryType::Regular, "outside its folder"),
            ("p/a/b/c/d/e/f/g/h/i", EntryType::Regular, "outside its folder"),
            ("p/x", EntryType::Symlink, "something else than a few plain files"),
            ("p/x", EntryType::Link, "something else than a few plain files"),
            ("p/x", EntryType::Fifo, "something else than a few plain files"),
        ];
        for (name, kind, words) in cases {
            let folder = tempfile::tempdir().unwrap();
            let refused = unpack(archive(&[(name, *kind, b"")]).path(), folder.path(), 1 << 20).unwrap_err();
            assert!(refused.to_string().contains(words), "{name}: {refused}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
        }
        let twice: &[(&str, EntryType, &[u8])] =
            &[("p/x", EntryType::Regular, b"1"), ("p/x", EntryType::Regular, b"2")];
        assert!(unpack(archive(twice).path(), tempfile::tempdir().unwrap().path(), 9).is_err());
    }

    #[test]
    fn an_archive_that_is_cut_off_is_damaged() {
        let whole = fs::read(archive(&[("p/x", EntryType::Regular, &[7; 100_000])]).path()).unwrap();
        let xz = [&XZ[..], &[0; 40]].concat();
        for bytes in [&whole[..whole.len() / 2], b"", b"no archive", &xz] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(bytes).unwrap();
            let refused = unpack(file.path(), tempfile::tempdir().unwrap().path(), 1 << 20).unwrap_err();
            assert_eq!(refused.kind, crate::PackageErrorKind::Damaged, "{refused}");
        }
    }
}
