//! The architecture's rules as tests: allowed dependencies, and where things may be named.

use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// `cargo metadata` of all packages, as resolved for this platform.
pub fn metadata() -> Value {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &platform()])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The normal dependencies of every package, by name.
fn dependencies() -> HashMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter().map(|package| {
        let normal =
            package["dependencies"].as_array().unwrap().iter().filter(|dependency| dependency["kind"].is_null());
        let names = normal.map(|dependency| dependency["name"].as_str().unwrap().to_owned());
        (package["name"].as_str().unwrap().to_owned(), names.collect())
    });
    packages.collect()
}

/// The compiler's target. Packages of other platforms need not have been downloaded.
fn platform() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

/// Everything that a package may link, directly or not.
fn reach(dependencies: &HashMap<String, BTreeSet<String>>, package: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![package.to_owned()];
    while let Some(name) = open.pop() {
        for dependency in dependencies.get(&name).into_iter().flatten() {
            if found.insert(dependency.clone()) {
                open.push(dependency.clone());
            }
        }
    }
    found
}

#[test]
fn host_and_plugins_meet_in_the_contract_alone() {
    let dependencies = dependencies();
    assert_eq!(dependencies["pensieve-plugin-api"], BTreeSet::from(["abi_stable".to_owned()]));
    assert_eq!(dependencies["pensieve-laws"], BTreeSet::from(["pensieve-plugin-api".to_owned()]));
    let host = reach(&dependencies, "pensieve");
    assert!(host.contains("pensieve-plugin-api"));
    for foreign in ["pensieve-sdk", "candle-core", "candle-nn", "candle-transformers"] {
        assert!(!host.contains(foreign), "the host links {foreign}");
    }
    // The server never runs plugin code: it cannot even name what opens a plugin or runs a model. Nor does it interpret what
    // comes out of a checkpoint: it cannot name what renders templates and tokenizes.
    let server = reach(&dependencies, "pensieve-server");
    for foreign in ["pensieve", "pensieve-worker", "pensieve-plugin-api", "abi_stable", "libloading", "llguidance"] {
        assert!(!server.contains(foreign), "the server links {foreign}");
    }
    for foreign in ["pensieve-prompt", "minijinja", "minijinja-contrib", "tokenizers"] {
        assert!(!server.contains(foreign), "the server links {foreign}");
    }
    let prompt = reach(&dependencies, "pensieve-prompt");
    for foreign in ["pensieve", "pensieve-server", "pensieve-worker", "abi_stable", "llguidance", "warp"] {
        assert!(!prompt.contains(foreign), "a prompt process links {foreign}");
    }
    let worker = reach(&dependencies, "pensieve-worker");
    for foreign in ["pensieve", "pensieve-server", "hyper", "warp", "tokenizers", "minijinja", "tokio"] {
        assert!(!worker.contains(foreign), "the worker links {foreign}");
    }
    let protocol = &dependencies["pensieve-protocol"];
    assert_eq!(*protocol, ["postcard", "serde", "serde_json"].map(str::to_owned).into());
    for plugin in fs::read_dir(root().join("plugins")).unwrap() {
        let plugin = format!("pensieve-{}", plugin.unwrap().file_name().to_str().unwrap());
        let direct = &dependencies[&plugin];
        assert!(direct.contains("pensieve-sdk"), "{plugin}");
        for foreign in ["pensieve", "pensieve-plugin-api", "abi_stable"] {
            assert!(!direct.contains(foreign), "{plugin} names {foreign}");
        }
    }
    // Optional dependencies of the SDK, each turned on by a feature of its own.
    for plugin in
        ["pensieve-llama", "pensieve-mistral", "pensieve-phi", "pensieve-qwen", "pensieve-gemma", "pensieve-olmo"]
    {
        let linked = linked(plugin);
        assert!(linked.contains("candle-core"), "{linked:?}");
        for foreign in ["candle-transformers", "pensieve-laws"] {
            assert!(!linked.contains(foreign), "{plugin} links {foreign}");
        }
    }
}

/// Everything that a package links when it is built by itself, with the features that it asks for.
fn linked(package: &str) -> BTreeSet<String> {
    linked_with(package, &[])
}

fn linked_with(package: &str, features: &[&str]) -> BTreeSet<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let tree = ["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none", "--package", package];
    let features = features.iter().flat_map(|feature| ["--features", feature]);
    let output = Command::new(cargo).args(tree).args(features).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn one_build_makes_the_program_and_every_plugin() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("\ndefault-members = [\"host\", \"plugins/*\"]\n"));
    for plugin in fs::read_dir(root().join("plugins")).unwrap() {
        let manifest = fs::read_to_string(plugin.unwrap().path().join("Cargo.toml")).unwrap();
        // A library of that kind lies beside the program, where the program looks for plugins.
        assert!(manifest.contains("crate-type = [\"cdylib\""), "{manifest}");
    }
}

