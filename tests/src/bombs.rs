//! Requests and checkpoints designed to exhaust the machine's memory or time, over a real socket against the real
//! program: each ends with an error for its sender, and others are answered meanwhile.

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post},
        server::{Options, Server},
    },
    processes, scripted,
};

/// Time limit for another client's small request meanwhile, on a machine busy with other tests.
const OTHERS_TIME_MAX: Duration = Duration::from_secs(10);
/// Growth of the server or a worker that an attack may cause.
const GROWTH_BYTES_MAX: u64 = 600 << 20;

fn start(models: Vec<(String, PathBuf)>) -> Server {
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, models, ..Options::default() }.start()
}

fn good(root: &Path) -> (String, PathBuf) {
    let source = root.join("good");
    scripted::checkpoint(&source, &[("json", "{\"a\": 1}"), ("", "What?")]);
    ("good".into(), source)
}

fn chat(model: &str, text: &str) -> Value {
    json!({ "model": model, "max_tokens": 8, "messages": [{ "role": "user", "content": text }] })
}

fn ask(server: &Server, body: &Value) -> Reply {
    post(server.address, "/v1/chat/completions", body)
}

/// Fails unless a small request is answered in time.
fn others_are_served(server: &Server) {
    let began = Instant::now();
    let reply = ask(server, &chat("good", "hello"));
    assert_eq!(reply.status(), 200, "{reply:?}");
    assert!(began.elapsed() < OTHERS_TIME_MAX, "another client waited {:?}", began.elapsed());
}

/// Peak memory of the server and each of its workers, in bytes; empty if the system does not report it.
fn peaks(server: &Server) -> Vec<(u32, u64)> {
    let pids = processes::under("worker", server.pid()).into_iter().chain([server.pid()]);
    pids.filter_map(|pid| Some((pid, processes::memory(pid)?.peak))).collect()
}

/// Fails if an earlier process has grown too much or is gone.
fn have_hardly_grown(server: &Server, before: &[(u32, u64)]) {
    let after = peaks(server);
    for (pid, peak) in before {
        let now = after.iter().find(|(known, _)| known == pid).unwrap_or_else(|| panic!("process {pid} is gone"));
        let growth = now.1.saturating_sub(*peak);
        assert!(growth < GROWTH_BYTES_MAX, "process {pid} grew by {} MiB", growth >> 20);
    }
}

/// A schema whose last definition applies to one value 2^`levels` times, in a way that only shows after merging.
fn bomb(levels: usize, hidden: bool) -> Value {
    let mut definitions = serde_json::Map::new();
    definitions.insert("d0".into(), json!({ "type": "string", "pattern": "^a[bc]d$" }));
    for level in 1..levels {
        let before = json!({ "$ref": format!("#/$defs/d{}", level - 1) });
        let part = if hidden { json!({ "type": "object", "properties": { "x": before } }) } else { before };
        definitions.insert(format!("d{level}"), json!({ "allOf": [part, part] }));
    }
    json!({ "type": "object", "properties": { "y": { "$ref": format!("#/$defs/d{}", levels - 1) } }, "required": ["y"],
        "$defs": definitions })
}

fn with_schema(schema: &Value) -> Value {
    let mut body = chat("good", "json");
    body["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    body
}

#[test]
fn a_schema_that_expands_to_millions_is_refused_and_the_next_grammar_compiles() {
    let root = tempfile::tempdir().unwrap();
    let server = start(vec![good(root.path())]);
    let fine =
        with_schema(&json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] }));
    let reply = ask(&server, &fine);
    assert_eq!(reply.status(), 200, "{reply:?}");
    let before = peaks(&server);
    for hidden in [false, true] {
        thread::scope(|scope| {
            let bombs: Vec<_> = (0..2)
                .map(|number| {
                    let body = with_schema(&bomb(26 + number, hidden));
                    let server = &server;
                    scope.spawn(move || {
                        let began = Instant::now();
                        let reply = ask(server, &body);
                        (reply, began.elapsed())
                    })
                })
                .collect();
            others_are_served(&server);
            for bomb in bombs {
                let (reply, took) = bomb.join().unwrap();
                assert_eq!(reply.status(), 400, "{reply:?}");
                assert!(took < Duration::from_secs(12), "it took {took:?}");
            }
        });
        let mut next = fine.clone();
        next["response_format"]["json_schema"]["schema"]["title"] = json!(format!("hidden: {hidden}"));
        let reply = ask(&server, &next);
        assert_eq!(reply.status(), 200, "{reply:?}");
    }
    have_hardly_grown(&server, &before);
}

