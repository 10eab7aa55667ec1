//! Builds the plugins that tests load, using the cargo that runs the tests, the same target folder and the same
//! profile.
//!
//! They cannot be dependencies: cargo does not expose a dependency's `cdylib`. Each build runs once per test run, when
//! a test first needs it; another toolchain builds into a separate folder.

use serde_json::Value;
use std::{
    collections::HashMap,
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock},
};

/// Settings for builds outside the workspace, which compile all dependencies again, including candle and the kernels,
/// and run them only on tiny models.
const QUICK: [&str; 4] = [
    "--config",
    "profile.dev.package.\"*\".opt-level=1",
    "--config",
    "profile.dev.package.pensieve-kernels.opt-level=1",
];

/// The crates published for authors, in publishing order.
const PUBLISHED: [&str; 6] =
    ["pensieve-plugin-api", "pensieve-laws", "pensieve-error", "pensieve-weights", "pensieve-kernels", "pensieve-sdk"];

/// The plugin that a package of this workspace builds.
pub fn plugin(package: &str) -> PathBuf {
    library(&workspace_build(), package)
}

/// The plugin of an example that is its own workspace.
pub fn outside_plugin(folder: &str) -> PathBuf {
    library(&outside(&example(folder), folder), folder)
}

/// The project folder of an example.
pub fn example(folder: &str) -> PathBuf {
    workspace().join("examples").join(folder)
}

/// A plugin's project as a third party builds it: copied to a fresh folder, against the SDK and the contract as they
/// would be published, by another toolchain if there is one. It uses this workspace's versions and profiles. Its test program
/// is included as `PACKAGE tests`.
pub fn outside(project: &Path, package: &str) -> Artifacts {
    once(&format!("{package} outside"), || {
        let fresh = tempfile::tempdir().expect("a temporary folder");
        copy_project(project, fresh.path());
        let manifest = fresh.path().join("Cargo.toml");
        let packaged = packaged();
        let sdk = format!("path = \"{}\"", packaged.join("pensieve-sdk").display());
        let text = fs::read_to_string(&manifest).expect("a manifest");
        let text = text.replace("path = \"../../sdk\"", &sdk);
        let text = text.replace(&format!("path = \"{}\"", workspace().join("sdk").display()), &sdk);
        assert!(text.contains(&sdk), "{}: depends on another SDK", manifest.display());
        fs::write(&manifest, text).expect("a writable folder");
        if !fresh.path().join("Cargo.lock").exists() {
            fs::copy(workspace().join("Cargo.lock"), fresh.path().join("Cargo.lock")).expect("a writable folder");
        }
        let manifest = manifest.to_str().expect("a path in UTF-8");
        // The packaged SDK would ask a registry for the other crates, which are there only once all are published.
        let others = PUBLISHED.iter().filter(|name| **name != "pensieve-sdk");
        let patches: Vec<String> =
            others.map(|name| format!("patch.crates-io.{name}.path = \"{}\"", packaged.join(name).display())).collect();
        let mut arguments =
            vec!["--offline", "--manifest-path", manifest, "--lib", "--tests", "--config", "Cargo.toml"];
        arguments.extend(patches.iter().flat_map(|patch| ["--config", patch]));
        arguments.extend(QUICK);
        match other_toolchain() {
            Some(toolchain) => build(rustup_run(toolchain, "cargo"), &other_target_dir(), &arguments),
            // Not the workspace's target folder: an example must not replace the workspace's plugin of the same name.
            None => build(cargo(), &target_dir().join("outside"), &arguments),
        }
    })
}

/// The folder with the unpacked output of `cargo package`.
fn packaged() -> PathBuf {
    static PACKAGED: OnceLock<PathBuf> = OnceLock::new();
    let pack = || {
        let root = target_dir().join("packaged");
        let archives = root.join("package");
        // Archives of other versions would be unpacked, too.
        let _ = fs::remove_dir_all(&archives);
        let mut pack = cargo();
        pack.args(["package", "--offline", "--locked", "--no-verify", "--allow-dirty", "--quiet"]);
        pack.args(PUBLISHED.iter().flat_map(|name| ["-p", name])).arg("--target-dir").arg(&root);
        run(pack.current_dir(workspace()));
        for name in fs::read_dir(&archives).expect("archives").map(|entry| entry.expect("an entry").file_name()) {
            let Some(file) = name.to_str().and_then(|name| name.strip_suffix(".crate")) else { continue };
            let (package, _version) = file.rsplit_once('-').expect("a version in the archive's name");
            let fresh = tempfile::tempdir_in(&root).expect("a temporary folder");
            run(Command::new("tar").arg("-xzf").arg(archives.join(&name)).arg("-C").arg(fresh.path()));
            replace(&fresh.path().join(file), &root.join(package));
        }
        root
    };
    PACKAGED.get_or_init(pack).clone()
}

