//! `pensieve new`: what it writes and what it refuses. That its projects build, pass their tests and are served stands in
//! `authors`.

use std::{fs, path::Path};

use super::{Desk, files};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

#[test]
fn writes_a_project_and_says_what_comes_next() {
    let desk = Desk::new();
    let said = desk.run(&["new", "architecture", "my_model"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    for words in ["cd my_model", "cargo test", "pensieve plugins check target/release/libmy_model", "README.md"] {
        assert!(said.stdout.contains(words), "{said:?}");
    }
    assert_eq!(files(&desk.path("my_model")), [".gitignore", "Cargo.toml", "README.md", "src/lib.rs"]);
    let text = fs::read_to_string(desk.path("my_model/src/lib.rs")).unwrap();
    assert!(text.contains(r#"&["MyModelForCausalLM"]"#) && text.contains(r#"&["my-model"]"#));
    let places = ["struct Args", "struct Attention", "struct Mlp", "struct Block", "struct Model"];
    assert!(places.map(|part| text.find(part).unwrap()).is_sorted());
    let manifest = fs::read_to_string(desk.path("my_model/Cargo.toml")).unwrap();
    // Nothing of the host's, and the SDK by a path that is there.
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("sdk");
    assert!(manifest.contains(&format!("pensieve-sdk = {{ path = \"{}\" }}", sdk.display())), "{manifest}");
    assert!(manifest.starts_with("[workspace]\n") && !manifest.contains("plugin-api"), "{manifest}");
}

#[test]
fn refuses_what_it_would_overwrite_and_names_that_are_none() {
    let desk = Desk::new();
    assert_eq!(desk.run(&["new", "sampler", "mine", "--path", "deep/er"]).code, Some(0));
    assert!(desk.path("deep/er/Cargo.toml").exists());
    let before = fs::read_to_string(desk.path("deep/er/src/lib.rs")).unwrap();
    for (arguments, code, words) in [
        (&["new", "adapter", "mine", "--path", "deep/er"][..], 2, "'deep/er' is not empty"),
        (&["new", "adapter", "mine", "--path", "deep/er/Cargo.toml"], 2, "is a file"),
        (&["new", "adapter", "../mine"], 2, "the name '../mine' cannot be a plugin's"),
        (&["new", "adapter", "Mine"], 2, "take small letters"),
        (&["new", "adapter", "match"], 2, "means something to Rust"),
        (&["new", "adapter", "mine", "--sdk", "deep"], 3, "--sdk deep: the SDK is not there"),
    ] {
        let said = desk.run(arguments);
        assert_eq!((said.code, said.stdout.as_str()), (Some(code), ""), "{said:?}");
        assert!(said.stderr.starts_with("pensieve: ") && said.stderr.contains(words), "{said:?}");
    }
    assert_eq!(desk.run(&["new", "poem", "mine"]).code, Some(2));
    assert_eq!(fs::read_to_string(desk.path("deep/er/src/lib.rs")).unwrap(), before);
    assert!(!desk.path("mine").exists() && !desk.path("../mine").exists());
}

#[test]
fn the_sdk_may_lie_in_a_folder_or_in_a_repository() {
    let desk = Desk::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_str().unwrap();
    for (sdk, written) in [
        (root, format!("path = \"{root}/sdk\"")),
        ("https://example.org/pensieve.git", "git = \"https://example.org/pensieve.git\"".to_owned()),
    ] {
        assert_eq!(desk.run(&["new", "adapter", "mine", "--sdk", sdk]).code, Some(0));
        let manifest = fs::read_to_string(desk.path("mine/Cargo.toml")).unwrap();
        assert!(manifest.contains(&written), "{manifest}");
        fs::remove_dir_all(desk.path("mine")).unwrap();
    }
}

#[test]
fn the_example_of_a_sampler_is_what_new_writes() {
    let desk = Desk::new();
    assert_eq!(desk.run(&["new", "sampler", "my-sampler", "--sdk", "https://example.org"]).code, Some(0));
    let example = Path::new(EXAMPLES).join("my-sampler");
    for file in files(&desk.path("my-sampler")) {
        let written = fs::read_to_string(desk.path("my-sampler").join(&file)).unwrap();
        let written = written.replace("git = \"https://example.org\"", "path = \"../../sdk\"");
        assert_eq!(fs::read_to_string(example.join(&file)).unwrap(), written, "examples/my-sampler/{file}");
    }
}
