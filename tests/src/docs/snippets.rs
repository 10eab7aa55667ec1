//! Every piece of Rust in the guide for authors is a piece of code that is compiled and tested.

use std::fs;

use super::root;

/// Sources with the guide's snippets.
const SOURCES: [&str; 8] = [
    "host/src/cli/new/vision/lib.txt",
    "host/src/cli/new/vision/vision.txt",
    "plugins/bert/src/bert.rs",
    "sdk/tests/open/direct.rs",
    "sdk/tests/open/extended.rs",
    "sdk/tests/open/gguf.rs",
    "sdk/tests/open/lab.rs",
    "sdk/tests/open/tables.rs",
];

/// Code without its indentation and line breaks.
fn words(code: &str) -> String {
    code.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_snippet_for_authors_is_compiled_by_a_test() {
    let page = fs::read_to_string(root().join("docs/writing-a-plugin.md")).unwrap();
    let sources = SOURCES.map(|file| words(&fs::read_to_string(root().join(file)).unwrap()));
    let snippets: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(snippets.len() >= 8, "{} snippets", snippets.len());
    for snippet in snippets {
        let snippet = words(snippet);
        assert!(sources.iter().any(|source| source.contains(&snippet)), "no test compiles this:\n{snippet}");
    }
}
