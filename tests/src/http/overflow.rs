//! A prompt that does not fit, as each client recognizes it: those that compact do so by themselves, the others say what to do.

use serde_json::{Value, json};

use super::{
    client::{Reply, post},
    server::Options,
};
use crate::{
    artifacts::{plugin, test_plugin},
    scripted,
};

const CONTEXT: u64 = 600;

/// A client, the route that it asks, and the test that its source makes of the answer.
type Look = (&'static str, &'static str, fn(&Reply, &str) -> bool);

const LOOKS: [Look; 14] = [
    ("Claude Code", "/v1/messages", |_, said| counts(said).is_some()),
    ("opencode", "/v1/messages", |_, said| said.contains("prompt is too long")),
    ("LangChain", "/v1/messages", |_, said| said.contains("prompt is too long")),
    ("LiteLLM", "/v1/messages", |_, said| said.contains("prompt is too long")),
    ("Codex", "/v1/responses", |reply, _| code(reply) == "context_length_exceeded"),
    ("pydantic-ai", "/v1/responses", |reply, _| code(reply) == "context_length_exceeded"),
    ("opencode", "/v1/chat/completions", |_, said| said.contains("prompt is too long")),
    ("Qwen Code", "/v1/chat/completions", |_, said| said.contains("prompt is too long") && counts(said).is_some()),
    ("LangChain", "/v1/chat/completions", |reply, _| reply.text().contains("context_length_exceeded")),
    ("pydantic-ai", "/v1/chat/completions", |reply, _| code(reply) == "context_length_exceeded"),
    ("LiteLLM, aider", "/v1/chat/completions", litellm),
    ("LiteLLM", "/v1/completions", litellm),
    ("LiteLLM", "/v1beta/models/m:generateContent", litellm),
    ("LiteLLM", "/api/chat", litellm),
];

fn litellm(_: &Reply, said: &str) -> bool {
    said.to_lowercase().contains("this model's maximum context length is")
}

fn code(reply: &Reply) -> String {
    reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

/// The numbers in `prompt is too long…: N tokens > M`, by which Claude Code knows how much is too much.
fn counts(said: &str) -> Option<(u64, u64)> {
    let (_, rest) = said.split_once("prompt is too long")?;
    let rest = rest.trim_start_matches(|char: char| !char.is_ascii_digit());
    let (count, rest) = rest.split_once(" tokens > ")?;
    let limit: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((count.parse().ok()?, limit.parse().ok()?))
}

fn body(route: &str, text: &str) -> Value {
    match route {
        "/v1/responses" => json!({"model": "m", "input": text}),
        "/v1/completions" => json!({"model": "m", "prompt": text}),
        "/v1beta/models/m:generateContent" => json!({"contents": [{"role": "user", "parts": [{"text": text}]}]}),
        _ => json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}),
    }
}

#[test]
fn every_client_recognizes_a_prompt_that_does_not_fit() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    scripted::checkpoint(&source, &[("", "Yes.")]);
    let config = format!("[[models]]\nid = \"m\"\nsource = \"{}\"\ncontext = {CONTEXT}\n", source.display());
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    // One is counted, the other refused by its size.
    for text in ["1 2 3 4 5 ".repeat(200), "word ".repeat(1 << 20)] {
        for (client, route, looks) in LOOKS {
            let reply = post(server.address, route, &body(route, &text));
            assert_eq!(reply.status(), 400, "{route}: {}", reply.text());
            let error = reply.json()["error"].take();
            let said = error["message"].as_str().or(error.as_str()).unwrap_or_default().to_owned();
            assert!(looks(&reply, &said), "{client} at {route}: {}", reply.text());
            let (count, limit) = counts(&said).unwrap_or_else(|| panic!("{said}"));
            assert!(limit == CONTEXT - 1 && count > limit, "{said}");
        }
    }
}
