//! What the log says about requests: one line tells an operator which client asked for what, and why it was refused;
//! nothing that a person wrote appears in it.

use serde_json::{Value, json};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    client::{post, request},
    server::{Options, PATIENCE, Server},
};
use crate::{
    artifacts::{plugin, test_plugin},
    scripted,
};

const JSON: (&str, &str) = ("content-type", "application/json");
const SECRET: &str = "quokka";

/// The log line of this client's request, in JSON form.
fn line(server: &Server, client: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = server.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_client = |line: &Value| line["span"]["client"] == client && line["fields"]["status"].is_u64();
        if let Some(line) = lines.find(of_client) {
            return line;
        }
        assert!(Instant::now() < deadline, "nothing of {client} in {log}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_line_of_a_refused_request_tells_client_path_and_reason() {
    let open = Options::configured("[server]\nlog_format = \"json\"").start();
    let locked = Options::configured("[server]\nlog_format = \"json\"\nkey = \"the-key\"").start();
    let mut clients = 0;
    let mut check =
        |server: &Server, asked: (&str, &str), more: (&str, &str), body: &str, expect: (u16, &str, &str)| {
            let ((method, path), (status, dialect, reason)) = (asked, expect);
            clients += 1;
            let client = format!("client-{clients}/1.2");
            let declared = if more.0 == "content-type" { ("accept", "*/*") } else { JSON };
            let headers = [declared, more, ("user-agent", &client)];
            assert_eq!(request(server.address, method, path, &headers, body.as_bytes()).status(), status, "{path}");
            let line = line(server, &client);
            let span = &line["span"];
            let told = (&span["method"], &span["path"], &span["dialect"], &line["fields"]["status"]);
            assert_eq!(told, (&json!(method), &json!(path), &json!(dialect), &json!(status)), "{line}");
            let found = span["reason"].as_str().unwrap_or_default().to_lowercase();
            assert!(found.contains(reason), "{reason:?} is not the reason in {line}");
        };
    let none = ("accept", "*/*");
    let chat = format!(r#"{{"model": "x", "messages": [{{"role": "user", "content": "{SECRET}"}}], "n": 9}}"#);
    let post = |path| ("POST", path);
    check(
        &open,
        post("/v1/responses"),
        none,
        r#"{"model": "x", "input": 5}"#,
        (400, "responses", "input: should be a list, not 5"),
    );
    check(
        &open,
        post("/v1/chat/completions"),
        none,
        &chat,
        (400, "openai", "n: should be an integer from 1 to 8, not 9"),
    );
    check(&open, post("/v1/messages"), none, "{}", (400, "anthropic", "this field is required"));
    check(&open, post("/api/chat"), none, "{}", (400, "ollama", "model: this field is required"));
    check(&open, post("/api/chat"), none, "{quokka", (400, "ollama", "the body is not json: key must be a string"));
    check(
        &open,
        post("/v1/embeddings"),
        ("content-type", "text/plain"),
        "{}",
        (415, "openai", "is not application/json"),
    );
    check(&open, ("GET", "/v1/nonsense"), none, "", (404, "openai", "there is nothing at"));
    check(&open, ("GET", "/v1/messages"), none, "", (405, "anthropic", "it supports post"));
    check(&open, post("/v1/messages"), ("host", "evil.example"), "{}", (403, "anthropic", "this server is not called"));
    check(&locked, post("/v1/messages"), none, "{}", (401, "anthropic", "this server needs a key"));
    check(
        &locked,
        ("GET", "/api/tags"),
        ("authorization", "Bearer other-key"),
        "",
        (401, "ollama", "the key is wrong"),
    );
    for server in [open, locked] {
        let log = server.stop();
        assert!(!log.contains(SECRET) && !log.contains("other-key") && !log.contains("the-key"), "{log}");
    }
}

#[test]
fn nothing_that_a_client_wrote_stands_in_the_log_even_at_its_most_talkative() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    scripted::checkpoint(&source, &[("", SECRET)]);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let config = "[server]\nlog_format = \"json\"\nlog = \"debug\"".to_owned();
    let server = Options { plugins, models: vec![("scripted".into(), source)], config, ..Options::default() }.start();
    let ask = |path: &str, body: Value| post(server.address, path, &body);
    let messages = json!([{"role": "system", "content": SECRET}, {"role": "user", "content": SECRET}]);
    let answer = ask("/v1/chat/completions", json!({"model": "scripted", "messages": messages, "user": SECRET}));
    assert!(answer.text().contains(SECRET), "{answer:?}");
    let body = json!({"model": "scripted", "input": SECRET, "instructions": SECRET, "metadata": {SECRET: SECRET}});
    assert_eq!(ask("/v1/responses", body).status(), 200);
    // Only the client is told what is wrong with its grammar.
    let wrong = [
        json!({"json_schema": {"type": "object", "properties": {"a": {"$ref": format!("https://example.org/{SECRET}")}}}}),
        json!({"regex": format!("({SECRET}")}),
        json!({"lark": format!("start: {SECRET}")}),
    ];
    for (place, grammar) in wrong.into_iter().enumerate() {
        let body = json!({"model": "scripted", "messages": messages, "pensieve": {"grammar": grammar}});
        let refused = ask("/v1/chat/completions", body);
        assert_eq!(refused.status(), 400, "{place}: {refused:?}");
    }
    assert_eq!(ask("/api/chat", json!({"model": "scripted", "messages": messages, "format": SECRET})).status(), 400);
    let log = server.stop();
    let shape = "the body has model: text of 8, messages: list of 2 (system, user), user: text of 6";
    assert!(log.contains(shape) && log.contains("cannot be used"), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}
