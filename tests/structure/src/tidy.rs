//! The architecture's rules as tests: allowed dependencies, and where things may be named.

use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::root;

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
    // comes out of a checkpoint or from a client: it cannot name what renders templates, tokenizes and compiles grammars.
    let server = reach(&dependencies, "pensieve-server");
    for foreign in ["pensieve", "pensieve-worker", "pensieve-plugin-api", "abi_stable", "libloading"] {
        assert!(!server.contains(foreign), "the server links {foreign}");
    }
    for foreign in ["pensieve-prompt", "pensieve-grammar", "llguidance", "minijinja", "minijinja-contrib", "tokenizers"]
    {
        assert!(!server.contains(foreign), "the server links {foreign}");
    }
    let prompt = reach(&dependencies, "pensieve-prompt");
    for foreign in ["pensieve", "pensieve-server", "pensieve-worker", "abi_stable", "warp"] {
        assert!(!prompt.contains(foreign), "a prompt process links {foreign}");
    }
    let worker = reach(&dependencies, "pensieve-worker");
    for foreign in ["pensieve", "pensieve-server", "hyper", "warp", "tokenizers", "minijinja", "tokio"] {
        assert!(!worker.contains(foreign), "the worker links {foreign}");
    }
    let grammar = reach(&dependencies, "pensieve-grammar");
    for foreign in
        ["pensieve-worker", "pensieve-prompt", "pensieve-plugin-api", "abi_stable", "minijinja", "tokenizers"]
    {
        assert!(!grammar.contains(foreign), "grammars link {foreign}");
    }
    let protocol = &dependencies["pensieve-protocol"];
    assert_eq!(*protocol, ["bytes", "postcard", "serde", "serde_json"].map(str::to_owned).into());
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