#[test]
fn a_prompt_that_no_context_holds_is_refused_by_its_length() {
    let root = tempfile::tempdir().unwrap();
    let server = start(vec![good(root.path())]);
    others_are_served(&server);
    let before = peaks(&server);
    let body = chat("good", &"all work and no play ".repeat(31 * 50_000));
    let began = Instant::now();
    thread::scope(|scope| {
        let large: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(&server, &body))).collect();
        others_are_served(&server);
        for large in large {
            let reply = large.join().unwrap();
            assert_eq!(reply.status(), 400, "{reply:?}");
            assert!(reply.text().contains("prompt is too long: at least"), "{reply:?}");
        }
    });
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    have_hardly_grown(&server, &before);
}

/// A scripted checkpoint with one file modified.
fn altered(root: &Path, name: &str, file: &str, alter: impl FnOnce(String) -> String) -> (String, PathBuf) {
    let source = root.join(name);
    scripted::checkpoint(&source, &[("", "What?")]);
    let path = source.join(file);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, alter(text)).unwrap();
    (name.into(), source)
}

#[test]
fn a_tokenizer_or_a_template_that_runs_away_is_an_error_of_its_own_model() {
    let root = tempfile::tempdir().unwrap();
    let grown = altered(root.path(), "grown", "tokenizer.json", |text| {
        let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
        let replace = json!({ "type": "Replace", "pattern": { "String": "l" }, "content": "l".repeat(1000) });
        tokenizer["normalizer"] = json!({ "type": "Sequence", "normalizers": [replace, replace, replace, replace] });
        tokenizer.to_string()
    });
    // Constants are evaluated when the template is compiled.
    let constant = altered(root.path(), "constant", "chat_template.jinja", |text| {
        format!("{{% set x = {} %}}{text}", vec!["'aaaaaaaa' * 99999999"; 16].join(" ~ "))
    });
    // None of these takes much memory for long; together they take minutes.
    let slow = altered(root.path(), "slow", "chat_template.jinja", |text| {
        format!("{{% set x = {} %}}{text}", vec!["('aaaaaaaa' * 9999999) == ('aaaaaaaa' * 9999998)"; 2000].join(" or "))
    });
    let deep = altered(root.path(), "deep", "chat_template.jinja", |text| {
        format!("{}x{}{text}", "{% if true %}".repeat(35_000), "{% endif %}".repeat(35_000))
    });
    let server = start(vec![good(root.path()), grown, constant, slow, deep]);
    others_are_served(&server);
    let before = peaks(&server);
    thread::scope(|scope| {
        let asked: Vec<_> = ["grown", "constant", "slow", "deep"]
            .into_iter()
            .map(|model| {
                let server = &server;
                scope.spawn(move || (model, ask(server, &chat(model, "hello, all of you"))))
            })
            .collect();
        for _ in 0..5 {
            others_are_served(&server);
        }
        for asked in asked {
            let (model, reply) = asked.join().unwrap();
            assert_eq!(reply.status(), 400, "{model}: {reply:?}");
            assert!(reply.text().contains(model) || reply.text().contains("template"), "{model}: {reply:?}");
        }
    });
    have_hardly_grown(&server, &before);
}
