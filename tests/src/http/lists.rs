//! What the server reports about itself: plugins as they come and go, metrics, health, and its API document.

use serde_json::{Value, json};
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use super::server::{Options, PATIENCE, Server};
use crate::{
    artifacts::{library_name, plugin},
    checkpoints::bigram,
};

/// The entry of a plugin's file, once it is as expected.
fn entry(server: &Server, file: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let list = server.get("/v1/plugins").json();
        let entries = list["data"].as_array().unwrap();
        let named = |entry: &&Value| entry["file"].as_str().unwrap().ends_with(file);
        if let Some(entry) = entries.iter().find(named).filter(|entry| holds(entry)) {
            return entry.clone();
        }
        assert!(Instant::now() < deadline, "'{file}' is not as expected: {list:#}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn plugins_dropped_in_are_listed_with_what_they_provide_or_what_is_wrong() {
    let server = Options::default().start();
    assert_eq!(server.get("/v1/plugins").json(), json!({"object": "list", "data": []}));
    let library = fs::read(plugin("bigram")).unwrap();
    let [good_file, half_file] = ["good", "half"].map(library_name);
    fs::write(server.plugins().join(&good_file), &library).unwrap();
    fs::write(server.plugins().join(&half_file), &library[..library.len() / 2]).unwrap();
    let good = entry(&server, &good_file, |entry| entry["state"] == "ready");
    assert_eq!((&good["id"], &good["object"]), (&json!("bigram"), &json!("plugin")));
    assert!(good["version"].is_string() && good["sha256"].as_str().unwrap().len() == 64, "{good}");
    let architecture = &good["provides"]["architectures"][0];
    assert_eq!(architecture["architecture"], "bigram");
    assert_eq!(architecture["classes"], json!(["BigramForCausalLM"]));
    let half = entry(&server, &half_file, |entry| entry["state"] == "rejected");
    assert_eq!((&half["kind"], half.get("provides")), (&json!("truncated"), None));
    assert!(half["reason"].as_str().unwrap().contains(&half_file) && half["help"].is_string(), "{half}");
    fs::remove_file(server.plugins().join(&good_file)).unwrap();
    entry(&server, &good_file, |entry| entry["state"] == "retired");
}

#[test]
fn figures_are_in_prometheus_words() {
    let checkpoint = bigram(64, 256);
    let models = vec![("one".to_owned(), checkpoint.path().into()), ("two".to_owned(), checkpoint.path().into())];
    let server = Options { models, plugins: vec![plugin("bigram")], ..Options::default() }.start();
    server.get("/nothing");
    let reply = server.get("/metrics");
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let text = reply.text();
    let mut described = std::collections::HashSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, _) = kind.split_once(' ').unwrap();
            assert!(described.insert(name.to_owned()), "{name} is there twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(described.contains(name) || described.contains(family), "{line}");
        }
    }
    // A server that has just started inspects its models.
    let metrics = server.until("quiet", |metrics| metrics["pensieve_child_processes"] == 0.0);
    for model in ["one", "two"] {
        assert_eq!(metrics[&format!("pensieve_model_ready{{model=\"{model}\"}}")], 0.0);
        assert_eq!(metrics[&format!("pensieve_worker_loads_total{{model=\"{model}\"}}")], 0.0);
    }
    assert_eq!(metrics["pensieve_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"}"], 1.0);
    assert_eq!(metrics["pensieve_http_requests_in_flight"], 1.0);
    assert!(metrics["process_open_fds"] >= 5.0, "{metrics:?}");
    assert!(metrics["pensieve_memory_budget_bytes"] > 1e8);
}

#[test]
fn health_tells_of_every_model() {
    let checkpoint = bigram(64, 256);
    let models = vec![("one".to_owned(), checkpoint.path().into())];
    let health = Options { models, ..Options::default() }.start().get("/health").json();
    assert_eq!((&health["status"], &health["models"][0]["id"]), (&json!("ok"), &json!("one")));
    assert_eq!(health["models"][0]["state"], "idle");
}

#[test]
fn models_are_listed_in_the_words_of_who_asks() {
    let checkpoint = bigram(64, 256);
    let models = vec![("org/one".to_owned(), checkpoint.path().into())];
    let server = Options { models, ..Options::default() }.start();
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("org/one")));
    for path in ["/v1/models/org/one", "/v1/models/org%2Fone"] {
        assert_eq!(server.get(path).json()["id"], "org/one");
    }
    assert_eq!(server.get("/v1/models/none").status(), 404);
    assert_eq!(server.get("/v1/models/%FF").status(), 404);
}

#[test]
fn the_document_of_routes_is_served() {
    let document = Options::default().start().get("/openapi.json").json();
    assert_eq!((&document["openapi"], document["paths"].is_object()), (&json!("3.1.0"), true));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}
