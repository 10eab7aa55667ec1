//! Confines paths that clients name to allowed folders.
//!
//! A symbolic link can lead anywhere, and a folder can change after the check. So links are resolved in every folder that is
//! reached, and the reader checks again before it opens a file. Only folders are opened here.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    job::{Failure, FailureCode},
    outside::Outside,
};

/// Files and folders of one adapter.
const ENTRIES_MAX: usize = 4096;

/// Refuses a path outside of these folders, or with any link below it that leads out of them.
pub fn check(path: &Path, folders: &[PathBuf]) -> Result<(), Failure> {
    let roots: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    let (mut pending, mut visited) = (vec![path.to_path_buf()], HashSet::new());
    while let Some(next) = pending.pop() {
        // A dangling link cannot be read anyway; the reader reports it.
        let Ok(target) = next.canonicalize() else { continue };
        if !roots.iter().any(|root| target.starts_with(root)) {
            let message = format!("'{}' is a link that leads out of the adapter folders", Outside::path(&next));
            return Err(Failure::new(FailureCode::Forbidden, message).with_help("put the file itself there"));
        }
        if !target.is_file() && !target.is_dir() {
            let message = format!("'{}' is not a regular file", Outside::path(&next));
            return Err(Failure::new(FailureCode::Forbidden, message).with_help("put the file itself there"));
        }
        let entries = fs::read_dir(&target).into_iter().flatten().flatten();
        if visited.insert(target) {
            pending.extend(entries.take(ENTRIES_MAX + 1).map(|entry| entry.path()));
        }
        if visited.len() + pending.len() > ENTRIES_MAX {
            let message = format!("'{}' holds more than {ENTRIES_MAX} files", Outside::path(path));
            return Err(Failure::new(FailureCode::Invalid, message).with_help("name the adapter's own folder"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_resolved_at_every_level() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for folder in ["open/plain", "open/alias", "open/round", "open/leaky", "open/deep", "also", "secret"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["open/plain/weights", "also/weights", "secret/weights"] {
            fs::write(at(file), "x").unwrap();
        }
        symlink(at("open/plain"), at("open/alias/inner")).unwrap();
        symlink(at("also"), at("open/alias/other")).unwrap();
        symlink(at("open/round"), at("open/round/again")).unwrap();
        symlink(at("secret/weights"), at("open/leaky/weights")).unwrap();
        // The link that leads out is in the folder that the first link leads to.
        symlink(at("open/leaky"), at("open/deep/inner")).unwrap();
        let check = |name: &str| check(&at(name), &[at("open"), at("also"), at("nothing")]);
        for inside in ["open/plain", "open/plain/weights", "open/alias", "open/round", "open/nothing", "also"] {
            assert_eq!(check(inside), Ok(()), "{inside}");
        }
        for outside in ["open/leaky", "open/deep", "secret", "secret/weights"] {
            let failure = check(outside).unwrap_err();
            assert_eq!(failure.code, FailureCode::Forbidden, "{outside}: {failure}");
        }
        assert!(std::process::Command::new("mkfifo").arg(at("also/pipe")).status().unwrap().success());
        assert!(check("also").unwrap_err().message.ends_with("pipe' is not a regular file"));
        fs::remove_file(at("also/pipe")).unwrap();
        (0..=ENTRIES_MAX).for_each(|number| fs::write(at(&format!("open/plain/{number}")), "").unwrap());
        assert!(check("open/alias").unwrap_err().message.contains("more than 4096 files"));
    }
}
