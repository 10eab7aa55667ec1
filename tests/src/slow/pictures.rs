//! Real clients that show pictures to a real vision model with random weights: what it says is noise, so usage, caches and the
//! absence of errors count. Claude Code reads a screenshot with its own tool, for which a scripted model calls; the session
//! then goes on with the vision model. opencode and Qwen Code attach a picture. They have few tools or none, as the fixture's
//! tokens are letters.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{claude_code::CLAUDE_CODE, opencode::OPENCODE};
use crate::{
    agents::{
        self, Agent,
        session::{self, Turn},
    },
    artifacts::{plugin, test_plugin},
    http::server::{Options, Server},
    images::picture,
    scripted,
    zoo::changed,
};

const QWEN_CODE: Agent = Agent { name: "Qwen Code", package: "@qwen-code/qwen-code", version: "0.15.10", find };
/// The id of the vision model, by which no client knows it.
const EYES: &str = "eyes";
const FIXTURE: &str = "vision/qwen3_vl";
const SHOT: &str = "screenshot.png";
const CONTEXT: u32 = 65_536;

#[test]
fn claude_code_shows_a_screenshot_that_its_tool_has_read() {
    plugin("pensieve-qwen");
    CLAUDE_CODE.run("slow::pictures::claude_code");
}

#[test]
fn opencode_shows_a_picture() {
    plugin("pensieve-qwen");
    OPENCODE.run("slow::pictures::opencode");
}

