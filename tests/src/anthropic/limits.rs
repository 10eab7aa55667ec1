//! Rejected requests: in the right envelope, at once, and with the name of the field.

use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

use super::{COUNT, MESSAGES, about, serve, tools};
use crate::http::{
    client::{Connection, Incoming, Reply, post, request, soon},
    server::Server,
};

fn refused(reply: &Reply, status: u16, kind: &str, message: &str) {
    assert_eq!(reply.status(), status, "{reply:?}");
    let body = reply.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{reply:?}");
    let said = body["error"]["message"].as_str().unwrap();
    assert!(said.starts_with(message), "{said:?} does not start with {message:?}");
    assert!(body["request_id"].as_str().is_some_and(|id| reply.header("request-id") == Some(id)), "{reply:?}");
}

fn check(server: &Server, more: &Value, message: &str) {
    for stream in [false, true] {
        let mut body = about("Say hello", more);
        body["stream"] = more.get("stream").cloned().unwrap_or(stream.into());
        refused(&soon(|| post(server.address, MESSAGES, &body)), 400, "invalid_request_error", message);
    }
}

#[test]
fn fields_beyond_their_limits_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let video = json!([{"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "video"}]}]);
    let many_tools: Vec<Value> = (0..513).map(|n| json!({"name": format!("t{n}"), "input_schema": {}})).collect();
    let same = json!([tools()[0], tools()[0]]);
    for (more, message) in [
        (json!({"model": null}), "model: this field is required"),
        (json!({"model": "x".repeat(257)}), "model: has 257 bytes"),
        (json!({"messages": null}), "messages: this field is required"),
        (json!({"messages": []}), "messages: "),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), "messages.0.role: "),
        (json!({"messages": video}), "messages.0.content.1: unknown block type 'video'"),
        (json!({"system": 5}), "system: "),
        (json!({"stop_sequences": vec!["a"; 33]}), "stop_sequences: has 33 items"),
        (json!({"stop_sequences": [""]}), "stop_sequences.0: "),
        (json!({"stop_sequences": ["x".repeat(1025)]}), "stop_sequences.0: has 1025 bytes"),
        (json!({"tools": many_tools}), "tools: has 513 items"),
        (json!({"tools": same}), "tools.1.name: "),
        (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "tools.0.name: "),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice: "),
        (json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "x"}}), "tool_choice.name: "),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), "thinking.budget_tokens: "),
        (json!({"stream": 1}), "stream: "),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema: "),
        (json!({"pensieve": {"sampler": []}}), "pensieve.sampler: "),
        (json!({"pensieve": {"grammar": {"regex": 1}}}), "pensieve.grammar.regex: "),
    ] {
        check(&server, &more, message);
    }
    let count = soon(|| post(server.address, COUNT, &about("a", &json!({"messages": 1}))));
    refused(&count, 400, "invalid_request_error", "messages: ");
}

#[test]
fn what_only_the_worker_can_refuse_is_a_status_even_of_a_stream() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    assert_eq!(post(server.address, MESSAGES, &about("Say hello", &json!({}))).status(), 200);
    let schema = json!({"type": "frob"});
    let strict =
        json!([{"name": "f", "input_schema": {"type": "object", "properties": {"a": schema}}, "strict": true}]);
    for (more, message) in [
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            "output_config.format.schema: ",
        ),
        (json!({"pensieve": {"grammar": {"lark": "start: ("}}}), "pensieve.grammar.lark: "),
        (json!({"tools": strict, "tool_choice": {"type": "any"}}), "tools.0.input_schema: "),
    ] {
        let mut body = about("Say hello", &more);
        refused(&post(server.address, MESSAGES, &body), 400, "invalid_request_error", message);
        body["stream"] = true.into();
        // A stream waits 60 ms for an error before it starts, which can be too short on a busy machine.
        let mut replies = std::iter::repeat_with(|| post(server.address, MESSAGES, &body)).take(20);
        let reply = replies.find(|reply| reply.status() != 200).expect("a stream is begun each time");
        refused(&reply, 400, "invalid_request_error", message);
    }
    // That no text matches only shows during generation.
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": endless}}});
    let reply = post(server.address, MESSAGES, &about("Say hello", &format));
    refused(&reply, 400, "invalid_request_error", "output_config.format.schema: no text fits");
}

