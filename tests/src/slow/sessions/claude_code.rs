//! Claude Code, by messages on its standard input.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    agents::{
        self,
        session::{self, IMAGE, Shell, TURNS, Talk, done, steps_after},
    },
    slow::claude_code::CLAUDE_CODE,
};

const SHELL: Shell = Shell { tool: "Bash", argument: "command" };
const SUMMARY: (&str, &str) =
    ("create a detailed summary", "<analysis>\nShort.\n</analysis>\n\n<summary>\nSteps were taken.\n</summary>");

#[test]
fn claude_code_works_for_thirty_turns() {
    CLAUDE_CODE.run("slow::sessions::claude_code::thirty_turns");
}

#[test]
fn claude_code_compacts_when_a_prompt_is_refused() {
    CLAUDE_CODE.run("slow::sessions::claude_code::overflow");
}

#[test]
#[ignore = "a test above runs it in a network of its own"]
fn thirty_turns() {
    let Some(claude) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let ask = json!({"description": "Count", "prompt": "Please count the things.", "subagent_type": "general-purpose"});
    let ask = session::call("Agent", ask);
    let server = session::serve(root.path(), &SHELL, &ask, &[SUMMARY], 65_536);
    let mut talk = start(&claude, server.address, root.path(), &[]);
    let mut turns = 0;
    let mut steps = |talk: &mut Talk, from: usize, count: usize| {
        for after in (from..from + 3 * count).step_by(3) {
            let result = say(talk, json!(steps_after(after)));
            assert_eq!((&result["result"], &result["num_turns"]), (&done(after + 3).into(), &TURNS.into()), "{talk:?}");
            turns += TURNS;
        }
    };
    steps(&mut talk, 0, 3);
    let image = json!({"type": "base64", "media_type": "image/png", "data": IMAGE});
    let question = json!([{"type": "text", "text": "What is in this picture?"}, {"type": "image", "source": image}]);
    assert_eq!(say(&mut talk, question)["result"], "A pixel.", "{talk:?}");
    assert_eq!(say(&mut talk, json!("Ask a subagent"))["result"], "The subagent has counted seven.", "{talk:?}");
    talk.send(&user(json!("Count slowly")));
    session::until_writing(&server);
    talk.send(&json!({"type": "control_request", "request_id": "1", "request": {"subtype": "interrupt"}}));
    let interrupted = talk.until(|message| message["type"] == "result");
    assert_eq!(interrupted["subtype"], "error_during_execution", "{talk:?}");
    steps(&mut talk, 9, 1);
    let id = interrupted["session_id"].as_str().unwrap().to_owned();
    talk.close();
    let mut talk = start(&claude, server.address, root.path(), &["--resume", &id]);
    steps(&mut talk, 12, 2);
    say(&mut talk, json!("/compact"));
    let compacted = talk.said.iter().find(|message| message["compact_result"] == "success");
    assert!(compacted.is_some(), "{talk:?}");
    steps(&mut talk, 18, 2);
    talk.close();
    assert!(turns >= 30, "{turns}");
    let told = session::check_cached(&server).into_iter().filter(|turn| turn.miss.is_some()).count();
    // The first prompt, the subagent's, and the first after the summary.
    assert_eq!(told, 3, "{}", server.log());
}

/// It takes the window of models that it does not know for 200,000 tokens.
#[test]
#[ignore = "a test above runs it in a network of its own"]
fn overflow() {
    let Some(claude) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let server = session::serve(root.path(), &SHELL, "", &[SUMMARY], 44_000);
    let mut talk = start(&claude, server.address, root.path(), &[]);
    let refused = |talk: &Talk| talk.said.iter().filter(|message| message["subtype"] == "compact_boundary").count();
    let mut read = 0;
    while refused(&talk) == 0 {
        assert!(read < 8, "{talk:?}");
        assert_eq!(say(&mut talk, json!("Read much"))["result"], "I have read much.", "{talk:?}");
        read += 1;
    }
    assert_eq!(say(&mut talk, json!(steps_after(0)))["result"], done(3), "{talk:?}");
    talk.close();
    assert!(server.log().contains("reason=\"prompt is too long: "), "{}", server.log());
}

fn start(claude: &Path, address: SocketAddr, root: &Path, arguments: &[&str]) -> Talk {
    let home: PathBuf = root.join("home");
    fs::create_dir_all(&home).unwrap();
    let mut command = Command::new(claude);
    command.args(["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]);
    command.args(["--allowedTools", "Bash,Agent", "--model", "pensieve-x"]).args(arguments).current_dir(&home);
    command.env_clear().env("HOME", &home).env("PATH", env::var_os("PATH").unwrap());
    command.env("ANTHROPIC_BASE_URL", format!("http://{address}")).env("ANTHROPIC_API_KEY", "pensieve-local-key");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    Talk::start(&mut command)
}

fn user(content: Value) -> Value {
    json!({"type": "user", "message": {"role": "user", "content": content}})
}

/// Says something, and returns the result, which must be no error.
fn say(talk: &mut Talk, content: Value) -> Value {
    talk.send(&user(content));
    let result = talk.until(|message| message["type"] == "result");
    assert_eq!(result["is_error"], false, "{talk:?}");
    result
}