/// Building a plugin once more for tests that it does not have takes as long as building it.
#[test]
fn a_plugin_is_built_for_tests_if_it_has_any() {
    for plugin in fs::read_dir(root().join("plugins")).unwrap() {
        let folder = plugin.unwrap().path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse::<toml::Table>().unwrap();
        let is_built = manifest["lib"].get("test").is_none_or(|test| test.as_bool() == Some(true));
        let sources = sources(folder.to_str().unwrap());
        let has_tests = sources.iter().any(|path| fs::read_to_string(path).unwrap().contains("#[test]"));
        assert_eq!(is_built, has_tests, "'test' below [lib] in {}", folder.join("Cargo.toml").display());
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
        let is_glue = place.starts_with("export")
            || ["abi.rs", "services.rs", "testing.rs"].iter().any(|file| place.ends_with(file));
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

/// How many lines of model code a file may have.
const MODEL_LINES_MAX: usize = 250;

/// Ways of asking one by one for what the SDK computes at once: projections of keys and values by themselves, and sums of a
/// residual that `add_to` makes part of the product before.
const SLOW: [&str; 5] = ["k_proj.forward(", ".v_proj.forward(", "(x + ", "(&x + ", "(residual + "];

/// The files of models: all sources of every plugin and example that has a decoder, and what `pensieve new` writes.
fn model_files() -> Vec<(String, String)> {
    let crates = ["plugins", "examples"].into_iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let written = ["architecture/lib.txt", "vision/lib.txt", "vision/vision.txt"];
    let mut files = written.map(|file| root().join("host/src/cli/new").join(file)).to_vec();
    for folder in crates.map(|entry| entry.unwrap().path().join("src")).filter(|folder| folder.is_dir()) {
        let sources = sources(folder.strip_prefix(root()).unwrap().to_str().unwrap());
        if sources.iter().any(|path| fs::read_to_string(path).unwrap().contains("impl Decoder for ")) {
            files.extend(sources);
        }
    }
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The lines of a file that say how a model computes or what it reads from a configuration: no unit tests, and no tables, such as
/// those of a checkpoint's names.
fn model_code(text: &str) -> Vec<&str> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut is_table = false;
    let is_code = |line: &&str| {
        let (begins, ends) = (line.contains("const ") && line.ends_with(" &["), line.trim() == "];");
        let is_code = !is_table && !begins;
        is_table = (is_table || begins) && !ends;
        is_code
    };
    text.lines().filter(is_code).collect()
}

/// Complaints about model files, for a person.
fn unlike_a_paper(files: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, text) in files {
        let code = model_code(text);
        if code.len() > MODEL_LINES_MAX {
            wrong.push(format!("{file} has {} lines of model code, and may have {MODEL_LINES_MAX}", code.len()));
        }
        for slow in SLOW.iter().filter(|slow| code.iter().any(|line| line.contains(**slow))) {
            wrong.push(format!("{file} has `{slow}`: use Qkv, or add_to"));
        }
    }
    wrong
}

#[test]
fn an_architecture_reads_like_its_paper() {
    let files = model_files();
    // Those that were longest once: the pattern finds them.
    for model in
        ["gemma/src/gemma4.rs", "deepseek/src/lib.rs", "nemotron/src/lib.rs", "qwen/src/next.rs", "lfm2/src/lib.rs"]
    {
        assert!(files.iter().any(|(file, _)| file.ends_with(model)), "{model} is not looked at");
    }
    assert!(files.iter().any(|(file, _)| file == "examples/qwen2-plugin/src/lib.rs"));
    assert_eq!(unlike_a_paper(&files), [] as [String; 0]);
}

#[test]
fn a_model_that_no_longer_reads_like_its_paper_is_found() {
    let table = format!("const GGUF_NAMES: Names = &[\n{}];\n", "    (\"attn_q\", \"q_proj\"),\n".repeat(300));
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    // k_proj.forward(\n".repeat(300));
    let of = |lines: usize, last: &str| {
        let code = "let x = norm.add_to(x, &attn_out, step)?;\n".repeat(lines);
        [("model.rs".to_owned(), format!("{table}{code}{last}\n{tests}"))]
    };
    assert_eq!(unlike_a_paper(&of(MODEL_LINES_MAX - 1, "}")), [] as [String; 0]);
    assert_eq!(unlike_a_paper(&of(MODEL_LINES_MAX, "}")), ["model.rs has 251 lines of model code, and may have 250"]);
    for slow in SLOW {
        let wrong = unlike_a_paper(&of(1, &format!("let out = {slow}y)?;")));
        assert!(matches!(&wrong[..], [one] if one.contains(slow)), "{slow}: {wrong:?}");
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

/// `pensieve new` refuses the names of plugins and architectures that are there already.
#[test]
fn what_is_shipped_is_known_to_the_scaffold() {
    let scaffold = fs::read_to_string(root().join("host/src/cli/new.rs")).unwrap();
    let (_, list) = scaffold.split_once("const SHIPPED: &str = \"").unwrap();
    let (list, _) = list.split_once("\";").unwrap();
    let known: BTreeSet<&str> = list.split_whitespace().filter(|word| *word != "\\").collect();
    let plugins = fs::read_dir(root().join("plugins")).unwrap();
    let mut shipped: BTreeSet<String> =
        plugins.map(|plugin| plugin.unwrap().file_name().into_string().unwrap()).collect();
    assert!(shipped.contains("zoo"), "{shipped:?}");
    for path in sources("plugins") {
        let text = fs::read_to_string(path).unwrap();
        let names = text.split("const NAME: &'static str = \"").skip(1).filter_map(|rest| rest.split('"').next());
        // A plugin's name has no underscores, so that those with one cannot be taken.
        shipped.extend(names.filter(|name| !name.contains('_')).map(str::to_owned));
    }
    let missing: Vec<&String> = shipped.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert_eq!(missing, [] as [&String; 0], "complete SHIPPED in host/src/cli/new.rs");
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
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part.to_str().is_some_and(|part| part.starts_with("tests") || part.ends_with("_tests.rs")))
}

#[test]
fn state_machines_do_no_input_or_output() {
    let folders =
        ["host/server/src/fleet/supervisor", "host/worker/src/engine/scheduler", "host/worker/src/engine/blocks"];
    let is_simulation = |path: &Path| path.to_string_lossy().contains("/simulation");
    for path in folders.into_iter().flat_map(sources).filter(|path| !is_test(path) && !is_simulation(path)) {
        let code = code(&path);
        for word in ["tracing::", "std::fs", "File::", "println!", "Instant::now", "SystemTime::now", "spawn("] {
            assert!(!code.contains(word), "{} uses {word}", path.display());
        }
    }
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