#[test]
fn what_comes_without_its_type_is_refused_and_any_key_is_taken_where_none_is_set() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let headers = [("content-type", "application/json")];
    for path in [MESSAGES, COUNT, "/v1/messages/stream"] {
        let untyped = soon(|| request(server.address, "POST", path, &[], b"{}"));
        refused(&untyped, 415, "invalid_request_error", "");
        let strange = [("content-type", "application/json"), ("x-api-key", "wrong")];
        // The key is accepted, and the error is the empty body.
        refused(&soon(|| request(server.address, "POST", path, &strange, b"{}")), 400, "invalid_request_error", "");
    }
    refused(
        &soon(|| request(server.address, "POST", "/v1/messages/batches", &headers, b"{}")),
        404,
        "not_found_error",
        "",
    );
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_the_stream_begins() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let long = about(&"word ".repeat(80_000), &json!({}));
    let count = post(server.address, COUNT, &long).json()["input_tokens"].as_u64().unwrap();
    let message = format!(
        "prompt is too long: {count} tokens > 65535 maximum; this model's maximum context length is 65536 tokens"
    );
    for path in [MESSAGES, "/v1/messages/stream"] {
        refused(&post(server.address, path, &long), 400, "invalid_request_error", &message);
    }
}

#[test]
fn a_template_that_runs_away_costs_its_own_requests() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a ~ b }}{% endfor %}{% endfor %}";
    fs::write(root.path().join("scripted/chat_template.jinja"), endless).unwrap();
    // The server checks a model's files at most every two seconds.
    std::thread::sleep(Duration::from_millis(2_100));
    let began = Instant::now();
    let reply = post(server.address, MESSAGES, &about("Say hello", &json!({})));
    refused(&reply, 400, "invalid_request_error", "the model's chat template runs away: ");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // Requests that need no template are answered while others wait for theirs.
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let mut connection = Connection::open(server.address);
            let body = about("Say hello", &json!({})).to_string();
            connection.ask("POST", MESSAGES, &[("content-type", "application/json")], body.as_bytes());
            connection
        })
        .collect();
    let plain =
        post(server.address, "/v1/completions", &json!({"model": "scripted", "prompt": "hello", "max_tokens": 1}));
    assert_eq!(plain.status(), 200, "{plain:?}");
    for mut connection in waiting {
        assert_eq!(connection.reply("POST").unwrap().status(), 400);
    }
}

#[test]
fn a_worker_that_dies_ends_its_streams_with_an_error() {
    let root = tempfile::tempdir().unwrap();
    let server = super::serve_with(root.path(), "options = { step_us = 50_000 }");
    let mut body = about("Go on forever", &json!({"stream": true}));
    let mut incoming = Incoming::open(server.address, MESSAGES, &[], &body);
    while incoming.event().unwrap().name != "content_block_delta" {}
    crate::processes::kill_children(server.pid());
    let last = incoming.events().pop().unwrap();
    assert_eq!((last.name.as_str(), &last.json()["error"]["type"]), ("error", &json!("api_error")));
    assert!(last.json()["request_id"].as_str().unwrap().starts_with("req_"));
    body["stream"] = false.into();
    body["max_tokens"] = 1.into();
    assert_eq!(super::whole(&server, &body)["stop_reason"], "max_tokens");
}

#[test]
fn a_queue_that_is_full_is_an_overload() {
    let root = tempfile::tempdir().unwrap();
    let server = super::serve_with(root.path(), "options = { step_us = 50_000 }\nsequences_max = 1\nwaiting_max = 1");
    let mut body = about("Go on forever", &json!({"stream": true}));
    let open = || Incoming::open(server.address, MESSAGES, &[], &body);
    let mut running = open();
    while running.event().unwrap().name != "content_block_delta" {}
    let mut waiting = open();
    assert_eq!(waiting.event().unwrap().name, "message_start");
    // A stream that waited 60 ms for its refusal has begun: the refusal is its last event then, else its status.
    let late = open();
    match late.head.status {
        200 => {
            let last = late.events().pop().unwrap();
            assert_eq!((last.name.as_str(), &last.json()["error"]["type"]), ("error", &json!("overloaded_error")));
        }
        status => assert_eq!(status, 529),
    }
    body["stream"] = false.into();
    refused(&post(server.address, MESSAGES, &body), 529, "overloaded_error", "");
    // The waiting request is served.
    drop(running);
    assert_eq!(waiting.events().last().unwrap().name, "message_stop");
}
