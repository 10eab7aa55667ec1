//! Responses while they are being written: their form, how many there may be, clients that do not read them, and how a
//! server that stops leaves them.

use serde_json::{Value, json};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use super::{
    client::{Incoming, ServerEvent, post},
    server::{Options, Server},
};
use crate::{
    artifacts::{plugin, test_plugin},
    scripted::checkpoint,
};

const LINE: &str = "The quick brown fox jumps over the lazy dog. ";

/// A server with the scripted model, which takes this many microseconds per step, and the model's folder.
pub fn scripted(config: &str, step_us: u64) -> (Server, TempDir) {
    scripted_with(config, step_us, "")
}

/// Like [`scripted`], with more lines about the model.
pub fn scripted_with(config: &str, step_us: u64, model: &str) -> (Server, TempDir) {
    let root = tempfile::tempdir().unwrap();
    let long = LINE.repeat(400);
    let script = [("hello", "Hello, Größe 😀!"), ("endless", long.as_str()), ("", "What?")];
    checkpoint(root.path(), &script);
    let source = root.path().display();
    let options = Options {
        plugins: vec![test_plugin("scripted"), plugin("pensieve-samplers")],
        config: format!(
            "{config}\n[[models]]\nid = \"scripted\"\nsource = \"{source}\"\nthreads = 1\n\
            options = {{ step_us = {step_us} }}\n{model}"
        ),
        ..Options::default()
    };
    (options.start(), root)
}

