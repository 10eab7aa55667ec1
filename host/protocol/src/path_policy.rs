//! Keeps what a stranger may name within folders.
//!
//! A link can lead anywhere, and a folder's content can change after it was looked at. So links are followed to their end,
//! in every folder that is reached, and the reader checks again before it opens a file. Nothing is opened here but folders.

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

/// Refuses a path that lies outside of these folders, or from which any links lead there.
pub fn check(path: &Path, folders: &[PathBuf]) -> Result<(), Failure> {
    let roots: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    let (mut open, mut seen) = (vec![path.to_path_buf()], HashSet::new());
    while let Some(next) = open.pop() {
        // A dangling link cannot be read; the reader reports that.
        let Ok(end) = next.canonicalize() else { continue };
        if !roots.iter().any(|root| end.starts_with(root)) {
            let message = format!("'{}' is a link that leads out of the folders of adapters", Outside::path(&next));
            return Err(Failure::new(FailureCode::Forbidden, message).with_help("put the file itself there"));
        }
        if !end.is_file() && !end.is_dir() {
            let message = format!("'{}' is no regular file", Outside::path(&next));
            return Err(Failure::new(FailureCode::Forbidden, message).with_help("put the file itself there"));
        }
        let entries = fs::read_dir(&end).into_iter().flatten().flatten();
        if seen.insert(end) {
            open.extend(entries.take(ENTRIES_MAX + 1).map(|entry| entry.path()));
        }
        if seen.len() + open.len() > ENTRIES_MAX {
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
    fn links_are_followed_to_their_end_wherever_they_stand() {
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
        // Only in the folder that a link leads to stands the link that leads out.
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
        assert!(check("also").unwrap_err().message.ends_with("pipe' is no regular file"));
        fs::remove_file(at("also/pipe")).unwrap();
        (0..=ENTRIES_MAX).for_each(|number| fs::write(at(&format!("open/plain/{number}")), "").unwrap());
        assert!(check("open/alias").unwrap_err().message.contains("more than 4096 files"));
    }
}
