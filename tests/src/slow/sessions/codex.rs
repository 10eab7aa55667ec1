//! Codex, by the protocol of its app server.

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
    slow::codex::CODEX,
};

const SHELL: Shell = Shell { tool: "exec_command", argument: "cmd" };
const OWN: [(&str, &str); 2] =
    [("CONTEXT CHECKPOINT COMPACTION", "Steps were taken."), ("agent_id", "The subagent is asked.")];
/// The window that Codex is told.
const WINDOW: usize = 32_768;

#[test]
fn codex_works_for_thirty_turns() {
    CODEX.run("slow::sessions::codex::thirty_turns");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn thirty_turns() {
    let Some(codex) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let ask = session::call("multi_agent_v1__spawn_agent", json!({"message": "Please count the things."}));
    let server = session::serve(root.path(), &SHELL, &ask, &OWN, 65_536);
    let (home, project) = (root.path().join("home"), root.path().join("project"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&project).unwrap();
    fs::write(home.join("config.toml"), config(server.address)).unwrap();

    let mut codex_server = Codex::start(&codex, &home, &project);
    codex_server.thread = codex_server.ask("thread/start", json!({ "cwd": project }))["thread"]["id"].take();
    let mut turns = codex_server.steps(0, 3);
    let picture = json!({"type": "image", "url": format!("data:image/png;base64,{IMAGE}")});
    assert_eq!(codex_server.say(json!([text("What is in this picture?"), picture])), "A pixel.");
    assert_eq!(codex_server.say(json!([text("Ask a subagent")])), "The subagent is asked.");
    // The subagent may have been faster than the turn that asked it.
    codex_server.talk.since(0, |message| last_words(message).is_some_and(|words| words == "There are seven things."));
    let before = codex_server.talk.said.len();
    let turn = codex_server.ask("turn/start", codex_server.turn(json!([text("Count slowly")])))["turn"]["id"].take();
    session::until_writing(&server);
    codex_server.ask("turn/interrupt", json!({"threadId": codex_server.thread, "turnId": turn}));
    assert_eq!(codex_server.ended(before)["status"], "interrupted");
    turns += codex_server.steps(9, 1);
    let thread = codex_server.thread.clone();
    codex_server.talk.close();

    let mut codex_server = Codex::start(&codex, &home, &project);
    codex_server.thread = thread.clone();
    codex_server.ask("thread/resume", json!({ "threadId": thread }));
    turns += codex_server.steps(12, 2);
    let before = codex_server.talk.said.len();
    codex_server.ask("thread/compact/start", json!({ "threadId": thread }));
    assert_eq!(codex_server.ended(before)["status"], "completed");
    turns += codex_server.steps(18, 2);
    assert!(turns >= 30, "{turns}");
    // It compacts by itself once the window that it knows is nearly full.
    let compacted =
        |talk: &Talk| talk.said.iter().filter(|message| item(message, "contextCompaction").is_some()).count();
    let before = compacted(&codex_server.talk);
    for _ in 0..8 {
        if compacted(&codex_server.talk) > before {
            break;
        }
        codex_server.say(json!([text("Read much")]));
    }
    assert!(compacted(&codex_server.talk) > before, "{:?}", codex_server.talk);
    codex_server.steps(24, 1);
    codex_server.talk.close();
    session::check_cached(&server);
}

#[test]
fn codex_finds_its_sessions_again_when_it_is_launched() {
    CODEX.run("slow::sessions::codex::launched");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn launched() {
    let Some(codex) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let server = session::serve(root.path(), &SHELL, "", &OWN, 65_536);
    for (after, arguments) in [(0, &["exec"][..]), (3, &["exec", "resume", "--last"])] {
        let mut command = Command::new(program());
        command.args(["launch", "codex", "--"]).args(arguments);
        command.args(["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", &steps_after(after)]);
        command.current_dir(root.path()).stdin(Stdio::null()).env_clear().env("HOME", root.path());
        let folders = [codex.parent().unwrap().to_owned(), "/usr/bin".into(), "/bin".into()];
        command.env("PATH", env::join_paths(folders).unwrap()).env("PENSIEVE_LISTEN", server.address.to_string());
        let output = command.output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains(&done(after + 3)), "{said}\n{}", server.log());
    }
    // The second one goes on where the first has ended.
    let turns = session::turns(&server.log());
    let [.., last, resumed, _, _, _] = &turns[..] else { panic!("{turns:?}") };
    assert!(resumed.reused + 64 > last.prompt, "{turns:?}");
}

fn config(address: SocketAddr) -> String {
    format!(
        "model = \"scripted\"\nmodel_provider = \"pensieve\"\nmodel_context_window = {WINDOW}\n\
         approval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n\
         [model_providers.pensieve]\nname = \"Pensieve\"\nbase_url = \"http://{address}/v1\"\nwire_api = \"responses\"\n"
    )
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A completed item of this type.
fn item<'a>(message: &'a Value, kind: &str) -> Option<&'a Value> {
    let item = &message["params"]["item"];
    (message["method"] == "item/completed" && item["type"] == kind).then_some(item)
}

fn last_words(message: &Value) -> Option<&str> {
    item(message, "agentMessage")?["text"].as_str()
}

/// Codex as a server for programs, as its extensions of editors use it.
struct Codex {
    talk: Talk,
    thread: Value,
    requests: usize,
}

impl Codex {
    fn start(codex: &Path, home: &Path, project: &Path) -> Self {
        let mut command = Command::new(codex);
        command.arg("app-server").current_dir(project);
        command.env_clear().env("CODEX_HOME", home).env("HOME", home).env("PATH", env::var_os("PATH").unwrap());
        let mut server = Self { talk: Talk::start(&mut command), thread: Value::Null, requests: 0 };
        server.ask("initialize", json!({"clientInfo": {"name": "test", "version": "1"}}));
        server.talk.send(&json!({"method": "initialized"}));
        server
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.requests += 1;
        self.talk.ask(self.requests, method, parameters)
    }

    fn turn(&self, input: Value) -> Value {
        json!({ "threadId": self.thread, "input": input })
    }

    /// The thread's turn that ends after this message, once it has.
    fn ended(&mut self, since: usize) -> Value {
        let Self { talk, thread, .. } = self;
        let ended = |message: &Value| message["method"] == "turn/completed" && message["params"]["threadId"] == *thread;
        talk.since(since, ended)["params"]["turn"].take()
    }

    /// Says something, and returns the last words of the answer.
    fn say(&mut self, input: Value) -> String {
        let before = self.talk.said.len();
        self.ask("turn/start", self.turn(input));
        let turn = self.ended(before);
        assert_eq!(turn["status"], "completed", "{turn}: {:?}", self.talk);
        let own = self.talk.said[before..].iter().filter(|message| message["params"]["threadId"] == self.thread);
        own.filter_map(last_words).next_back().unwrap_or_default().to_owned()
    }

    /// Takes three steps with each of some prompts, and returns the number of turns.
    fn steps(&mut self, from: usize, count: usize) -> usize {
        for after in (from..from + 3 * count).step_by(3) {
            assert_eq!(self.say(json!([text(&steps_after(after))])), done(after + 3), "{:?}", self.talk);
        }
        count * TURNS
    }
}
