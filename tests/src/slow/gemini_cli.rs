//! The real Gemini CLI against the real program, without a network: it is given a task, the model calls the shell, the
//! command really runs, its output goes back to the model, and the model gives its final answer. Once the model is the
//! starter, and once it is scripted.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    agents::{self, Agent},
    artifacts::{plugin, test_plugin},
    http::server::{Options, Server},
    scripted, starter,
};

pub(super) const GEMINI: Agent =
    Agent { name: "The Gemini CLI", package: "@google/gemini-cli", version: "0.61.0", find };
const COMMAND: &str = "echo tangerine-42";

#[test]
fn the_gemini_cli_runs_what_the_starter_is_asked_for() {
    GEMINI.run("slow::gemini_cli::with_the_starter");
}

#[test]
fn the_gemini_cli_calls_again_and_again() {
    GEMINI.run("slow::gemini_cli::several_turns");
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn with_the_starter() {
    let Some(gemini) = agents::client() else { return };
    let server = starter::serve();
    let said = run(&gemini, &server, starter::ID, &format!("Run the command: {COMMAND}"));
    assert_eq!(said["stats"]["tools"]["byName"]["run_shell_command"]["success"], 1, "{said:#}");
    assert!(said["response"].as_str().unwrap_or_default().contains("tangerine-42"), "{said:#}");
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn several_turns() {
    let Some(gemini) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    let call = |command: &str| {
        let call = json!({ "name": "run_shell_command", "arguments": { "command": command, "description": "" } });
        format!("I shall.\n<tool_call>\n{call}\n</tool_call>")
    };
    let (first, second, third) = (call("echo first-1"), call("echo second-2"), call("echo third-3"));
    let script = [
        ("third-3", "It is done."),
        ("second-2", third.as_str()),
        ("first-1", second.as_str()),
        ("Begin now", first.as_str()),
        ("", "Background."),
    ];
    scripted::checkpoint(&source, &script);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    let said = run(&gemini, &server, "scripted", "Begin now");
    let stats = &said["stats"];
    assert_eq!(stats["tools"]["byName"]["run_shell_command"]["success"], 3, "{said:#}");
    assert_eq!(said["response"], "It is done.", "{said:#}");
    // Each turn finds the one before in the cache: only the first prompt, and what is new, is computed.
    let tokens = &stats["models"]["scripted"]["tokens"];
    let (prompt, cached) = (tokens["prompt"].as_u64().unwrap(), tokens["cached"].as_u64().unwrap());
    assert!(cached * 100 > prompt * 70, "{cached} of {prompt} tokens were cached: {said:#}");
}

/// Asks the Gemini CLI in a new folder. Returns its report.
fn run(gemini: &Path, server: &Server, model: &str, prompt: &str) -> Value {
    let root = tempfile::tempdir().unwrap();
    let (home, project) = (root.path().join("home"), root.path().join("project"));
    fs::create_dir_all(home.join(".gemini")).unwrap();
    fs::create_dir(&project).unwrap();
    let settings = json!({"security": {"auth": {"selectedType": "gemini-api-key"}}});
    fs::write(home.join(".gemini/settings.json"), settings.to_string()).unwrap();
    let mut command = Command::new("node");
    command.arg(gemini).args(["-p", prompt, "--yolo", "-m", model, "--output-format", "json"]);
    command.current_dir(&project).stdin(Stdio::null()).env_clear();
    command.env("HOME", &home).env("PATH", env::var_os("PATH").unwrap()).env("GEMINI_CLI_TRUST_WORKSPACE", "true");
    command
        .env("GOOGLE_GEMINI_BASE_URL", format!("http://{}", server.address))
        .env("GEMINI_API_KEY", "of another service");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    assert!(output.status.success(), "{}", log());
    let start = said.find('{').unwrap_or_else(|| panic!("{}", log()));
    serde_json::from_str(&said[start..]).unwrap_or_else(|error| panic!("{error}: {}", log()))
}

fn find(folder: &Path) -> Option<PathBuf> {
    Some(folder.join("node_modules/@google/gemini-cli/bundle/gemini.js")).filter(|path| path.is_file())
}
