//! opencode, by the API of its server.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use crate::{
    agents::{
        self,
        session::{self, IMAGE, Shell, TURNS, done, steps_after},
    },
    http::client,
    slow::opencode::OPENCODE,
};

const SHELL: Shell = Shell { tool: "bash", argument: "command" };
const SUMMARY: (&str, &str) = ("anchored summary", "## Goal\nSteps were taken.");

#[test]
fn opencode_works_for_thirty_turns() {
    OPENCODE.run("slow::sessions::opencode::thirty_turns");
}

#[test]
fn opencode_compacts_when_a_prompt_is_refused() {
    OPENCODE.run("slow::sessions::opencode::overflow");
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn thirty_turns() {
    let Some(opencode) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let ask = json!({"description": "Count", "prompt": "Please count the things.", "subagent_type": "general"});
    let ask = session::call("task", ask);
    let server = session::serve(root.path(), &SHELL, &ask, &[SUMMARY], 65_536);
    let opened = Opencode::start(&opencode, root.path(), server.address, "@ai-sdk/openai-compatible", 32_768);
    let mut opened = opened.with_session();
    let mut turns = opened.steps(0, 3);
    let url = format!("data:image/png;base64,{IMAGE}");
    let picture = json!({"type": "file", "mime": "image/png", "filename": "pixel.png", "url": url});
    assert_eq!(opened.say(&json!([text("What is in this picture?"), picture])), "A pixel.");
    assert_eq!(opened.say(&json!([text("Ask a subagent")])), "The subagent has counted seven.");
    let (address, path) = (opened.address, opened.path("/message"));
    let counting = thread::spawn(move || client::post(address, &path, &json!({"parts": [text("Count slowly")]})));
    session::until_writing(&server);
    opened.post("/abort", &json!({}));
    assert_eq!(counting.join().unwrap().json()["info"]["error"]["name"], "MessageAbortedError");
    turns += opened.steps(9, 1);
    let id = opened.session.clone();
    drop(opened);

    let mut opened = Opencode::start(&opencode, root.path(), server.address, "@ai-sdk/openai-compatible", 32_768);
    opened.session = id;
    turns += opened.steps(12, 2);
    opened.post("/summarize", &json!({"providerID": "pensieve", "modelID": "scripted"}));
    turns += opened.steps(18, 2);
    assert!(turns >= 30, "{turns}");
    let told = session::check_cached(&server).into_iter().filter(|turn| turn.miss.is_some()).count();
    // The title, the first prompt, the subagent's, and the request for a summary.
    assert_eq!(told, 4, "{}", server.log());
}

/// It believes what its configuration says of the window. The other test speaks OpenAI's chat API, this one Anthropic's.
#[test]
#[ignore = "a test above runs it in a network of its own"]
fn overflow() {
    let Some(opencode) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let server = session::serve(root.path(), &SHELL, "", &[SUMMARY], 24_000);
    let opened = Opencode::start(&opencode, root.path(), server.address, "@ai-sdk/anthropic", 200_000);
    let mut opened = opened.with_session();
    let is_refused = || server.log().contains("reason=\"prompt is too long: ");
    for _ in 0..8 {
        if is_refused() {
            break;
        }
        assert_eq!(opened.say(&json!([text("Read much")])), "I have read much.");
    }
    assert!(is_refused(), "{}", server.log());
    opened.steps(0, 1);
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// opencode as a server, as its interface uses it.
struct Opencode {
    child: Child,
    address: SocketAddr,
    session: String,
}

impl Opencode {
    fn start(program: &Path, root: &Path, server: SocketAddr, provider: &str, window: u32) -> Self {
        let (home, project) = (root.join("home"), root.join("project"));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(&project).unwrap();
        let options = json!({"baseURL": format!("http://{server}/v1"), "apiKey": "pensieve-local-key"});
        let limit = json!({"context": window, "output": 2048});
        let model =
            json!({"limit": limit, "attachment": true, "modalities": {"input": ["text", "image"], "output": ["text"]}});
        let provider = json!({"npm": provider, "name": "Pensieve", "options": options, "models": {"scripted": model}});
        let config = json!({
            "model": "pensieve/scripted", "small_model": "pensieve/scripted", "provider": {"pensieve": provider},
            "permission": {"bash": "allow"},
        });
        fs::write(project.join("opencode.json"), config.to_string()).unwrap();
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]).current_dir(&project).env_clear();
        command.env("HOME", &home).env("PATH", env::var_os("PATH").unwrap());
        command.env("OPENCODE_DISABLE_AUTOUPDATE", "1").env("OPENCODE_DISABLE_MODELS_FETCH", "1");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("http://")?.1.trim().parse().ok());
        thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("an address"), session: String::new() }
    }

    fn with_session(mut self) -> Self {
        let reply = client::post(self.address, "/session", &json!({}));
        self.session = reply.json()["id"].as_str().unwrap_or_else(|| panic!("{}", reply.text())).to_owned();
        self
    }

    fn path(&self, of: &str) -> String {
        format!("/session/{}{of}", self.session)
    }

    fn post(&self, of: &str, body: &Value) -> Value {
        let reply = client::post(self.address, &self.path(of), body);
        assert_eq!(reply.status(), 200, "{}", reply.text());
        reply.json()
    }

    /// Says something, and returns the text of the answer.
    fn say(&mut self, parts: &Value) -> String {
        let answer = self.post("/message", &json!({ "parts": parts }));
        assert_eq!((&answer["info"]["finish"], answer["info"].get("error")), (&"stop".into(), None), "{answer:#}");
        let texts = answer["parts"].as_array().into_iter().flatten().filter(|part| part["type"] == "text");
        texts.filter_map(|part| part["text"].as_str()).collect()
    }

    /// Takes three steps with each of some prompts, and returns the number of turns.
    fn steps(&mut self, from: usize, count: usize) -> usize {
        for after in (from..from + 3 * count).step_by(3) {
            assert_eq!(self.say(&json!([text(&steps_after(after))])), done(after + 3));
        }
        count * TURNS
    }
}

impl Drop for Opencode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