/// Makes one folder equal to another without touching files that already are, which cargo would compile again.
fn replace(from: &Path, to: &Path) {
    let names = |folder: &Path| -> Vec<_> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name()).collect()
    };
    fs::create_dir_all(to).expect("a writable folder");
    for name in names(to) {
        let (path, source) = (to.join(&name), from.join(&name));
        if path.is_dir() && !source.is_dir() {
            fs::remove_dir_all(path).expect("a writable folder");
        } else if path.is_file() && !source.is_file() {
            fs::remove_file(path).expect("a writable folder");
        }
    }
    for name in names(from) {
        let (path, source) = (to.join(&name), from.join(&name));
        if source.is_dir() {
            replace(&source, &path);
            continue;
        }
        let bytes = fs::read(&source).expect("a readable file");
        if fs::read(&path).ok().as_ref() != Some(&bytes) {
            fs::write(&path, bytes).expect("a writable folder");
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn copy_project(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a project").map(|entry| entry.expect("an entry")) {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() && entry.file_name() != "target" {
            fs::create_dir(&copy).expect("a writable folder");
            copy_project(&path, &copy);
        } else if path.is_file() {
            fs::copy(&path, &copy).expect("a writable folder");
        }
    }
}

/// A plugin in `tests/plugins`, by file name.
pub fn test_plugin(name: &str) -> PathBuf {
    library(&workspace_build(), name)
}

/// The file of a library of that name, as this system has it.
pub fn library_name(name: &str) -> String {
    format!("{}{name}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX)
}

/// The program itself.
pub fn program() -> PathBuf {
    library(&workspace_build(), "pensieve")
}

/// Puts the program at a path of its own, away from the plugins that lie beside it. macOS has been seen to kill what is started
/// through a fresh hard link; there a copy of a file costs no more than a link.
pub fn place_program(path: &Path) {
    if cfg!(target_os = "macos") {
        fs::copy(program(), path).unwrap();
    } else if fs::hard_link(program(), path).is_err() {
        copy_program(&program(), path);
    }
}

/// Copies a program, by another process: each child of this one holds open for writing what this one does, until it executes
/// its own program, and in that moment no test could start the copy ("text file busy").
pub fn copy_program(from: &Path, to: &Path) {
    run(Command::new("install").args(["-m", "755"]).args([from, to]));
}

/// Writes a shell script, as a program is copied.
pub fn write_script(path: &Path, script: &str) {
    let written = tempfile::NamedTempFile::new().unwrap();
    fs::write(&written, format!("#!/bin/sh\n{script}\n")).unwrap();
    copy_program(written.path(), path);
}

/// Everything that tests run or load. Building single packages would resolve different features for their dependencies
/// than `cargo test --workspace`, and compile candle a second time.
pub fn workspace_build() -> Artifacts {
    let arguments =
        ["--locked", "--workspace", "--lib", "--bins", "--examples", "--features", "pensieve-test-plugins/plugins"];
    once("workspace", || build(cargo(), &target_dir(), &arguments))
}

/// The plugin of a package, built with another Rust toolchain; `None` if there is none.
pub fn plugin_by_other_toolchain(package: &str) -> Option<PathBuf> {
    let toolchain = other_toolchain()?;
    let artifacts = once(&format!("{package} by {toolchain}"), || {
        let arguments = [&["--locked", "-p", package], &QUICK[..]].concat();
        build(rustup_run(toolchain, "cargo"), &other_target_dir(), &arguments)
    });
    Some(library(&artifacts, package))
}

/// A toolchain with a different compiler from the one that built this test, preferably nightly. Without one, returns
/// `None` and prints a line that says so; `PENSIEVE_REQUIRE_OTHER_TOOLCHAIN=1` makes that a failure.
pub fn other_toolchain() -> Option<&'static str> {
    static OTHER: OnceLock<Option<String>> = OnceLock::new();
    let found = OTHER.get_or_init(find_other_toolchain).as_deref();
    if found.is_none() {
        let required = env::var_os("PENSIEVE_REQUIRE_OTHER_TOOLCHAIN").is_some_and(|value| value == "1");
        assert!(!required, "PENSIEVE_REQUIRE_OTHER_TOOLCHAIN=1, but rustup knows no second toolchain");
        println!(
            "rustup knows no second toolchain: plugins are built with this one, and tests that compare two are skipped"
        );
    }
    found
}

