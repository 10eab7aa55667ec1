//! The real Codex CLI against the real program, without a network: it is given a task, the model calls the shell, the
//! command really runs, its output goes back to the model, and the model gives its final answer.

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

pub(super) const CODEX: Agent = Agent { name: "Codex", package: "@openai/codex", version: "0.169.0", find };
const COMMAND: &str = "echo tangerine-42";

#[test]
fn codex_runs_what_the_starter_is_asked_for() {
    CODEX.run("slow::codex::with_the_starter");
}

#[test]
fn codex_runs_a_command_in_the_form_of_every_family() {
    CODEX.run("slow::codex::in_every_form");
}

#[test]
fn codex_applies_a_patch_that_its_grammar_has_shaped() {
    CODEX.run("slow::codex::with_a_patch");
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn with_the_starter() {
    let Some(codex) = agents::client() else { return };
    echoes(&codex, &starter::serve(), starter::ID);
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn in_every_form() {
    let Some(codex) = agents::client() else { return };
    for family in &agents::families::FAMILIES {
        println!("{}", family.template);
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("scripted");
        let call = family.call("exec_command", "cmd", COMMAND);
        let said = family.text("It printed tangerine-42.");
        // The result has the exit code before the output.
        family.checkpoint(&source, &[("exited with code 0", &said), (COMMAND, &call), ("", &said)]);
        let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
        let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
        echoes(&codex, &server, "scripted");
    }
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn with_a_patch() {
    let Some(codex) = agents::client() else { return };
    // The first line lacks its asterisks, without which Codex would not apply the patch.
    let patch = " Begin Patch\n*** Add File: greeting.txt\n+say \"hi\" \\o/\n+\n*** End Patch\n";
    let call = json!({ "name": "apply_patch", "arguments": { "input": patch } });
    let call = format!("<tool_call>\n{call}\n</tool_call>");
    patches(&codex, |source| scripted::checkpoint(source, &[("Success. Updated", "It is there."), ("Greet", &call)]));
    for family in &agents::families::FAMILIES {
        println!("{}", family.template);
        let (call, said) = (family.call("apply_patch", "input", patch), family.text("It is there."));
        patches(&codex, |source| {
            family.checkpoint(source, &[("Success. Updated", &said), ("Greet", &call), ("", &said)]);
        });
    }
}

/// Has Codex apply the patch of a model.
fn patches(codex: &Path, checkpoint: impl FnOnce(&Path)) {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    checkpoint(&source);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    // A model gets the tool if the list of models says so.
    let mut catalog = server.get("/v1/models").json();
    catalog["models"][0]["apply_patch_tool_type"] = "freeform".into();
    let path = root.path().join("models.json");
    fs::write(&path, json!({ "models": catalog["models"] }).to_string()).unwrap();
    let project = root.path().join("project");
    let said = run(codex, &server, "scripted", &format!("model_catalog_json = {path:?}\n"), "Greet me", &project);
    let written = fs::read_to_string(project.join("greeting.txt"));
    assert_eq!(written.unwrap_or_else(|error| panic!("{error}: {said:?}")), "say \"hi\" \\o/\n\n");
    assert!(said.text().contains("It is there."), "{said:?}");
}

/// Asks Codex to run a command, which the model then calls.
fn echoes(codex: &Path, server: &Server, model: &str) {
    let root = tempfile::tempdir().unwrap();
    let prompt = format!("Run the command: {COMMAND}");
    let said = run(codex, server, model, "model_context_window = 32768\n", &prompt, &root.path().join("project"));
    // The command really ran, and the model got its result.
    let ran = said.items.iter().find(|item| item["type"] == "command_execution");
    let ran = ran.unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!((&ran["exit_code"], &ran["aggregated_output"]), (&0.into(), &"tangerine-42\n".into()), "{said:?}");
    assert!(said.text().contains("tangerine-42"), "{said:?}");
}

/// A completed turn of Codex.
#[derive(Debug)]
struct Said {
    items: Vec<Value>,
    /// Its whole output, and the server's log.
    log: String,
}

impl Said {
    /// The last message.
    fn text(&self) -> &str {
        let last = self.items.iter().rfind(|item| item["type"] == "agent_message");
        last.and_then(|item| item["text"].as_str()).unwrap_or_else(|| panic!("{}", self.log))
    }
}

/// Runs Codex in a new folder, with additional lines in its configuration.
fn run(codex: &Path, server: &Server, model: &str, lines: &str, prompt: &str, project: &Path) -> Said {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::create_dir(project).unwrap();
    let config = format!(
        "model = \"{model}\"\nmodel_provider = \"pensieve\"\n{lines}\
         [model_providers.pensieve]\nname = \"Pensieve\"\nbase_url = \"http://{}/v1\"\nwire_api = \"responses\"\n",
        server.address
    );
    fs::write(home.join("config.toml"), config).unwrap();
    let mut command = Command::new(codex);
    command.args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", prompt]);
    command.current_dir(project).stdin(Stdio::null());
    command.env_clear().env("CODEX_HOME", &home).env("HOME", root.path()).env("PATH", env::var_os("PATH").unwrap());
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let log = format!("{printed}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    assert!(printed.contains("turn.completed"), "{log}");
    let events = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let completed = events.filter(|event| event["type"] == "item.completed");
    Said { items: completed.map(|mut event| event["item"].take()).collect(), log }
}

/// The package for this platform contains the program itself: `@openai/codex-PLATFORM/vendor/TRIPLE/bin/codex`.
fn find(folder: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(folder.join("node_modules/@openai")).ok()?;
    let vendors = packages.filter_map(|entry| fs::read_dir(entry.ok()?.path().join("vendor")).ok());
    vendors.flatten().filter_map(|entry| Some(entry.ok()?.path().join("bin/codex"))).find(|path| path.is_file())
}
