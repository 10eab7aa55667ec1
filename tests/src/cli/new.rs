//! `pensieve new`: what it writes and what it rejects. `authors` tests that its projects build, pass their tests and
//! are served.

use std::{env::consts::DLL_SUFFIX, fs, path::Path, process::Command};

use super::{Desk, files, said};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

#[test]
fn writes_a_project_and_says_what_comes_next() {
    let desk = Desk::new();
    let said = desk.run(&["new", "architecture", "my_model"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    for words in ["cd my_model", "cargo test", "pensieve plugins check target/release/libmy_model", "README.md"] {
        assert!(said.stdout.contains(words), "{said:?}");
    }
    // The name is spelled as packages are, and the plugin goes where this user's server looks.
    let plugins = desk.path("home/plugins");
    let steps = format!("mkdir -p {0} && cp target/release/libmy_model{1} {0}/", plugins.display(), DLL_SUFFIX);
    assert!(said.stdout.contains(&steps), "{said:?}");
    assert!(
        said.stdout.contains("The package is called 'my-model' instead of 'my_model', as package names use hyphens"),
        "{said:?}"
    );
    let workflow = ".github/workflows/plugin.yml";
    assert_eq!(files(&desk.path("my_model")), [workflow, ".gitignore", "Cargo.toml", "README.md", "src/lib.rs"]);
    let text = fs::read_to_string(desk.path("my_model").join(workflow)).unwrap();
    assert!(text.contains("/libmy_model.") && !text.contains("@snake@"), "{text}");
    let text = fs::read_to_string(desk.path("my_model/src/lib.rs")).unwrap();
    assert!(text.contains(r#"&["MyModelForCausalLM"]"#) && text.contains(r#"&["my-model"]"#));
    let places = ["struct Config", "struct SelfAttention", "struct Block", "struct Model"];
    assert!(places.map(|part| text.find(part).unwrap()).is_sorted());
    let manifest = fs::read_to_string(desk.path("my_model/Cargo.toml")).unwrap();
    // Nothing from the host, and the SDK by an existing path.
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("sdk");
    assert!(manifest.contains(&format!("pensieve-sdk = {{ path = \"{}\" }}", sdk.display())), "{manifest}");
    assert!(manifest.starts_with("[workspace]\n") && !manifest.contains("plugin-api"), "{manifest}");
}

#[test]
fn a_model_that_reads_images_has_its_eyes_in_a_file_of_their_own() {
    let desk = Desk::new();
    let said = desk.run(&["new", "vision", "my-eyes"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    let others = [".gitignore", "Cargo.toml", "README.md", "src/lib.rs", "src/vision.rs"];
    assert_eq!(files(&desk.path("my-eyes"))[1..], others);
    let text = fs::read_to_string(desk.path("my-eyes/src/lib.rs")).unwrap();
    assert!(text.contains(r#"&["MyEyesForConditionalGeneration"]"#) && text.contains("Some(&vision::Eyes)"));
    let eyes = fs::read_to_string(desk.path("my-eyes/src/vision.rs")).unwrap();
    let order = ["struct Config", "fn describe", "fn measure", "fn prepare", "fn open", "fn embed", "fn project"];
    assert!(order.map(|part| eyes.find(part).unwrap()).is_sorted());
}

#[test]
fn an_engine_in_c_is_the_example_under_its_own_name() {
    let desk = Desk::new();
    let said = desk.run(&["new", "architecture", "my-engine", "--in-c"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    let text = |file: &str| fs::read_to_string(desk.path("my-engine").join(file)).unwrap();
    assert!(text("src/lib.rs").contains("const CLASS: &str = \"MyEngineForCausalLM\";"));
    assert!(text("README.md").contains("libmy_engine") && text("make.py").contains("MyEngineForCausalLM"));
    assert_eq!(text("src/engine.c"), fs::read_to_string(Path::new(EXAMPLES).join("c-engine/src/engine.c")).unwrap());
    let refused = desk.run(&["new", "sampler", "mine", "--in-c"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("pensieve new architecture"), "{refused:?}");
    assert!(!desk.path("mine").exists());
}

#[test]
fn the_next_steps_can_be_pasted_into_a_shell_wherever_things_are() {
    let desk = Desk::new();
    let mut command = desk.command(&["new", "sampler", "mine", "--path", "my plugins/it's mine"]);
    let said = said(command.env("PENSIEVE_HOME", "at home").output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!said.stdout.contains("is called"), "{said:?}");
    let line = said.stdout.lines().find(|line| line.trim_start().starts_with("cd ")).unwrap();
    let plugins = said.stdout.lines().find_map(|line| line.trim_start().split_once(" && cp ")).unwrap().0;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{line} && {plugins} && pwd")]);
    desk.prepare(&mut shell);
    let output = shell.output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("/my plugins/it's mine\n"), "{line}");
    assert!(desk.path("at home/plugins").is_dir(), "{plugins}");
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
        (&["new", "adapter", "Mine"], 2, "use lowercase letters"),
        (&["new", "adapter", "match"], 2, "is reserved by Rust"),
        (&["new", "architecture", "lora"], 2, "is shipped with this program"),
        (&["new", "sampler", "top_k"], 2, "is shipped with this program"),
        (&["new", "adapter", "serde_json"], 2, "the project would depend on; take another, such as my-serde-json"),
        (&["new", "adapter", "mine", "--sdk", "deep"], 3, "--sdk deep: there is no SDK"),
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
    // Workflows are read at the root of a repository alone, where this one has its own.
    for file in files(&desk.path("my-sampler")).iter().filter(|file| !file.starts_with(".github")) {
        let written = fs::read_to_string(desk.path("my-sampler").join(file)).unwrap();
        let written = written.replace("git = \"https://example.org\"", "path = \"../../sdk\"");
        assert_eq!(fs::read_to_string(example.join(file)).unwrap(), written, "examples/my-sampler/{file}");
    }
}