/// The Rust files below a folder.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn the_sdk_names_the_abi_in_its_glue_alone() {
    for path in sources("sdk/src") {
        let place = path.strip_prefix(root().join("sdk/src")).unwrap();
        let is_glue =
            place.starts_with("export") || ["services.rs", "testing.rs"].iter().any(|file| place.ends_with(file));
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let names_it = code.into_iter().any(|line| line.contains("abi_stable") || line.contains("plugin_api"));
        assert!(is_glue || !names_it, "{} names the ABI", place.display());
    }
}

#[test]
fn weights_and_kernels_link_no_candle() {
    let candle = |package: &str, features: &[&str]| -> Vec<String> {
        linked_with(package, features).into_iter().filter(|name| name.starts_with("candle")).collect()
    };
    for package in ["pensieve-weights", "pensieve-kernels"] {
        assert_eq!(candle(package, &[]), [""; 0], "{package} links candle");
        // The check sees what a dependency of theirs brings in.
        assert!(candle(package, &["pensieve-error/candle"]).contains(&"candle-core".to_owned()), "{package}");
    }
}

#[test]
fn an_architecture_reads_like_its_paper() {
    for file in [
        "plugins/llama/src/lib.rs",
        "plugins/mistral/src/mistral.rs",
        "plugins/mistral/src/mixtral.rs",
        "plugins/phi/src/phi.rs",
        "plugins/phi/src/phi3.rs",
        "plugins/qwen/src/lib.rs",
        "plugins/gemma/src/lib.rs",
        "plugins/glm/src/glm4.rs",
        "plugins/glm/src/glm4_moe.rs",
        "plugins/gpt-oss/src/lib.rs",
        "plugins/granite/src/lib.rs",
        "plugins/olmo/src/olmo2.rs",
        "plugins/olmo/src/olmoe.rs",
        "plugins/phi/src/phimoe.rs",
        "examples/qwen2-plugin/src/lib.rs",
    ] {
        let lines = fs::read_to_string(root().join(file)).unwrap().lines().count();
        assert!(lines <= 250, "{file} has {lines} lines");
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for folder in ["plugin-api", "sdk", "host", "plugins", "tests", "examples"] {
        for path in sources(folder) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("//!") || text.starts_with("#!"), "{} opens without a word", path.display());
            let lines = text.lines().count();
            assert!(lines <= 600, "{} has {lines} lines: is it one idea?", path.display());
        }
    }
}

#[test]
fn one_file_of_the_server_names_warp() {
    let names_it = |path: &PathBuf| code(path).contains("warp::");
    let found: Vec<PathBuf> = sources("host").into_iter().filter(names_it).collect();
    assert_eq!(found, [root().join("host/server/src/http/filters.rs")]);
}

/// The code of a file without its unit tests and its comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\n#[allow").next().unwrap_or_default();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part.to_str().is_some_and(|part| part.starts_with("tests") || part.ends_with("_tests.rs")))
}

#[test]
fn the_command_line_writes_by_one_module_alone() {
    // It escapes what comes from outside. A reply is a pipe to the server, and a progress bar gets escaped words.
    let writes = [
        "println!(",
        "eprintln!(",
        "print!(",
        "eprint!(",
        "stdout().lock",
        "stderr().lock",
        "io::stdout()",
        "io::stderr()",
    ];
    for path in sources("host/src").into_iter().filter(|path| !is_test(path)) {
        let writes_itself = code(&path).lines().any(|line| {
            let line = line
                .replace("stdio::", "")
                .replace("io::stdout().is_terminal()", "")
                .replace("io::stderr().is_terminal()", "");
            writes.iter().any(|write| line.contains(write))
        });
        assert_eq!(
            writes_itself,
            path.ends_with("cli/terminal.rs"),
            "{} writes to the terminal itself",
            path.display()
        );
    }
}

#[test]
fn no_path_is_shown_as_it_is() {
    // What these make of a path is no text for people: a variable, a source as it was written, a key of a cache.
    let others =
        ["cli/launch/clients.rs", "cli/new.rs", "config/source.rs", "fleet/adapter_registry.rs", "fleet/probe.rs"];
    for path in sources("host").into_iter().filter(|path| !is_test(path)) {
        let shows = code(&path).contains(".display()");
        let may = others.iter().any(|other| path.ends_with(other));
        assert_eq!(shows, may, "{}: show paths by pensieve_protocol::outside::Outside", path.display());
    }
}

#[test]
fn what_the_sdk_reads_beside_weights_is_what_links_may_stand_for() {
    let named = fs::read_to_string(root().join("host/protocol/src/checkpoint_files.rs")).unwrap();
    let list = named.split("BESIDE_WEIGHTS").nth(1).unwrap().split("];").next().unwrap();
    let mut seen = 0;
    for path in ["tokenizer/folder.rs", "tokenizer/beside.rs", "config.rs"] {
        let text = code(&root().join("sdk/weights/src").join(path));
        let names = text.split('"').filter(|word| [".json", ".jinja", ".model"].iter().any(|end| word.ends_with(end)));
        for name in names.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte)))
        {
            seen += 1;
            assert!(list.contains(&format!("\"{name}\"")) || name.contains(".huggingface."), "{path} reads '{name}'");
        }
    }
    assert!(seen > 8, "{seen}");
}
