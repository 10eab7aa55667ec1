//! Numbers in pages that follow from the code.

use std::fs;

use crate::root;

/// The pages name some laws of models, and then how many more there are.
#[test]
fn pages_say_how_many_laws_there_are() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let laws = read("plugin-api/laws/src/lib.rs").matches("\n    Law {").count();
    for (page, named) in [("README.md", 4), ("docs/writing-a-plugin.md", 3)] {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        let more = format!("and {} more", laws - named);
        assert!(text.contains(&more), "{page} should name {named} laws '{more}': there are {laws}");
    }
}
