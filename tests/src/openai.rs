//! OpenAI's API at the wire level: the bytes of streams, the envelope of errors, and the fate of work whose client has
//! gone. Its SDKs are tested in `clients`.

use serde_json::{Value, json};
use std::path::Path;

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Incoming, Reply, post},
        server::{Options, Server},
    },
    processes::kill_children,
    scripted,
};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const SCRIPT: [(&str, &str); 3] = [
    ("hello", "Hello there, blåbær friend 🫐."),
    ("call", concat!("<tool_call>\n", r#"{"name": "add", "arguments": {"x": 1, "y": [2, 3]}}"#, "\n</tool_call>")),
    ("forever", "and on and on and on"),
];

fn serve(root: &Path) -> Server {
    serve_with(root, "")
}

fn serve_with(root: &Path, config: &str) -> Server {
    let source = root.join("scripted");
    let forever = SCRIPT[2].1.repeat(2000);
    scripted::checkpoint(&source, &[SCRIPT[0], SCRIPT[1], ("forever", &forever)]);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let config = config.to_owned();
    Options { plugins, models: vec![("scripted".into(), source)], config, ..Options::default() }.start()
}

/// A chat request with this text and more fields.
fn chat(text: &str, more: Value) -> Value {
    with(json!({"model": "scripted", "messages": [{"role": "user", "content": text}]}), more)
}

/// A completion request with this text and more fields.
fn text(text: &str, more: Value) -> Value {
    with(json!({"model": "scripted", "prompt": text, "max_tokens": 50}), more)
}

fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("no object: {more}") };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// A stream's bytes, as text.
fn bytes(server: &Server, path: &str, body: &Value) -> String {
    let mut incoming = Incoming::open(server.address, path, &[], body);
    assert_eq!(incoming.head.status, 200);
    assert_eq!(incoming.head.header("content-type"), Some("text/event-stream"));
    let pieces: Vec<u8> = std::iter::from_fn(|| incoming.piece()).flatten().collect();
    String::from_utf8(pieces).unwrap()
}

/// The data of a stream that ended properly.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let text = bytes(server, path, body);
    let text = text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("no end: {text}"));
    let lines = text.lines().filter(|line| !line.is_empty() && *line != ": keep-alive");
    lines.map(|line| serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

fn refused(reply: &Reply, status: u16, param: Option<&str>) {
    assert_eq!(reply.status(), status, "{reply:?}");
    let error = &reply.json()["error"];
    assert_eq!(error["param"].as_str(), param, "{reply:?}");
    assert_eq!(error["type"], "invalid_request_error", "{reply:?}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{reply:?}");
    assert!(error.get("code").is_some() && reply.header("x-request-id").is_some(), "{reply:?}");
}

#[test]
fn a_request_that_limits_nothing_gets_the_configured_limit() {
    let root = tempfile::tempdir().unwrap();
    let server = serve_with(root.path(), "[server]\nmax_tokens = 7\n");
    let ask = |path: &str, body: Value| post(server.address, path, &body).json();
    let messages = json!([{"role": "user", "content": "forever"}]);
    let chat = ask(CHAT, chat("forever", json!({})));
    assert_eq!(
        (&chat["usage"]["completion_tokens"], &chat["choices"][0]["finish_reason"]),
        (&json!(7), &json!("length"))
    );
    let response = ask("/v1/responses", json!({"model": "scripted", "input": "forever"}));
    assert_eq!(response["usage"]["output_tokens"], 7);
    let line = ask("/api/chat", json!({"model": "scripted", "messages": messages, "stream": false}));
    assert_eq!((&line["eval_count"], &line["done_reason"]), (&json!(7), &json!("length")));
    let longer = json!({"model": "scripted", "messages": messages, "max_completion_tokens": 9});
    assert_eq!(ask(CHAT, longer)["usage"]["completion_tokens"], 9);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let usage = json!({"include_usage": true});
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]);
    for more in [json!({}), json!({"tools": tools}), json!({"n": 2, "seed": 1}), json!({"logprobs": true})] {
        for about in ["hello", "call"] {
            let whole = post(server.address, CHAT, &chat(about, more.clone())).json();
            let streamed = with(more.clone(), json!({"stream": true, "stream_options": usage}));
            let events = events(&server, CHAT, &chat(about, streamed));
            let (last, chunks) = events.split_last().unwrap();
            assert_eq!(last["choices"], json!([]));
            for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                assert_eq!(last["usage"][count], whole["usage"][count], "{about}: {more}");
            }
            for expect in whole["choices"].as_array().unwrap() {
                let found = told(chunks, &expect["index"]);
                assert_eq!(without_ids(found), without_ids(expect.clone()), "{about}: {more}");
            }
        }
    }
}

/// The choice with this index, assembled from chunks, in the form of a whole response.
fn told(chunks: &[Value], index: &Value) -> Value {
    let choices: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == *index).collect();
    let (mut content, mut calls, mut tokens) = (None::<String>, Vec::new(), Vec::new());
    for choice in &choices {
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str() {
            content = Some(content.unwrap_or_default() + text);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let place = call["index"].as_u64().unwrap() as usize;
            if place == calls.len() {
                let mut call = call.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
            } else {
                let arguments = &mut calls[place]["function"]["arguments"];
                *arguments =
                    (arguments.as_str().unwrap().to_owned() + call["function"]["arguments"].as_str().unwrap()).into();
            }
        }
        tokens.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(choices[0]["delta"]["role"], "assistant");
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let logprobs = if tokens.is_empty() { Value::Null } else { json!({"content": tokens, "refusal": null}) };
    let reason = &choices.last().unwrap()["finish_reason"];
    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
}

