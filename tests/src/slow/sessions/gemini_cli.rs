//! The Gemini CLI, by the Agent Client Protocol, and resumed by itself.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    agents::{
        self,
        session::{self, IMAGE, Shell, TURNS, Talk, done, steps_after},
    },
    artifacts::program,
    slow::gemini_cli::GEMINI,
};

const SHELL: Shell = Shell { tool: "run_shell_command", argument: "command" };
/// It asks for a summary, and then for a better one.
const SUMMARIES: [(&str, &str); 3] = [
    ("Critically evaluate", "<state_snapshot>Steps were taken, all of them.</state_snapshot>"),
    ("in your scratchpad", "<state_snapshot>Steps were taken.</state_snapshot>"),
    (
        "count the things",
        "<tool_call>\n{\"name\": \"complete_task\", \"arguments\": {\"response\": \"seven things\"}}\n</tool_call>",
    ),
];
/// The part of the window that it compacts at. It takes every window for 1,048,576 tokens.
const THRESHOLD: f64 = 26_000.0 / 1_048_576.0;
/// Long results of 3,600 tokens: more than fill that part.
const READS: usize = 8;

#[test]
fn the_gemini_cli_works_for_thirty_turns() {
    GEMINI.run("slow::sessions::gemini_cli::thirty_turns");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn thirty_turns() {
    let Some(gemini) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let ask = json!({"agent_name": "generalist", "prompt": "Please count the things."});
    let ask = session::call("invoke_agent", ask);
    let server = session::serve(root.path(), &SHELL, &ask, &SUMMARIES, 65_536);
    let (home, project) = (root.path().join("home"), root.path().join("project"));
    fs::create_dir_all(home.join(".gemini")).unwrap();
    fs::create_dir(&project).unwrap();
    let security = json!({"auth": {"selectedType": "gemini-api-key"}});
    let settings = json!({"security": security, "model": {"compressionThreshold": THRESHOLD}});
    fs::write(home.join(".gemini/settings.json"), settings.to_string()).unwrap();

    let mut open = Gemini::open(&gemini, server.address, &home, &project);
    let mut turns = open.steps(0, 3);
    let picture = json!({"type": "image", "mimeType": "image/png", "data": IMAGE});
    assert_eq!(open.say(json!([text("What is in this picture?"), picture])), "A pixel.");
    assert!(open.say(json!([text("Ask a subagent")])).ends_with("The subagent has counted seven."));
    let counting = open.start_saying(json!([text("Count slowly")]));
    session::until_writing(&server);
    open.talk.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": open.session}}));
    assert_eq!(open.talk.response(counting)["stopReason"], "cancelled");
    turns += open.steps(9, 1);
    // It compacts by itself once its history is longer than its settings allow: how soon that is depends on the
    // instructions, which differ with the programs that it finds on a machine.
    let is_compacted =
        || server.log().contains("path=\"/v1beta/models/gemini-3.1-pro-preview-customtools:generateContent\"");
    for _ in 0..READS {
        assert!(open.say(json!([text("Read much")])).ends_with("I have read much."), "{:?}", open.talk);
        turns += 2;
        if is_compacted() {
            break;
        }
    }
    assert!(is_compacted(), "{}", server.log());
    turns += open.steps(12, 2);
    open.talk.close();
    let said = resume(&gemini, server.address, &home, &project, &steps_after(18));
    assert!(said["response"].as_str().unwrap_or_default().ends_with(&done(21)), "{said:#}\n{}", server.log());
    turns += TURNS;
    assert!(turns >= 30, "{turns}");
    session::check_cached(&server);
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn command(gemini: &Path, address: SocketAddr, home: &Path, project: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(gemini).args(["--yolo", "-m", "scripted"]).current_dir(project).env_clear();
    command.env("HOME", home).env("PATH", env::var_os("PATH").unwrap()).env("GEMINI_CLI_TRUST_WORKSPACE", "true");
    command.env("GOOGLE_GEMINI_BASE_URL", format!("http://{address}")).env("GEMINI_API_KEY", "pensieve-local-key");
    command
}

/// Goes on with the latest session, as `pensieve launch` starts it, and returns the report.
fn resume(gemini: &Path, address: SocketAddr, home: &Path, project: &Path, prompt: &str) -> Value {
    let mut command = Command::new(program());
    command.args(["launch", "gemini", "--", "--yolo", "-p", prompt, "--resume", "latest", "--output-format", "json"]);
    command.current_dir(project).stdin(Stdio::null()).env_clear().env("HOME", home);
    // It stands at node_modules/@google/gemini-cli/bundle/gemini.js, and node_modules/.bin/gemini leads there.
    let programs = gemini.ancestors().nth(4).unwrap().join(".bin");
    let folders = env::var_os("PATH").unwrap();
    let folders = [programs].into_iter().chain(env::split_paths(&folders));
    command.env("PATH", env::join_paths(folders).unwrap()).env("GEMINI_CLI_TRUST_WORKSPACE", "true");
    command.env("PENSIEVE_LISTEN", address.to_string());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let start = said.find('{').unwrap_or_else(|| panic!("{said}\n{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(&said[start..]).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The Gemini CLI as editors speak to it, by the Agent Client Protocol.
struct Gemini {
    talk: Talk,
    session: Value,
    requests: usize,
}

impl Gemini {
    fn open(gemini: &Path, address: SocketAddr, home: &Path, project: &Path) -> Self {
        let talk = Talk::start(command(gemini, address, home, project).arg("--acp"));
        let mut open = Self { talk, session: Value::Null, requests: 2 };
        open.talk.ask(1, "initialize", json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let new = json!({"cwd": project, "mcpServers": []});
        open.session = open.talk.ask(2, "session/new", new)["sessionId"].take();
        open
    }

    /// Sends a prompt, and returns the request's id.
    fn start_saying(&mut self, prompt: Value) -> usize {
        self.requests += 1;
        let parameters = json!({"sessionId": self.session, "prompt": prompt});
        let request = json!({"jsonrpc": "2.0", "id": self.requests, "method": "session/prompt", "params": parameters});
        self.talk.send(&request);
        self.requests
    }

    /// Says something, allows what is asked for, and returns the text of the answer.
    fn say(&mut self, prompt: Value) -> String {
        let before = self.talk.said.len();
        let id = self.start_saying(prompt);
        loop {
            let message = self.talk.until(|message| {
                message["method"] == "session/request_permission"
                    || (message["id"] == id && message.get("method").is_none())
            });
            if message.get("method").is_none() {
                assert_eq!(message["result"]["stopReason"], "end_turn", "{message}: {:?}", self.talk);
                break;
            }
            let outcome = json!({"outcome": "selected", "optionId": message["params"]["options"][0]["optionId"]});
            self.talk.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}}));
        }
        let updates = self.talk.said[before..].iter().map(|message| &message["params"]["update"]);
        let texts = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        texts.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// Takes three steps with each of some prompts, and returns the number of turns.
    fn steps(&mut self, from: usize, count: usize) -> usize {
        for after in (from..from + 3 * count).step_by(3) {
            let said = self.say(json!([text(&steps_after(after))]));
            assert!(said.ends_with(&done(after + 3)), "{said}: {:?}", self.talk);
        }
        count * TURNS
    }
}
