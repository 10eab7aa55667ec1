//! Fields that this server does not know: each API names them in a warning instead of ignoring them without a word, serves
//! those of other servers that it can, and is silent about those whose effect does not matter here.

use serde_json::{Value, json};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post},
        server::Options,
    },
    scripted,
};

const NOTE: &str = "this server does not know this field; it has no effect";
const GEMINI: &str = "/v1beta/models/scripted:generateContent";

/// The smallest request of a path.
fn body(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hello"}]);
    match path {
        "/v1/responses" => json!({"model": "scripted", "input": "hello", "max_output_tokens": 64}),
        "/api/chat" => json!({"model": "scripted", "messages": messages, "stream": false}),
        "/api/generate" => json!({"model": "scripted", "prompt": "hello", "stream": false}),
        GEMINI => json!({"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}),
        _ => json!({"model": "scripted", "messages": messages, "max_tokens": 64}),
    }
}

fn with(path: &str, more: &Value) -> Value {
    let mut body = body(path);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn each_api_names_what_it_does_not_know() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    scripted::checkpoint(&source, &[("", "Hello! Good, day.")]);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    let ask = |path: &str, more: &Value| -> Reply {
        let reply = post(server.address, path, &with(path, more));
        assert_eq!(reply.status(), 200, "{path} {more}: {reply:?}");
        reply
    };
    for (path, more, unknown) in [
        ("/v1/messages", json!({"typical_p": 0.9, "mcp_servers": [{"name": "x"}]}), &["typical_p", "mcp_servers"][..]),
        ("/v1/messages", json!({"betas": ["x"], "service_tier": "auto", "metadata": {"user_id": "a"}}), &[]),
        ("/v1/messages", json!({"seed": 7, "min_p": 0.1, "repetition_penalty": 1.1, "mcp_servers": []}), &[]),
        ("/v1/responses", json!({"typical_p": 0.9, "min_tokens": 3}), &["typical_p", "min_tokens"]),
        (
            "/v1/responses",
            json!({"client_metadata": {"a": "b"}, "stream_options": {"include_obfuscation": false}}),
            &[],
        ),
        ("/v1/responses", json!({"user": "ada", "prompt_cache_key": "x", "store": false, "include": []}), &[]),
        ("/v1/chat/completions", json!({"typical_p": 0.9}), &["typical_p"]),
        (
            "/api/chat",
            json!({"options": {"mirostat": 2, "typical_p": 0.7}}),
            &["options.mirostat", "options.typical_p"],
        ),
        ("/api/chat", json!({"options": {"mirostat": 0, "num_ctx": 4096, "num_gpu": 1, "temperature": 0}}), &[]),
        ("/api/chat", json!({"template": "{{ x }}"}), &["template"]),
        ("/api/generate", json!({"context": [1, 2]}), &["context"]),
        ("/api/generate", json!({"keep_alive": "5m", "system": "Be kind.", "truncate": true}), &[]),
        (
            GEMINI,
            json!({"generationConfig": {"speechConfig": {"a": 1}}, "foo": 1}),
            &["generationConfig.speechConfig", "foo"],
        ),
        (GEMINI, json!({"generation_config": {"max_output_tokens": 9}, "safetySettings": [{"category": "x"}]}), &[]),
    ] {
        let told = format!("{:?}", ask(path, &more));
        for name in unknown {
            assert!(told.contains(&format!("{name}: {NOTE}")), "{path} {more}: {told}");
        }
        // A response has it in its metadata, too.
        let times = if path == "/v1/responses" { 2 } else { 1 };
        assert_eq!(told.matches(NOTE).count(), unknown.len() * times, "{path} {more}: {told}");
    }

    // Stops and constraints of other servers work where they can.
    let stopped = ask("/v1/responses", &json!({"stop": [", day"]})).json();
    assert_eq!(stopped["output"][0]["content"][0]["text"], "Hello! Good", "{stopped}");
    let chosen = ask("/v1/responses", &json!({"guided_choice": ["yes", "no"]})).json();
    let text = chosen["output"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(["yes", "no"].contains(&text.as_str()), "{chosen}");
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]});
    let formed = ask("/v1/messages", &json!({"guided_json": schema})).json();
    let text: Value = serde_json::from_str(formed["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(text["a"].is_boolean(), "{formed}");
}
