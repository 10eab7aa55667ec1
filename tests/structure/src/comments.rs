//! The part of plain English that a machine can check: a comment has to say more than the item's name, and must not be one that
//! a reader of this tree once stumbled over.

use std::{fs, path::PathBuf};

use crate::root;

/// All Rust sources are held to it.
const FOLDERS: [&str; 6] = ["plugin-api", "sdk", "host", "plugins", "examples", "tests"];

/// Comments that readers could not make sense of.
const QUOTED: [&str; 10] = [
    "from outside the process of thought that made the cache",
    "When it last did what it is waited for",
    "an error if there is a strength of nothing",
    "though behind the results of calls that it stands before",
    "worth to be kept",
    "Lets go on who has waited for a grammar",
    "Has what is taken from now on be kept",
    "What is said of a name that a model has no adapter of",
    "A number so large that f32 knows no such",
    "for who looks for a fault",
];

fn sources() -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> = FOLDERS.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() && !path.ends_with("target") {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path != root().join("tests/structure/src/comments.rs")
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A comment as one line, and the code that follows it.
struct Comment<'a> {
    line: usize,
    text: String,
    is_doc: bool,
    item: &'a str,
}

fn comments(source: &str) -> Vec<Comment<'_>> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut found: Vec<Comment<'_>> = Vec::new();
    let mut within = "";
    for (line, text) in lines.iter().enumerate() {
        let marker = ["///", "//!", "//"].into_iter().find(|marker| text.starts_with(marker)).unwrap_or_default();
        let words = text[marker.len()..].trim();
        match found.last_mut().filter(|_| marker == within && !marker.is_empty()) {
            Some(comment) => comment.text = format!("{} {words}", comment.text),
            None if !marker.is_empty() => {
                let is_item = |code: &&&str| !code.starts_with("//") && !code.starts_with("#[");
                let item =
                    if marker == "///" { lines[line..].iter().find(is_item).copied().unwrap_or_default() } else { "" };
                found.push(Comment { line: line + 1, text: words.to_owned(), is_doc: marker != "//", item });
            }
            None => {}
        }
        within = marker;
    }
    found
}

/// The name that a line of code declares, in words: `kv_type: KvType,` and `struct KvType` both give `kv type`.
fn name(code: &str) -> String {
    let keywords =
        ["pub", "const", "static", "async", "unsafe", "extern", "fn", "struct", "enum", "trait", "type", "mod"];
    let visibility = |word: &str| word.starts_with("pub(");
    let mut words = code.split_whitespace().skip_while(|word| keywords.contains(word) || visibility(word));
    let name = words.next().unwrap_or_default();
    let name = name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default();
    let mut spaced = String::new();
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && spaced.ends_with(char::is_lowercase) {
            spaced.push(' ');
        }
        spaced.extend(letter.to_lowercase().filter(|letter| *letter != '_'));
    }
    spaced
}

/// Why a comment says nothing, or nothing that can be understood.
fn fault(comment: &Comment<'_>) -> Option<&'static str> {
    if comment.is_doc && (comment.text.starts_with("What a ") || comment.text.starts_with("What an ")) {
        return Some("opens with 'What a'");
    }
    if QUOTED.iter().any(|quoted| comment.text.contains(quoted)) {
        return Some("is one that nobody understood");
    }
    // A product's name in lower case is what the command line shows for a value.
    if comment.text.starts_with(char::is_lowercase) {
        return None;
    }
    let text = comment.text.trim_end_matches('.').to_lowercase();
    let text = ["the ", "a ", "an ", "its "].iter().find_map(|article| text.strip_prefix(article)).unwrap_or(&text);
    let is_name = !comment.item.is_empty() && text == name(comment.item);
    is_name.then_some("repeats the item's name")
}

fn faults(source: &str) -> Vec<String> {
    let faults = comments(source).into_iter().filter_map(|comment| {
        let fault = fault(&comment)?;
        Some(format!("line {} {fault}: {}", comment.line, comment.text))
    });
    faults.collect()
}

#[test]
fn comments_say_more_than_the_name_of_what_they_stand_over() {
    let mut found = Vec::new();
    for path in sources() {
        let place = path.strip_prefix(root()).unwrap().display().to_string();
        found.extend(faults(&fs::read_to_string(&path).unwrap()).into_iter().map(|fault| format!("{place}: {fault}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn planted_comments_are_found() {
    for (source, expect) in [
        ("/// What a model has.\nstruct Shape;\n", "line 1 opens with 'What a': What a model has."),
        ("//! What an\n//! engine does.\n", "line 1 opens with 'What a': What an engine does."),
        ("struct A {\n    /// The model.\n    pub model: u32,\n}\n", "line 2 repeats the item's name: The model."),
        ("/// KV type.\n#[derive(Debug)]\npub(crate) struct KvType;\n", "line 1 repeats the item's name: KV type."),
        ("/// Its weight bytes\nfn weight_bytes() {}\n", "line 1 repeats the item's name: Its weight bytes"),
        (
            "fn f() {\n    // Blocks that are worth\n    // to be kept.\n}\n",
            "line 2 is one that nobody understood: Blocks that are worth to be kept.",
        ),
    ] {
        assert_eq!(faults(source), [expect], "{source}");
    }
}

#[test]
fn comments_that_add_something_pass() {
    for source in [
        "/// The model's id, without its adapter.\npub model: String,\n",
        "// What a model needs is checked above.\nlet model = 1;\n",
        "/// What about this one?\nfn model() {}\n",
        "/// Tokens of the model.\nfn model() {}\n",
        "/// One.\n\n/// Two.\nstruct Three;\n",
        "/// opencode.\nOpencode,\n",
    ] {
        assert_eq!(faults(source), [""; 0], "{source}");
    }
}