#[test]
fn qwen_code_shows_a_picture() {
    plugin("pensieve-qwen");
    QWEN_CODE.run("slow::pictures::qwen_code");
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn claude_code() {
    let Some(program) = agents::client() else { return };
    let desk = Desk::new();
    let read = session::call("Read", json!({"file_path": desk.project.join(SHOT)}));
    let server = desk.serve(&[("Look at", &read), ("", "There is a screenshot.")]);
    let ask = |arguments: &[&str], model: &str| {
        let mut command = desk.command(&program);
        command.args(arguments).args(["--output-format", "json", "--tools", "Read", "--allowedTools", "Read"]);
        command.args(["--model", model]);
        command.env("ANTHROPIC_BASE_URL", format!("http://{}", server.address));
        command.env("ANTHROPIC_API_KEY", "pensieve-local-key").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        command.env("ANTHROPIC_DEFAULT_HAIKU_MODEL", "scripted");
        let said = desk.said(&mut command, &server);
        let result: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!(result["is_error"], false, "{said}\n{}", server.log());
        result
    };
    let read = ask(&["-p", "Look at the screenshot, please."], "scripted");
    assert_eq!(read["num_turns"], 2, "{read}\n{}", server.log());
    ask(&["-c", "-p", "What does it show?"], EYES);
    ask(&["-c", "-p", "Are you sure?"], EYES);
    check(&server);
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn opencode() {
    let Some(program) = agents::client() else { return };
    let desk = Desk::new();
    let server = desk.serve(&[("", "A title.")]);
    let options = json!({"baseURL": format!("http://{}/v1", server.address), "apiKey": "sk-of-another-service"});
    let limit = json!({"context": CONTEXT, "output": 4096});
    let modalities = json!({"input": ["text", "image"], "output": ["text"]});
    let models = json!({
        EYES: {"limit": limit, "attachment": true, "modalities": modalities}, "scripted": {"limit": limit},
    });
    let provider =
        json!({"npm": "@ai-sdk/openai-compatible", "name": "Pensieve", "options": options, "models": models});
    let config = json!({
        "model": format!("pensieve/{EYES}"), "small_model": "pensieve/scripted", "provider": {"pensieve": provider},
        "tools": {"*": false},
    });
    fs::write(desk.project.join("opencode.json"), config.to_string()).unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = desk.command(&program);
        command.args(["run", "--format", "json"]).args(arguments);
        command.env("OPENCODE_DISABLE_AUTOUPDATE", "1").env("OPENCODE_DISABLE_MODELS_FETCH", "1");
        let said = desk.said(&mut command, &server);
        assert!(!said.contains(r#""type":"error""#), "{said}\n{}", server.log());
    };
    ask(&["What does this show?", "--file", SHOT]);
    ask(&["--continue", "Are you sure?"]);
    check(&server);
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn qwen_code() {
    let Some(program) = agents::client() else { return };
    let desk = Desk::new();
    let server = desk.serve(&[("", "Background.")]);
    let generation = json!({"contextWindowSize": CONTEXT, "modalities": {"image": true}});
    let settings = json!({
        "model": {"name": EYES, "generationConfig": generation},
        "memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false},
        "tools": {"core": ["read_file"], "exclude": ["agent", "task_stop", "send_message", "skill", "tool_search"]},
    });
    fs::create_dir_all(desk.home.join(".qwen")).unwrap();
    fs::write(desk.home.join(".qwen/settings.json"), settings.to_string()).unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = desk.command(&program);
        command.args(["--auth-type", "openai", "--output-format", "json", "--system-prompt", "Be brief."]);
        command.args(arguments);
        command.env("OPENAI_BASE_URL", format!("http://{}/v1", server.address));
        command.env("OPENAI_API_KEY", "sk-of-another-service").env("OPENAI_MODEL", EYES);
        let said = desk.said(&mut command, &server);
        assert!(said.contains(r#""is_error":false"#), "{said}\n{}", server.log());
    };
    ask(&["-p", &format!("What does @{SHOT} show?")]);
    ask(&["--continue", "-p", "Are you sure?"]);
    check(&server);
}

/// Checks that no request of the vision model lost its picture, and that each turn but the first found the one before in the
/// cache.
fn check(server: &Server) {
    let log = server.log();
    let of_eyes = log.lines().filter(|line| line.contains(&format!("asked={EYES}")));
    let of_eyes: String = of_eyes.map(|line| format!("{line}\n")).collect();
    assert!(!of_eyes.contains("reads text only"), "{log}");
    let turns = session::turns(&of_eyes);
    println!("{turns:#?}");
    assert!(turns.len() > 1, "{log}");
    let is_cached = |turn: &Turn| turn.reused * 100 >= turn.prompt * 95;
    assert!(turns.iter().skip(1).all(is_cached), "{log}");
    let encoded = format!("pensieve_worker_items_encoded_total{{model=\"{EYES}\"}}");
    server.until("the picture is encoded once for all turns", |metrics| {
        metrics.get(&encoded).is_some_and(|count| (count - 1.0).abs() < 0.5)
    });
}

/// The home of a client, and a folder with a screenshot to work in.
struct Desk {
    root: tempfile::TempDir,
    home: PathBuf,
    project: PathBuf,
    checkpoint: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (home, project) = (root.path().join("home"), root.path().join("project"));
        fs::create_dir(&home).unwrap();
        fs::create_dir(&project).unwrap();
        fs::write(project.join(SHOT), picture("rgb.png")).unwrap();
        let checkpoint = changed(FIXTURE, |config| config["text_config"]["max_position_embeddings"] = CONTEXT.into());
        Self { root, home, project, checkpoint }
    }

    /// Serves the vision model, and one that follows a script.
    fn serve(&self, script: &[(&str, &str)]) -> Server {
        let source = self.root.path().join("scripted");
        scripted::checkpoint(&source, script);
        let models = vec![("scripted".into(), source), (EYES.into(), self.checkpoint.path().to_owned())];
        let plugins = vec![test_plugin("scripted"), plugin("pensieve-qwen"), plugin("pensieve-samplers")];
        Options { plugins, models, ..Options::default() }.start()
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.project).stdin(Stdio::null()).env_clear();
        command.env("HOME", &self.home).env("PATH", env::var_os("PATH").unwrap());
        command
    }

    fn said(&self, command: &mut Command, server: &Server) -> String {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
        assert!(output.status.success(), "{}", log());
        said
    }
}

fn find(folder: &Path) -> Option<PathBuf> {
    Some(folder.join("node_modules/.bin/qwen")).filter(|path| path.is_file())
}