/// The libraries and programs of a build, by target name.
pub type Artifacts = HashMap<String, PathBuf>;

/// The artifacts of a build, which runs at most once per key. Builds of different keys wait for each other, as they
/// would for cargo's lock.
fn once(key: &str, build: impl FnOnce() -> Artifacts) -> Artifacts {
    static BUILDS: Mutex<Option<HashMap<String, Artifacts>>> = Mutex::new(None);
    // A failed build panics in the test that ran it; the next test retries and fails with the same message.
    let mut builds = BUILDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let builds = builds.get_or_insert_default();
    if let Some(artifacts) = builds.get(key) {
        return artifacts.clone();
    }
    let artifacts = build();
    builds.insert(key.to_owned(), artifacts.clone());
    artifacts
}

pub fn library(artifacts: &Artifacts, name: &str) -> PathBuf {
    let target = name.replace('-', "_");
    artifacts.get(&target).unwrap_or_else(|| panic!("the build made no library '{target}': {artifacts:?}")).clone()
}

/// Runs `cargo build` and collects the shared libraries and programs that it produced, by target name.
fn build(mut cargo: Command, target_dir: &Path, arguments: &[&str]) -> Artifacts {
    cargo.args(["build", "--message-format=json-render-diagnostics"]);
    cargo.args(profile()).arg("--target-dir").arg(target_dir).args(arguments);
    let output = cargo.current_dir(workspace()).stderr(Stdio::piped()).output().expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?} failed:\n{errors}");
    let mut artifacts = HashMap::new();
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else { continue };
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let program = message["executable"].as_str();
        for file in files.filter(|file| file.ends_with(env::consts::DLL_SUFFIX) || Some(*file) == program) {
            if let Some(target) = message["target"]["name"].as_str() {
                let tests = if message["profile"]["test"] == true { " tests" } else { "" };
                artifacts.insert(target.replace('-', "_") + tests, PathBuf::from(file));
            }
        }
    }
    artifacts
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()))
}

/// A tool of another toolchain. Variables that cargo and rustup have set for this test run concern this toolchain and
/// package and are removed; those set by the user, for registries and networks, stay.
fn rustup_run(toolchain: &str, tool: &str) -> Command {
    let mut command = Command::new("rustup");
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CFG_", "DEP_"];
        let single = [
            "CARGO",
            "CARGO_CRATE_NAME",
            "CARGO_PRIMARY_PACKAGE",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_TMPDIR",
            "RUSTUP_TOOLCHAIN",
            "RUSTC",
            "RUSTDOC",
            "OUT_DIR",
            "LD_LIBRARY_PATH",
            "DYLD_LIBRARY_PATH",
            "DYLD_FALLBACK_LIBRARY_PATH",
        ];
        if single.contains(&text.as_ref()) || package.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.args(["run", toolchain, tool]);
    command
}

fn find_other_toolchain() -> Option<String> {
    let listed = Command::new("rustup").args(["toolchain", "list", "--quiet"]).output().ok()?;
    let listed = String::from_utf8(listed.stdout).ok()?;
    let mut toolchains: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    toolchains.sort_by_key(|name| !name.starts_with("nightly"));
    let own = version(Command::new(env::var_os("RUSTC").unwrap_or_else(|| OsStr::new("rustc").into())))?;
    let other = |name: &&str| version(rustup_run(name, "rustc")).is_some_and(|version| version != own);
    toolchains.into_iter().find(other).map(str::to_owned)
}

fn version(mut rustc: Command) -> Option<String> {
    let output = rustc.arg("--version").output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace around this package")
}

fn other_target_dir() -> PathBuf {
    target_dir().join("other-toolchain")
}

fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder around its tmp").to_path_buf()
}

/// The profile of this test binary, which is in `PROFILE/deps`.
fn profile() -> Vec<String> {
    let binary = env::current_exe().expect("the path of this test");
    let folder = binary.ancestors().nth(2).and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or("debug");
    let profile = if folder == "debug" { "dev" } else { folder };
    vec!["--profile".to_owned(), profile.to_owned()]
}
