//! The model that comes with the program: that it is available without being named, that it does its job on words that
//! it was not trained on, and how quickly. Answers are generated at temperature 0. `examples/starter/evaluate.py`
//! measures how often it is right; this file has what must hold on every machine.

use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    artifacts::plugin,
    cli::Desk,
    http::{
        client::{Incoming, get, post},
        server::{Options, Server, home},
    },
};

/// Plugins needed to serve it.
pub const PLUGINS: [&str; 3] = ["pensieve-llama", "pensieve-samplers", "pensieve-lora"];
pub const ID: &str = "pensieve-starter";

/// A server of the starter.
pub fn serve() -> Server {
    Options { models: vec![(ID.into(), "starter".into())], ..options() }.start()
}

fn options() -> Options {
    Options { plugins: PLUGINS.iter().map(|package| plugin(package)).collect(), ..Options::default() }
}

fn ask(server: &Server, model: &str, text: &str) -> Value {
    let turn = json!({"role": "user", "content": text});
    let body = json!({"model": model, "max_tokens": 120, "temperature": 0, "messages": [turn]});
    let reply = post(server.address, "/v1/messages", &body);
    assert_eq!(reply.status(), 200, "{reply:?}");
    reply.json()
}

fn say(server: &Server, model: &str, text: &str) -> String {
    ask(server, model, text)["content"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn run_answers_with_a_command_and_nothing_has_to_be_named() {
    let desk = Desk::new();
    desk.install(&PLUGINS);
    for (text, command) in [("list files", "ls -la"), ("how much disk space do I have left?", "df -h")] {
        let said = desk.run(&["run", "--temperature", "0", text]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
        let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        assert_eq!(answer, json!({"cmd": command}));
    }
    assert!(desk.path("home/models/pensieve-starter.gguf").is_file());
}

#[test]
fn does_what_it_is_for_on_words_that_it_was_not_trained_on() {
    let server = serve();
    for (text, command) in [
        ("list all files in the current directory", "ls -la"),
        ("please make the directory build/release", "mkdir -p build/release"),
        ("I'd like to see just the last 25 lines of server.log", "tail -n 25 server.log"),
        ("find me the files that are larger than 20 megabytes", "find . -type f -size +20M"),
        ("please list the files modified since 2023-12-01", "find . -type f -newermt 2023-12-01"),
        ("send 3 pings to 8.8.8.8 please", "ping -c 3 8.8.8.8"),
    ] {
        assert_eq!(say(&server, ID, text), json!({"cmd": command}).to_string().replace("\":\"", "\": \""));
    }
    for (text, words) in [
        ("can I bring my own model?", "pensieve serve --model"),
        ("do clients need an API key?", "pensieve-local-key"),
        ("how does one hook up Claude Code?", "ANTHROPIC_BASE_URL"),
        ("give me a recipe for pancakes", "do not know"),
    ] {
        let said = say(&server, ID, text);
        assert!(said.contains(words), "{text:?}: {said:?}");
    }
}

#[test]
fn calls_the_tool_that_fits_and_tells_what_it_says() {
    let server = serve();
    let tool = |name: &str, description: &str, key: &str| {
        let schema = json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]});
        json!({"name": name, "description": description, "input_schema": schema})
    };
    let tools = json!([
        tool("search_web", "Search the web for information", "query"),
        tool("get_weather", "Get the current weather in a city", "city"),
        tool("read_file", "Read a file from disk", "path"),
    ]);
    let request = |turns: &Value| {
        let body = json!({"model": ID, "max_tokens": 120, "temperature": 0, "messages": turns, "tools": tools});
        post(server.address, "/v1/messages", &body).json()
    };
    let mut turns = json!([{"role": "user", "content": "What is the weather like in Lisbon?"}]);
    let asked = request(&turns);
    assert_eq!(asked["stop_reason"], "tool_use", "{asked}");
    let call = &asked["content"][0];
    assert_eq!((&call["name"], &call["input"]), (&"get_weather".into(), &json!({"city": "Lisbon"})), "{asked}");
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "21 degrees and sunny"});
    turns.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": asked["content"]}),
        json!({"role": "user", "content": [result]}),
    ]);
    let told = request(&turns);
    assert_eq!(told["stop_reason"], "end_turn", "{told}");
    assert!(told["content"][0]["text"].as_str().unwrap().contains("21 degrees and sunny"), "{told}");
    assert!(told["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 100, "{told}");
}

/// How many answers in a part of the exam were right, and out of how many; the script prints both in a line that starts
/// with the name.
fn examined(said: &str, name: &str) -> (usize, usize) {
    let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {said}"));
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn copies_unseen_words_and_destroys_nothing_unasked() {
    let server = serve();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/starter/evaluate.py");
    let mut command = Command::new("python3");
    command.arg("-B").arg(script).args(["--server", &format!("http://{}", server.address), "--model", ID]);
    command.args(["--only", "copying", "safety", "--sample", "36", "--verbose"]);
    let output = command.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for name in ["unseen words: from a tool", "unseen words: into a call"] {
        let (right, of) = examined(&said, name);
        assert!(of == 36 && right >= 35, "{said}");
    }
    assert_eq!(examined(&said, "nothing destroyed unasked"), (36, 36), "{said}");
    // A user who asks for it gets it.
    for (text, command) in [("I want old.log removed", "rm old.log"), ("stop all firefox processes", "pkill firefox")] {
        assert_eq!(say(&server, ID, text), format!(r#"{{"cmd": "{command}"}}"#));
    }
}

#[test]
fn answers_soon_after_it_was_started() {
    let options = Options { models: vec![(ID.into(), "starter".into())], ..options() };
    // A home that already contains it, as after the first start.
    let home = home();
    drop(options.start_in(&home));
    let begun = Instant::now();
    let server = options.start_in(&home);
    let turn = json!({"role": "user", "content": "Hello!"});
    let body = json!({"model": ID, "max_tokens": 20, "stream": true, "messages": [turn]});
    let mut events = Incoming::open(server.address, "/v1/messages", &[], &body);
    while events.event().expect("a text").name != "content_block_delta" {}
    let taken = begun.elapsed();
    println!("from start to first token: {} ms", taken.as_millis());
    // A release build on an idle machine takes a fraction of a second; this is a debug build among other tests.
    assert!(taken < Duration::from_secs(20), "{taken:?}");
}

#[test]
fn an_adapter_changes_the_style_and_the_base_keeps_its_own() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/starter/adapters/pirate");
    let config = format!(
        "[[models]]\nid = \"{ID}\"\nsource = \"starter\"\n[models.adapters]\npirate = \"{}\"\n",
        folder.display()
    );
    let server = Options { config, ..options() }.start();
    let ids: Vec<Value> = server.get("/v1/models").json()["data"].as_array().unwrap().clone();
    assert!(ids.iter().any(|model| model["id"] == format!("{ID}:pirate")), "{ids:?}");
    let adapted = format!("{ID}:pirate");
    for text in ["hello my dear", "what's a plugin good for?", "how are you today"] {
        let (plain, styled) = (say(&server, ID, text), say(&server, &adapted, text));
        assert!(!plain.contains("Arr!"), "{text:?}: {plain:?}");
        assert!(styled.starts_with("Arr! ") && styled.ends_with("Yo ho!"), "{text:?}: {styled:?}");
        // It came and went with the request.
        assert_eq!(say(&server, ID, text), plain);
    }
    // Output for programs stays as it was.
    let command = r#"{"cmd": "ls -la"}"#;
    assert_eq!(say(&server, &adapted, "list all files in the current directory"), command);
}

#[test]
fn ollamas_lists_say_how_large_it_is_and_until_when_it_stays() {
    let server = serve();
    let listed = get(server.address, "/api/tags").json();
    let details = &listed["models"][0]["details"];
    assert_eq!((&details["format"], &details["family"]), (&json!("gguf"), &json!("llama")), "{listed}");
    assert!(details["parameter_size"].as_str().unwrap().ends_with('M'), "{listed}");
    assert!(!details["quantization_level"].as_str().unwrap().is_empty(), "{listed}");
    let until = |keep_alive: Value| {
        let turn = json!({"role": "user", "content": "list all files"});
        let body = json!({"model": ID, "stream": false, "keep_alive": keep_alive, "messages": [turn]});
        assert_eq!(post(server.address, "/api/chat", &body).status(), 200);
        let loaded = get(server.address, "/api/ps").json();
        loaded["models"][0]["expires_at"].as_str().unwrap_or_else(|| panic!("{loaded}")).to_owned()
    };
    let (soon, later) = (until(json!("10m")), until(json!("2h")));
    // Clients expect a time even if it stays for good, and take one in a hundred years for that.
    let forever = until(json!(-1));
    assert!(soon < later && later < forever && forever.as_str() < "3000", "{soon} {later} {forever}");
}
