//! Anthropic's API at the wire level, against the real program and the scripted model: every feature streamed and
//! whole, the order of events, the pace of a stream, and rejected requests. The vendor's SDKs are tested in `clients`,
//! and Claude Code in `claude_code`.

mod features;
mod limits;
mod order;
mod pace;
mod reuse;

use serde_json::{Value, json};
use std::path::Path;

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Incoming, post},
        server::{Options, Server},
    },
    scripted,
};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const BASH: &str = concat!("<tool_call>\n", r#"{"name": "Bash", "arguments": {"command": "ls -l"}}"#, "\n</tool_call>");
const SCRIPT: [(&str, &str); 10] = [
    ("<tool_response>", "There are three files."),
    ("hello", "Hello there, blåbær friend 🫐."),
    (
        "call twice",
        concat!(
            "Both.\n<tool_call>\n",
            r#"{"name": "Bash", "arguments": {"command": "ls"}}"#,
            "\n</tool_call>\n",
            "<tool_call>\n",
            r#"{"name": "Now", "arguments": {}}"#,
            "\n</tool_call>",
        ),
    ),
    ("call", BASH),
    ("think", "<think>\nLet me see.\n</think>\n\nForty-two."),
    ("nothing", ""),
    ("json", r#"{"city": "Oslo", "degrees": 21}"#),
    (
        "forever",
        "q z x j k w v q j z x k v w z q x j k z v q w x j z k q v x w z j q k x v z w q j x k z v w q x j z k v",
    ),
    // A client's note on its tokens comes after the result of a call.
    ("tokens left", "There are three files."),
    ("", "What?"),
];

/// Starts a server with one model.
fn serve(root: &Path) -> Server {
    serve_with(root, "")
}

/// Starts a server whose model has additional configuration lines.
fn serve_with(root: &Path, lines: &str) -> Server {
    let source = root.join("scripted");
    scripted::checkpoint(&source, &SCRIPT);
    let config = format!("[[models]]\nid = \"scripted\"\nsource = \"{}\"\n{lines}\n", source.display());
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, config, ..Options::default() }.start()
}

/// The body of a request about `text`, with more fields.
fn about(text: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": "scripted", "max_tokens": 100, "temperature": 0, "messages": [{"role": "user", "content": text}],
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    let command = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([
        {"name": "Bash", "description": "Runs a command", "input_schema": command},
        {"name": "Now", "description": "Tells the time", "input_schema": nothing},
    ])
}

fn whole(server: &Server, body: &Value) -> Value {
    let reply = post(server.address, MESSAGES, body);
    assert_eq!(reply.status(), 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("request-id").is_some_and(|id| id.starts_with("req_")), "{reply:?}");
    reply.json()
}

/// The events of a stream, checked for order, and the message that they add up to.
fn streamed(server: &Server, body: &Value) -> (Vec<(String, Value)>, Value) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let mut incoming = Incoming::open(server.address, "/v1/messages?beta=true", &[], &body);
    assert_eq!(incoming.head.status, 200);
    assert_eq!(incoming.head.header("content-type"), Some("text/event-stream"));
    assert!(incoming.head.header("request-id").is_some_and(|id| id.starts_with("req_")));
    let bytes: Vec<u8> = std::iter::from_fn(|| incoming.piece()).flatten().collect();
    let events = order::events(&String::from_utf8(bytes).unwrap()).unwrap();
    let message = order::message(&events).unwrap_or_else(|why| panic!("{why}: {events:#?}"));
    (events, message)
}

/// The message, which must be the same streamed and whole except for its ids and cache usage.
fn both(server: &Server, body: &Value) -> Value {
    let (whole, (_, streamed)) = (whole(server, body), streamed(server, body));
    assert_eq!(comparable(&whole), comparable(&streamed), "{body}");
    whole
}

fn comparable(message: &Value) -> Value {
    let mut message = message.clone();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    message["id"] = Value::Null;
    message["usage"] = json!([input_tokens(&message), message["usage"]["output_tokens"]]);
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
            block["id"] = Value::Null;
        }
    }
    message
}

/// Tokens of the prompt, cached or not.
fn input_tokens(message: &Value) -> u64 {
    let usage = &message["usage"];
    let parts = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    parts.iter().map(|part| usage[part].as_u64().unwrap()).sum()
}

fn text(message: &Value) -> String {
    let blocks = message["content"].as_array().unwrap().iter();
    blocks.filter_map(|block| block["text"].as_str()).collect()
}

/// Names and inputs of the calls.
fn calls(message: &Value) -> Vec<(String, Value)> {
    let blocks = message["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
    blocks.map(|block| (block["name"].as_str().unwrap().to_owned(), block["input"].clone())).collect()
}