fn names(events: &[ServerEvent]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

pub fn execute(prompt: &str) -> Value {
    json!({ "prompt": format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"), "max_tokens": 100_000 })
}

/// A long response whose first piece has arrived.
pub fn begun(server: &Server) -> Incoming {
    let mut stream = Incoming::open(server.address, "/execute", &[], &execute("endless"));
    assert_eq!(stream.event().unwrap().name, "started");
    assert_eq!(stream.event().unwrap().name, "token");
    stream
}

#[test]
fn a_query_is_answered_by_plain_text_in_pieces() {
    let (server, _root) = scripted("", 10_000);
    let mut stream = Incoming::open(server.address, "/token_stream", &[], &json!({ "query": "hello" }));
    assert_eq!(stream.head.status, 200);
    assert_eq!(stream.head.header("content-type"), Some("text/plain; charset=utf-8"));
    let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| stream.piece()).collect();
    assert_eq!(String::from_utf8(pieces.concat()).unwrap(), "Hello, Größe 😀!");
    assert!(pieces.len() > 3, "{pieces:?}");
    for (body, words) in [
        (json!({}), "query: this field is required"),
        (json!({ "query": 1 }), "query: should be a string"),
        (json!({ "query": "x", "max_tokens": 0 }), "max_tokens"),
    ] {
        let reply = post(server.address, "/token_stream", &body);
        assert!(reply.status() == 400 && reply.text().contains(words), "{reply:?}");
    }
}

#[test]
fn a_job_is_executed_with_a_start_tokens_and_an_end() {
    let (server, _root) = scripted("", 0);
    let stream = Incoming::open(server.address, "/execute", &[], &execute("hello"));
    assert_eq!(stream.head.header("content-type"), Some("text/event-stream"));
    assert_eq!(stream.head.header("cache-control"), Some("no-cache"));
    let events = stream.events();
    let (first, last) = (events.first().unwrap().json(), events.last().unwrap().json());
    assert_eq!((names(&events)[0], &first["model"]), ("started", &json!("scripted")));
    let text: String = events[1..events.len() - 1]
        .iter()
        .inspect(|event| assert_eq!(event.name, "token"))
        .map(|event| event.json()["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "Hello, Größe 😀!");
    assert_eq!((events.last().unwrap().name.as_str(), &last["reason"]), ("end", &json!("stop")));
    assert_eq!(last["usage"]["prompt_tokens"], first["prompt_tokens"]);
    assert!(last["usage"]["completion_tokens"].as_u64().unwrap() > 10, "{last}");
    let mut body = execute("hello");
    body["stop"] = json!(["Grö"]);
    let events = Incoming::open(server.address, "/execute", &[], &body).events();
    let last = events.last().unwrap().json();
    assert_eq!((&last["reason"], &last["stop"]), (&json!("stop"), &json!("Grö")));
    body["max_tokens"] = json!(2);
    let events = Incoming::open(server.address, "/execute", &[], &body).events();
    assert_eq!(events.last().unwrap().json()["reason"], "length");
}

#[test]
fn the_first_event_leaves_before_the_model_has_seen_the_prompt() {
    let (server, _root) = scripted("", 0);
    // Load the model first, so that only the response is measured.
    Incoming::open(server.address, "/execute", &[], &execute("hello")).events();
    let (slow, _root) = scripted("", 500_000);
    Incoming::open(slow.address, "/execute", &[], &json!({ "prompt": "x", "max_tokens": 1 })).events();
    let began = Instant::now();
    let mut stream = Incoming::open(slow.address, "/execute", &[], &execute("hello"));
    assert_eq!(stream.event().unwrap().name, "started");
    assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
}

#[test]
fn the_number_of_streams_is_limited() {
    let (server, _root) = scripted("[server]\nstreams_max = 2", 5_000);
    let kept = [begun(&server), begun(&server)];
    let reply = post(server.address, "/execute", &execute("endless"));
    assert_eq!((reply.status(), reply.header("retry-after")), (529, Some("1")), "{reply:?}");
    // Responses that are not streamed do not count.
    let chat = json!({ "model": "scripted", "max_tokens": 4, "messages": [{ "role": "user", "content": "hello" }] });
    assert_eq!(post(server.address, "/v1/chat/completions", &chat).status(), 200);
    kept.into_iter().for_each(Incoming::leave);
    server.until("idle", |metrics| metrics["pensieve_streams{model=\"scripted\"}"] == 0.0);
    begun(&server).leave();
}

#[test]
fn a_disconnect_cancels_the_work() {
    let (server, _root) = scripted("", 5_000);
    let stream = begun(&server);
    server.until("running", |metrics| metrics["pensieve_sequences_running{model=\"scripted\"}"] == 1.0);
    stream.leave();
    let left = Instant::now();
    let metrics = server.until("idle", |metrics| metrics["pensieve_sequences_running{model=\"scripted\"}"] == 0.0);
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
    assert_eq!(metrics["pensieve_blocks{model=\"scripted\",state=\"active\"}"], 0.0);
    assert_eq!(metrics["pensieve_http_requests_abandoned_total{route=\"/execute\"}"], 1.0);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let (server, _root) = scripted("[server]\nstall_timeout = \"1s\"", 0);
    let mut body = execute("endless");
    // Each token carries so much data that the sockets' buffers are soon full.
    body = json!({
        "model": "scripted", "stream": true, "logprobs": true, "top_logprobs": 20, "max_tokens": 100_000,
        "messages": [{ "role": "user", "content": "endless" }], "prompt": body["prompt"],
    });
    let streams: Vec<Incoming> =
        (0..4).map(|_| Incoming::open(server.address, "/v1/chat/completions", &[], &body)).collect();
    server.until("given up", |metrics| {
        let name = "pensieve_http_requests_abandoned_total{route=\"/v1/chat/completions\"}";
        metrics.get(name) == Some(&4.0) && metrics["pensieve_sequences_running{model=\"scripted\"}"] == 0.0
    });
    drop(streams);
}

#[test]
fn told_to_end_it_lets_answers_finish() {
    let (mut server, _root) = scripted("", 20_000);
    let stream = Incoming::open(server.address, "/execute", &[], &execute("hello"));
    server.signal(libc::SIGTERM);
    let events = stream.events();
    assert_eq!(names(&events).last(), Some(&"end"), "{events:?}");
    assert!(server.ended(Duration::from_secs(20)).expect("it does not end").success());
}

#[test]
fn what_does_not_finish_in_time_ends_with_an_error() {
    let (mut server, _root) = scripted("[server]\ndrain = \"1s\"", 20_000);
    let stream = begun(&server);
    let chat = json!({
        "model": "scripted", "stream": true, "max_tokens": 100_000,
        "messages": [{ "role": "user", "content": "endless" }],
    });
    let anthropic = Incoming::open(server.address, "/v1/messages", &[], &chat);
    let openai = Incoming::open(server.address, "/v1/chat/completions", &[], &chat);
    sleep(Duration::from_millis(200));
    server.signal(libc::SIGTERM);
    let events = stream.events();
    assert_eq!(names(&events).last(), Some(&"error"), "{events:?}");
    let events = anthropic.events();
    let last = events.last().unwrap();
    assert_eq!((last.name.as_str(), &last.json()["error"]["type"]), ("error", &json!("overloaded_error")));
    let events = openai.events();
    assert!(events.iter().any(|event| event.data.starts_with("{\"error\"")), "{events:?}");
    assert!(server.ended(Duration::from_secs(20)).expect("it does not end").success());
}

#[test]
fn metrics_count_every_answer() {
    let (server, _root) = scripted("", 2_000);
    let body = execute(&"hello ".repeat(10));
    let usage = Incoming::open(server.address, "/execute", &[], &body).events().last().unwrap().json()["usage"].clone();
    Incoming::open(server.address, "/execute", &[], &body).events();
    let metrics = server.metrics();
    let of = |name: &str| metrics[&format!("pensieve_{name}{{model=\"scripted\"}}")];
    let counted = |name: &str| usage[name].as_f64().unwrap();
    assert_eq!(of("prompt_tokens_total"), 2.0 * counted("prompt_tokens"));
    assert_eq!(of("generated_tokens_total"), 2.0 * counted("completion_tokens"));
    assert!(of("reused_tokens_total") >= 16.0, "{metrics:?}");
    assert_eq!((of("requests_active"), of("worker_loads_total")), (0.0, 1.0));
    assert_eq!(metrics["pensieve_requests_total{model=\"scripted\",outcome=\"end_of_turn\"}"], 2.0);
    assert_eq!((of("first_token_seconds_count"), of("queue_wait_seconds_count")), (2.0, 2.0));
    assert_eq!(of("inter_token_seconds_count"), 2.0 * counted("completion_tokens") - 2.0);
    assert!(of("inter_token_seconds_sum") > 0.002 && of("first_token_seconds_sum") > 0.0, "{metrics:?}");
}

#[test]
fn neither_words_nor_keys_of_clients_are_in_the_log_whatever_goes_wrong() {
    let (server, _root) = scripted("[server]\nkey = \"zq-key-of-mine\"", 0);
    let words = "zq-words hello";
    let messages = json!([
        { "role": "system", "content": "zq-system" },
        { "role": "user", "content": words },
        { "role": "assistant", "content": "zq-said" },
        { "role": "user", "content": words },
    ]);
    let fine = json!({ "model": "a-name", "max_tokens": 5, "messages": messages, "prompt": words, "query": words });
    let wrong = [
        ("pensieve", json!({ "grammar": { "regex": "(zq-grammar" } })),
        ("pensieve", json!({ "grammar": { "json_schema": { "type": "zq-schema" } } })),
        ("pensieve", json!({ "adapter": "zq-adapter" })),
        ("pensieve", json!({ "samplers": ["zq-sampler"] })),
        ("pensieve", json!({ "samplers": [{ "sampler": "top_k", "zq-parameter": 1 }] })),
        ("pensieve", json!({ "template": { "zq-variable": "zq-value" } })),
        ("tools", json!([{ "name": "zq-tool of mine", "input_schema": {} }])),
        ("messages", json!([{ "role": "zq-role", "content": words }])),
        ("stop", json!([1, "zq-stop"])),
        ("prompt", json!(words.repeat(20_000))),
    ];
    let paths = [
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/chat/completions",
        "/v1/completions",
        "/execute",
        "/token_stream",
    ];
    for path in paths {
        for stream in [false, true] {
            for (name, value) in
                wrong.iter().map(|(name, value)| (*name, value.clone())).chain([("stream", json!(stream))])
            {
                let mut body = fine.clone();
                body["stream"] = stream.into();
                body[name] = value;
                let body = body.to_string();
                for key in ["zq-key-of-mine", "zq-key-of-nobody"] {
                    let headers =
                        [("content-type", "application/json"), ("x-api-key", key), ("user-agent", "an-agent")];
                    let target = format!("{path}?zq-query=1");
                    let reply = super::client::request(server.address, "POST", &target, &headers, body.as_bytes());
                    assert_eq!(reply.status() == 401, key == "zq-key-of-nobody", "{reply:?}");
                    assert!(reply.status() < 500, "{path}: {reply:?}");
                }
            }
        }
    }
    let log = server.stop();
    assert!(log.contains("/v1/messages") && log.contains("status=200") && log.contains("status=400"), "{log}");
    assert!(!log.contains("zq-"), "{}", log.lines().filter(|line| line.contains("zq-")).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_log_tells_of_model_and_tokens() {
    let (server, _root) = scripted("[server]\nlog_format = \"json\"", 0);
    let stream = Incoming::open(server.address, "/execute", &[], &execute("hello"));
    let id = stream.head.header("request-id").unwrap().to_owned();
    let usage = stream.events().last().unwrap().json()["usage"].clone();
    let log = server.stop();
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["span"]["id"] == id.as_str() && line["fields"]["status"] == 200);
    let span = &line.unwrap_or_else(|| panic!("{log}"))["span"];
    assert_eq!((&span["model"], &span["outcome"]), (&json!("scripted"), &json!("end_of_turn")));
    assert_eq!(span["prompt_tokens"], usage["prompt_tokens"]);
    assert_eq!(span["generated_tokens"], usage["completion_tokens"]);
}
