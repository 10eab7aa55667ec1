//! The real opencode against the real program, without a network: it is given a task, the starter calls the shell, the
//! command really runs, its output goes back to the model, and the model gives its final answer. Once through OpenAI's
//! chat API, and once through Anthropic's API.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    agents::{self, Agent},
    http::server::Server,
    starter,
};

pub(super) const OPENCODE: Agent = Agent { name: "opencode", package: "opencode-ai", version: "1.18.33", find };

#[test]
fn opencode_runs_what_the_starter_is_asked_for() {
    OPENCODE.run("slow::opencode::with_the_starter");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn with_the_starter() {
    let Some(opencode) = agents::client() else { return };
    let server = starter::serve();
    for provider in ["@ai-sdk/openai-compatible", "@ai-sdk/anthropic"] {
        println!("{provider}");
        echoes(&opencode, &server, provider);
    }
}

/// Asks opencode to run a command, which the starter then calls.
fn echoes(opencode: &Path, server: &Server, provider: &str) {
    let root = tempfile::tempdir().unwrap();
    let (home, project) = (root.path().join("home"), root.path().join("project"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&project).unwrap();
    let name = format!("pensieve/{}", starter::ID);
    // The key is for another service.
    let options = json!({"baseURL": format!("http://{}/v1", server.address), "apiKey": "sk-of-another-service"});
    let models = json!({starter::ID: {"limit": {"context": 32768, "output": 4096}}});
    let provider = json!({"npm": provider, "name": "Pensieve", "options": options, "models": models});
    let config = json!({
        "model": name, "small_model": name, "provider": {"pensieve": provider}, "permission": {"bash": "allow"},
    });
    fs::write(project.join("opencode.json"), config.to_string()).unwrap();
    let mut command = Command::new(opencode);
    command.args(["run", "--format", "json", "Run the command: echo tangerine-42"]);
    command.current_dir(&project).stdin(Stdio::null()).env_clear();
    command.env("HOME", &home).env("PATH", env::var_os("PATH").unwrap());
    command.env("OPENCODE_DISABLE_AUTOUPDATE", "1").env("OPENCODE_DISABLE_MODELS_FETCH", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    let events: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // The command really ran, and the model got its result.
    let ran = events.iter().find(|event| event["type"] == "tool_use").unwrap_or_else(|| panic!("{}", log()));
    let printed = ran["part"]["state"]["output"].as_str().unwrap_or_default();
    assert_eq!(printed.trim_end(), "tangerine-42", "{}", log());
    let last = events.iter().rfind(|event| event["type"] == "text").unwrap_or_else(|| panic!("{}", log()));
    assert!(last["part"]["text"].as_str().unwrap().contains("tangerine-42"), "{}", log());
}

/// The package for this platform contains the program; there may be another one for processors without AVX2.
fn find(folder: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(folder.join("node_modules")).ok()?.flatten();
    let native = packages.filter(|package| package.file_name().to_string_lossy().starts_with("opencode-linux-"));
    native.map(|package| package.path().join("bin/opencode")).filter(|path| path.is_file()).min()
}
