//! The real Codex CLI against the real program, without a network: it is asked for something, the model calls the shell, the
//! command really runs, and its output comes back to the model, which says its last word.
//!
//! Codex is installed once per target folder, in the version named here. Where it cannot be had (no npm, no network) or
//! where there can be no namespace without a network (`unshare`), the test skips itself with a line that says so;
//! `PENSIEVE_REQUIRE_CLIENTS=1` makes that a failure.

#![cfg(target_os = "linux")]

use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use crate::{
    artifacts::{plugin, program, test_plugin},
    claude_code::{alone, succeeded},
    http::server::{Options, Server},
    scripted, starter,
};

const VERSION: &str = "0.169.0";
const COMMAND: &str = "echo tangerine-42";

#[test]
fn codex_runs_what_the_starter_is_asked_for() {
    in_a_network_of_its_own("codex::with_the_starter");
}

#[test]
fn codex_runs_a_command_in_the_form_of_every_family() {
    in_a_network_of_its_own("codex::in_every_form");
}

fn in_a_network_of_its_own(test: &str) {
    let skip = |why: String| {
        let required = env::var_os("PENSIEVE_REQUIRE_CLIENTS").is_some_and(|value| value == "1");
        assert!(!required, "PENSIEVE_REQUIRE_CLIENTS=1, but Codex cannot run: {why}");
        println!("skipped Codex: {why}");
    };
    // Nothing is built where there is no network.
    program();
    test_plugin("scripted");
    starter::PLUGINS.iter().for_each(|package| drop(plugin(package)));
    let codex = match installed() {
        Ok(codex) => codex,
        Err(why) => return skip(why),
    };
    if let Err(why) = alone().arg("true").output().map_err(|error| error.to_string()).and_then(succeeded) {
        return skip(format!("there is no namespace without a network: {why}"));
    }
    let mut inner = alone();
    inner.arg(env::current_exe().unwrap()).args(["--exact", "--ignored", "--nocapture", test]);
    let output = inner.env("PENSIEVE_CODEX", codex).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let passed = output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(passed, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn with_the_starter() {
    let Some(codex) = env::var_os("PENSIEVE_CODEX") else { return };
    echoes(Path::new(&codex), &starter::serve(), starter::ID);
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn in_every_form() {
    let Some(codex) = env::var_os("PENSIEVE_CODEX") else { return };
    for family in &scripted::FAMILIES {
        println!("{}", family.template);
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("scripted");
        let call = family.call("exec_command", "cmd", COMMAND);
        let said = family.text("It printed tangerine-42.");
        // The result has the exit code before the output.
        family.checkpoint(&source, &[("exited with code 0", &said), (COMMAND, &call), ("", &said)]);
        let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
        let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
        echoes(Path::new(&codex), &server, "scripted");
    }
}

/// Codex is asked to run a command, which the model has it run.
fn echoes(codex: &Path, server: &Server, model: &str) {
    let root = tempfile::tempdir().unwrap();
    let (home, project) = (root.path().join("home"), root.path().join("project"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&project).unwrap();
    let config = format!(
        "model = \"{model}\"\nmodel_provider = \"pensieve\"\nmodel_context_window = 32768\n\
         [model_providers.pensieve]\nname = \"Pensieve\"\nbase_url = \"http://{}/v1\"\nwire_api = \"responses\"\n",
        server.address
    );
    fs::write(home.join("config.toml"), config).unwrap();
    let mut command = Command::new(codex);
    command.args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]);
    command.arg(format!("Run the command: {COMMAND}")).current_dir(&project).stdin(Stdio::null());
    command.env_clear().env("CODEX_HOME", &home).env("HOME", root.path()).env("PATH", env::var_os("PATH").unwrap());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    let items: Vec<Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| event["type"] == "item.completed")
        .map(|mut event| event["item"].take())
        .collect();
    // The command has really run, and the model has heard of it.
    let ran = items.iter().find(|item| item["type"] == "command_execution").unwrap_or_else(|| panic!("{}", log()));
    assert_eq!((&ran["exit_code"], &ran["aggregated_output"]), (&0.into(), &"tangerine-42\n".into()), "{}", log());
    let last = items.iter().rfind(|item| item["type"] == "agent_message").unwrap_or_else(|| panic!("{}", log()));
    assert!(last["text"].as_str().unwrap().contains("tangerine-42"), "{}", log());
    assert!(said.contains("turn.completed"), "{}", log());
}

/// The program, installed if it is not there yet.
fn installed() -> Result<PathBuf, String> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _guard = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(format!("codex-{VERSION}"));
    if let Some(found) = find(&folder) {
        return Ok(found);
    }
    fs::create_dir_all(&folder).unwrap();
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--fetch-retries=2"]);
    npm.arg("--prefix").arg(&folder).arg(format!("@openai/codex@{VERSION}"));
    succeeded(npm.output().map_err(|error| format!("npm: {error}"))?)?;
    find(&folder).ok_or_else(|| "npm has installed no program for this platform".to_owned())
}

/// The package for this platform holds the program itself: `@openai/codex-PLATFORM/vendor/TRIPLE/bin/codex`.
fn find(folder: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(folder.join("node_modules/@openai")).ok()?;
    let vendors = packages.filter_map(|entry| fs::read_dir(entry.ok()?.path().join("vendor")).ok());
    vendors.flatten().filter_map(|entry| Some(entry.ok()?.path().join("bin/codex"))).find(|path| path.is_file())
}
