//! The real Claude Code against the real program, without a network: it is given a task, the model calls Bash, the
//! command really runs, its output goes back to the model, and the model gives its final answer. Once the model is
//! scripted, and once it is the starter, which has to work it out itself.

#![cfg(target_os = "linux")]

use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    agents::{self, Agent},
    artifacts::{plugin, test_plugin},
    http::server::Options,
    scripted, starter,
};

pub(super) const CLAUDE_CODE: Agent =
    Agent { name: "Claude Code", package: "@anthropic-ai/claude-code", version: "2.1.197", find };
const MODEL: &str = "pensieve-mistral-7b";
const PROMPT: &str = "Please multiply the two secret numbers.";
const SAID: &str = "The command has told me the product.";

#[test]
fn claude_code_runs_a_command_and_hears_what_it_says() {
    CLAUDE_CODE.run("slow::claude_code::round_trip");
}

#[test]
fn claude_code_runs_what_the_starter_is_asked_for() {
    CLAUDE_CODE.run("slow::claude_code::with_the_starter");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn round_trip() {
    let Some(claude) = agents::client() else { return };
    let command = r#"{"command": "echo $((SECRET * 7)) | tee product", "description": "Multiply"}"#;
    let call = format!("I shall.\n<tool_call>\n{{\"name\": \"Bash\", \"arguments\": {command}}}\n</tool_call>");
    let script = [("<tool_response>\n42", SAID), (PROMPT, &call), ("", "Background.")];
    multiplies(&claude, |source| scripted::checkpoint(source, &script));
}

#[test]
fn claude_code_runs_a_command_in_the_form_of_every_family() {
    CLAUDE_CODE.run("slow::claude_code::in_every_form");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn in_every_form() {
    let Some(claude) = agents::client() else { return };
    for family in &agents::families::FAMILIES {
        println!("{}", family.template);
        let call = family.call("Bash", "command", "echo $((SECRET * 7)) | tee product");
        let (said, background) = (family.text(SAID), family.text("Background."));
        let script = [(PROMPT, call.as_str()), ("42", &said), ("", &background)];
        multiplies(&claude, |source| family.checkpoint(source, &script));
    }
}

#[test]
fn claude_code_gets_an_answer_however_long_its_prompt_is_read() {
    CLAUDE_CODE.run("slow::claude_code::slow_prefill");
}

/// Pings keep its stream open for as long as the prompt is read. If it is given up all the same, the next try goes on where
/// the first one was: Claude Code's own limits cannot be set below five minutes, so the first one is killed.
#[test]
#[ignore = "the test above runs it in a network of its own"]
fn slow_prefill() {
    let Some(claude) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let (source, home) = (root.path().join("scripted"), root.path().join("home"));
    fs::create_dir(&home).unwrap();
    scripted::checkpoint(&source, &[(PROMPT, SAID), ("", "Background.")]);
    let options = "threads = 1\noptions = { token_us = 400 }";
    let config = format!("[[models]]\nid = \"scripted\"\nsource = \"{}\"\n{options}\n", source.display());
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    let start = || {
        let mut command = Command::new(&claude);
        command.args(["-p", PROMPT, "--output-format", "json", "--model", MODEL]).env_clear().current_dir(&home);
        command.env("HOME", &home).env("PATH", env::var_os("PATH").unwrap());
        command.env("ANTHROPIC_BASE_URL", format!("http://{}", server.address));
        command.env("ANTHROPIC_API_KEY", "pensieve-local-key").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running = || server.get("/v1/usage").json()["running"][0].clone();
    let mut first = start();
    let deadline = Instant::now() + Duration::from_secs(120);
    while running()["read_tokens"].as_u64().is_none_or(|read| read < 8_000) {
        assert!(Instant::now() < deadline, "{}", server.log());
        thread::sleep(Duration::from_millis(50));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let output = start().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    let result: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {}", log()));
    assert_eq!((&result["is_error"], &result["result"]), (&false.into(), &SAID.into()), "{}", log());
    let text = server.log();
    let field = |line: &str, name: &str| {
        let rest = line.split_once(&format!(" {name}="))?.1;
        rest.split([' ', '}']).next()?.parse::<u64>().ok()
    };
    let most = |words: &str, name: &str| {
        let lines = text.lines().filter(|line| line.contains(words) && line.contains("/v1/messages"));
        lines.filter_map(|line| field(line, name)).max().unwrap_or(0)
    };
    let (read, reused) = (most("the client has gone", "read_tokens"), most(": answered", "reused_tokens"));
    println!("given up after {read} tokens, {reused} of which came from the cache");
    assert!(read >= 8_000 && reused >= 7_000, "{reused} of {read}: {}", log());
}

/// Makes Claude Code multiply, using a model whose checkpoint is written to a folder.
fn multiplies(claude: &Path, checkpoint: impl Fn(&Path)) {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    checkpoint(&source);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    let home = root.path().join("home");
    fs::create_dir(&home).unwrap();
    let mut command = Command::new(claude);
    command.args(["-p", PROMPT, "--allowedTools", "Bash", "--output-format", "json", "--model", MODEL]);
    command
        .env_clear()
        .current_dir(&home)
        .env("HOME", &home)
        .env("SECRET", "6")
        .env("PATH", env::var_os("PATH").unwrap());
    command.env("ANTHROPIC_BASE_URL", format!("http://{}", server.address));
    command.env("ANTHROPIC_API_KEY", "pensieve-local-key").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    assert!(output.status.success(), "{}", log());
    let result: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {}", log()));
    assert_eq!((&result["is_error"], &result["result"]), (&false.into(), &SAID.into()), "{}", log());
    assert_eq!(result["num_turns"], 2, "{}", log());
    // The command really ran, and the model got its result.
    assert_eq!(fs::read_to_string(home.join("product")).unwrap(), "42\n");
    let metrics = server.metrics();
    println!("{said}\n{metrics:#?}");
}

/// Requests as people type them. The starter has not seen them in training: `examples/starter/held_out.py` lists them,
/// too.
const REQUESTS: [(&str, &str); 10] = [
    ("Use the Bash tool to run: echo pensieve-1742", "pensieve-1742"),
    (
        "Please run the command `echo hello from the starter` with Bash and tell me what it printed.",
        "hello from the starter",
    ),
    ("Run echo banana-split using Bash, then tell me what came out.", "banana-split"),
    ("Execute this in the shell: echo 'blue mountain 77'", "blue mountain 77"),
    ("Can you run `echo 90210` for me? Just give me the result.", "90210"),
    ("With your Bash tool, execute echo \"tea and biscuits\" and report back.", "tea and biscuits"),
    ("Run this exact command with the Bash tool and answer with its output: echo zanzibar_3", "zanzibar_3"),
    ("What does `echo $((17+25))` print? Use Bash to find out.", "42"),
    ("Use the Bash tool to execute: echo hi && echo there", "hi\nthere"),
    ("Let's test the shell. Run `echo ping-pong` and say what you got.", "ping-pong"),
];

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn with_the_starter() {
    let Some(claude) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let server = starter::serve();
    // The shipped settings, with this server's address.
    let settings = root.path().join("claude-code.json");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/clients/claude-code.json");
    let shipped = fs::read_to_string(shipped).unwrap();
    fs::write(&settings, shipped.replace("127.0.0.1:8000", &server.address.to_string())).unwrap();
    let mut right = 0;
    for (place, &(request, printed)) in REQUESTS.iter().enumerate() {
        let home = root.path().join(place.to_string());
        fs::create_dir(&home).unwrap();
        let mut command = Command::new(&claude);
        command.arg("--settings").arg(&settings).args(["-p", request, "--allowedTools", "Bash"]);
        command.args(["--output-format", "stream-json", "--verbose"]).current_dir(&home);
        command.env_clear().env("HOME", &home).env("PATH", env::var_os("PATH").unwrap());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let has_run = lines.iter().filter(|line| line["type"] == "user").any(|line| {
            let content = &line["message"]["content"][0];
            content["type"] == "tool_result" && content["content"] == printed
        });
        let result = lines.iter().rfind(|line| line["type"] == "result");
        let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
        let result = result.unwrap_or_else(|| panic!("{request}: it has no end: {}", log()));
        let tells = result["result"].as_str().is_some_and(|text| text.contains(printed));
        println!("{request}: {}{}", result["result"], if has_run && tells { "" } else { " (wrong)" });
        right += usize::from(has_run && tells);
        if place == 0 {
            // Nothing was cached before: the second turn does not recompute the part in common with the first.
            let [fresh, read] = ["input_tokens", "cache_read_input_tokens"].map(|key| result["usage"][key].as_u64());
            assert!(read.unwrap() * 10 > fresh.unwrap() * 8, "{}", log());
        }
    }
    assert!(right >= 8, "{right} of {} are right", REQUESTS.len());
}

/// The package for this platform contains the program itself.
fn find(folder: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(folder.join("node_modules/@anthropic-ai")).ok()?;
    packages.filter_map(|entry| Some(entry.ok()?.path().join("claude"))).find(|path| path.is_file())
}
