//! Where unsafe code is, and how much of it: each file that has some stands in `unsafe_code.txt`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::root;

/// Code that ships. Tests may use unsafe code to break things.
pub const FOLDERS: [&str; 5] = ["plugin-api", "sdk", "host", "plugins", "examples"];

/// The Rust files below a folder, but for what cargo has built there.
pub fn sources(folder: PathBuf) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![folder]);
    while let Some(path) = open.pop() {
        if path.is_dir() && !path.ends_with("target") {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// How often the word `unsafe` stands in a line as code: in no comment, text or longer word.
fn count(line: &str) -> usize {
    let code = line.split("//").next().unwrap_or_default();
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = code.split('"').step_by(2).flat_map(|code| code.split(|letter| !is_letter(letter)));
    words.filter(|word| *word == "unsafe").count()
}

#[test]
fn unsafe_code_is_where_it_is_known_to_be() {
    let mut found = BTreeMap::new();
    for path in FOLDERS.iter().flat_map(|folder| sources(root().join(folder))) {
        let total: usize = fs::read_to_string(&path).unwrap().lines().map(count).sum();
        if total > 0 {
            found.insert(path.strip_prefix(root()).unwrap().display().to_string(), total);
        }
    }
    let found: String = found.iter().map(|(path, total)| format!("{total:3} {path}\n")).collect();
    let table = root().join("tests/structure/src/unsafe_code.txt");
    let known = fs::read_to_string(&table).unwrap();
    assert!(found == known, "{} is to be, if all of this is meant:\n{found}", table.display());
}

#[test]
fn only_code_counts() {
    for (line, expect) in [
        ("unsafe { call() } // unsafe", 1),
        ("unsafe impl Send for X {} unsafe impl Sync for X {}", 2),
        ("#![deny(unsafe_code)]", 0),
        ("let text = \"unsafe\";", 0),
        ("/// unsafe", 0),
    ] {
        assert_eq!(count(line), expect, "{line}");
    }
}