/// Removes the ids of calls, which are unique.
fn without_ids(mut choice: Value) -> Value {
    for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
        assert!(call["id"].take().as_str().is_some_and(|id| id.starts_with("call_")));
    }
    choice
}

#[test]
fn fields_are_checked_before_anything_is_queued() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    for path in [CHAT, TEXT] {
        let body = |more: Value| if path == CHAT { chat("hello", more) } else { text("hello", more) };
        for (name, value, param) in [
            ("stop", json!(["a", 1]), "stop.1"),
            ("logit_bias", json!({"1": 100.5}), "logit_bias.1"),
            ("stream_options", json!({"include_usage": true}), "stream_options"),
            ("pensieve", json!({"adapter_scale": 1}), "pensieve.adapter_scale"),
            ("pensieve", json!({"unknown": 1}), "pensieve.unknown"),
        ] {
            refused(&post(server.address, path, &body(json!({ name: value }))), 400, Some(param));
        }
        let huge = post(server.address, path, &body(json!({"max_tokens": u64::MAX, "whatever": {"a": [null]}})));
        assert_eq!(huge.status(), 200, "{huge:?}");
    }
    for (path, name, value, param) in [
        (CHAT, "messages", json!([]), "messages"),
        (CHAT, "messages", json!([{"role": "user", "content": [{"type": "video"}]}]), "messages.0.content.0.type"),
        (CHAT, "top_logprobs", json!(1), "top_logprobs"),
        (CHAT, "tool_choice", json!("required"), "tool_choice"),
        (CHAT, "response_format", json!({"type": "xml"}), "response_format.type"),
        (TEXT, "prompt", json!([]), "prompt"),
        (TEXT, "suffix", json!("x"), "suffix"),
        (TEXT, "logprobs", json!(6), "logprobs"),
        (TEXT, "best_of", json!(9), "best_of"),
    ] {
        let body =
            if path == CHAT { chat("hello", json!({ name: value })) } else { text("hello", json!({ name: value })) };
        refused(&post(server.address, path, &body), 400, Some(param));
    }
}

#[test]
fn what_the_model_cannot_take_is_refused_by_the_same_envelope() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let long = post(server.address, CHAT, &chat(&"word ".repeat(80_000), json!({"stream": true})));
    refused(&long, 400, Some("messages"));
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    assert!(long.json()["error"]["message"].as_str().unwrap().starts_with("prompt is too long: "), "{long:?}");
    let beyond = post(server.address, TEXT, &with(text("", json!({})), json!({"prompt": [1, 4_000_000_000u32]})));
    refused(&beyond, 400, Some("prompt"));
    let missing = server.get("/v1/models/nobody");
    refused(&missing, 404, Some("model"));
    assert_eq!(missing.json()["error"]["code"], "model_not_found");
}

#[test]
fn a_grammar_that_cannot_be_enforced_is_a_status_even_for_a_stream() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    // The model is loaded, so the worker's answer comes at once.
    assert_eq!(post(server.address, CHAT, &chat("hello", json!({}))).status(), 200);
    let more = json!({"stream": true, "pensieve": {"grammar": {"regex": "(unclosed"}}});
    refused(&post(server.address, CHAT, &chat("hello", more)), 400, Some("pensieve.grammar.regex"));
}

#[test]
fn a_client_that_leaves_stops_the_work() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut incoming = Incoming::open(server.address, CHAT, &[], &chat("forever", json!({"stream": true, "n": 2})));
    for _ in 0..4 {
        assert!(incoming.event().is_some());
    }
    incoming.leave();
    server.until("idle", |metrics| {
        let active = metrics.iter().find(|(name, _)| name.starts_with("pensieve_requests_active"));
        active.is_some_and(|(_, active)| *active == 0.0)
    });
}

#[test]
fn a_worker_that_dies_ends_its_streams_with_an_error() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut incoming = Incoming::open(server.address, CHAT, &[], &chat("forever", json!({"stream": true})));
    for _ in 0..4 {
        assert!(incoming.event().is_some());
    }
    kill_children(server.pid());
    let events = incoming.events();
    let last = events.last().unwrap().json();
    assert_eq!(last["error"]["type"], "server_error", "{last}");
    assert!(events.iter().all(|event| event.data != "[DONE]"));
    // The next request gets a new worker.
    assert_eq!(post(server.address, CHAT, &chat("hello", json!({}))).status(), 200);
}

#[test]
fn a_stream_speaks_at_once_and_ends_with_done() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let said = bytes(&server, CHAT, &chat("hello", json!({"stream": true})));
    assert!(said.starts_with(": keep-alive\n"), "{said}");
    assert!(said.ends_with("\n\ndata: [DONE]\n\n"), "{said}");
    let said = bytes(&server, TEXT, &text("hello", json!({"stream": true, "echo": true, "n": 2})));
    assert!(said.starts_with(": keep-alive\n") && said.ends_with("\n\ndata: [DONE]\n\n"), "{said}");
}

#[test]
fn models_are_listed_for_both_kinds_of_clients() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("scripted")));
    let model = server.get("/v1/models/scripted").json();
    assert_eq!((&model["object"], &model["owned_by"]), (&json!("model"), &json!("pensieve")));
    assert!(model["created"].as_u64().unwrap() > 1_600_000_000);
}
