//! The dialect without a model: bodies to requests, and deltas to events.

#![allow(clippy::unwrap_used, clippy::panic)]

mod background;
mod replay;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    encoder::{Head, ResponseEncoder, StoreTarget},
    envelope,
    request::ResponseRequest,
    tools::Tools,
};
use crate::{
    chat::{Conversation, Delta, Input, Part, ResponseFormat, Role, ToolChoice},
    dialects::{
        ApiError, ApiRequest, Dialect, DialectSettings, ErrorCode, Shared, StreamLimit, fields::Document, fuzz,
        stream::EventEncoder,
    },
};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Usage};

/// Reads a body with these fields; also returns the warnings.
fn read(fields: Value) -> (Result<ResponseRequest, ApiError>, Vec<String>) {
    let mut body = json!({"model": "m", "input": "hello"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let document = Document::of(&body);
    let asked = super::read(&ApiRequest::default(), &document.root(), false);
    (asked.map(|asked| asked.response), document.warnings())
}

fn conversation(fields: Value) -> Conversation {
    let Input::Chat(conversation) = read(fields).0.unwrap().request.input else { panic!("a response is a chat") };
    conversation
}

fn finished(reason: Finish) -> Delta {
    Delta::Finished { reason, usage: Usage { prompt: 10, reused: 4, generated: 6 } }
}

fn text(text: &str) -> Delta {
    Delta::Text { text: text.into(), logprobs: Vec::new() }
}

fn call(name: &str) -> Delta {
    Delta::ToolCall { id: "abc".into(), name: name.into() }
}

fn arguments(text: &str) -> Delta {
    Delta::ToolArguments(text.into())
}

fn encoder(is_limited: bool, tools: Value, store: Option<StoreTarget>) -> ResponseEncoder {
    let body = Document::of(&json!({ "tools": tools }));
    let head = Head {
        id: "resp_1".into(),
        created: 7,
        echo: r#""metadata":{"pensieve_warning_0":"tools.0: left out"}"#.into(),
        is_background: false,
        is_limited,
        with_encrypted: true,
    };
    ResponseEncoder::new(head, Tools::read(&body.root()).unwrap(), store)
}

/// The events of an answer, checked for ascending sequence numbers and for names that match the data.
fn events(mut encoder: ResponseEncoder, deltas: Vec<Delta>) -> Vec<Value> {
    let mut bytes = encoder.begin();
    for delta in deltas {
        match encoder.delta(0, delta) {
            Ok(more) => bytes.extend(more),
            Err(error) => bytes.extend(encoder.error(&error)),
        }
    }
    let text = String::from_utf8(bytes.concat().to_vec()).unwrap();
    let event = |(place, event): (usize, &str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((data["type"].as_str(), data["sequence_number"].as_u64()), (Some(name), Some(place as u64)));
        data
    };
    text.trim_end().split("\n\n").enumerate().map(event).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect()
}

#[test]
fn a_text_comes_in_the_order_of_the_original() {
    let events = events(encoder(false, json!([]), None), vec![text("Hel"), text("lo"), finished(Finish::EndOfTurn)]);
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names(&events), expected);
    let id = &events[2]["item"]["id"];
    assert!(events[3..8].iter().all(|event| event["item_id"] == *id && event["output_index"] == 0));
    assert_eq!((&events[2]["item"]["content"], &events[4]["delta"]), (&json!([]), &json!("Hel")));
    let response = &events[9]["response"];
    assert_eq!((&response["status"], &response["id"]), (&json!("completed"), &json!("resp_1")));
    assert_eq!(response["output"], json!([events[8]["item"]]));
    assert_eq!(response["output"][0]["content"][0]["text"], "Hello");
    assert_eq!(response["metadata"], json!({"pensieve_warning_0": "tools.0: left out"}));
    let usage = json!({
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0}, "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 16,
    });
    assert_eq!(response["usage"], usage);
}

#[test]
fn reasoning_text_and_calls_are_separate_items() {
    let deltas = vec![
        Delta::Thinking("hm".into()),
        text("So."),
        call("add"),
        arguments("{\"x\""),
        arguments(":1}"),
        call("now"),
        finished(Finish::EndOfTurn),
    ];
    let events = events(encoder(false, json!([]), None), deltas);
    let output = &events.last().unwrap()["response"]["output"];
    let kinds: Vec<&str> = output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "hm"}]));
    let call = json!({"type": "function_call", "status": "completed", "call_id": "call_abc", "name": "add", "arguments": "{\"x\":1}"});
    let mut found = output[2].clone();
    assert!(found.as_object_mut().unwrap().remove("id").unwrap().as_str().unwrap().starts_with("fc_"));
    assert_eq!((found, &output[3]["arguments"]), (call, &json!("{}")));
    let done: Vec<&Value> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    assert!(
        done.iter().enumerate().all(|(place, event)| event["output_index"] == place && event["item"] == output[place])
    );
    // The reasoning is read back, from its plain or its encoded form.
    for reasoning in [
        output[0].clone(),
        json!({"type": "reasoning", "summary": [], "encrypted_content": output[0]["encrypted_content"]}),
    ] {
        let turns = conversation(json!({"input": [{"role": "user", "content": "a"}, reasoning]})).turns;
        assert_eq!(turns[1].parts, [Part::Thinking("hm".into())]);
    }
}

#[test]
fn calls_are_returned_under_the_clients_names_and_types() {
    let tools = json!([
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close"}]},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
    ]);
    let deltas = vec![
        call("agents__close"),
        arguments("{\"id\":1}"),
        call("patch"),
        arguments("{\"input\":"),
        arguments("\"aaa\"}"),
        finished(Finish::EndOfTurn),
    ];
    let events = events(encoder(false, tools.clone(), None), deltas);
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!((&output[0]["name"], &output[0]["namespace"]), (&json!("close"), &json!("agents")));
    assert_eq!((&output[1]["type"], &output[1]["input"]), (&json!("custom_tool_call"), &json!("aaa")));
    assert!(names(&events).contains(&"custom_tool_call_input.done"));

    let known = conversation(json!({ "tools": tools })).tools;
    let strict = json!([{"type": "function", "name": "f", "strict": true, "parameters": {"type": "object"}}]);
    assert!(conversation(json!({ "tools": strict })).tools[0].strict);
    assert_eq!(known[0].name, "agents__close");
    assert_eq!(known[1].schema["required"], json!(["input"]));
    let items = json!([
        {"role": "user", "content": "go"}, output[0], output[1],
        {"role": "developer", "content": "late"},
        {"type": "function_call_output", "call_id": "call_abc", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "call_abc", "output": [{"type": "input_text", "text": "two"}]},
    ]);
    let turns = conversation(json!({ "input": items, "tools": tools })).turns;
    let called = |name: &str, arguments: Value| Part::ToolCall { id: "abc".into(), name: name.into(), arguments };
    let result =
        |text: &str| Part::ToolResult { id: "abc".into(), text: text.into(), images: Vec::new(), is_error: false };
    assert_eq!(turns[1].parts, [called("agents__close", json!({"id": 1})), called("patch", json!({"input": "aaa"}))]);
    assert_eq!(turns[2].parts, [result("one"), result("two")]);
    assert_eq!((turns[3].role, turns.len()), (Role::System, 4));
}

#[test]
fn a_usable_answer_that_ends_at_a_limit_is_completed() {
    let status = |is_limited, deltas: Vec<Delta>| {
        let events = events(encoder(is_limited, json!([]), None), deltas);
        let last = events.last().unwrap()["response"].clone();
        (last["status"].as_str().unwrap().to_owned(), last["output"].as_array().unwrap().len())
    };
    let half = || vec![call("f"), arguments("{\"x\": "), finished(Finish::Length)];
    assert_eq!(status(true, vec![text("Hel"), finished(Finish::Length)]), ("incomplete".into(), 1));
    assert_eq!(status(false, vec![text("Hel"), finished(Finish::ContextFull)]), ("completed".into(), 1));
    assert_eq!(status(false, half()), ("incomplete".into(), 0));
    assert_eq!(status(true, half()), ("incomplete".into(), 0));
    assert_eq!(status(false, vec![call("f"), arguments("{}"), finished(Finish::Length)]), ("completed".into(), 1));
    assert_eq!(status(false, vec![Delta::Thinking("h".into()), finished(Finish::Length)]), ("incomplete".into(), 1));
}

#[test]
fn a_failure_has_the_code_that_codex_looks_for() {
    for (failure, code) in [
        (FailureCode::TooLong, "context_length_exceeded"),
        (FailureCode::Busy, "server_is_overloaded"),
        (FailureCode::Draining, "server_is_overloaded"),
        (FailureCode::Invalid, "invalid_prompt"),
        (FailureCode::WorkerLost, "server_error"),
    ] {
        let failed = Delta::Failed(Failure::new(failure, "it broke"));
        let events = events(encoder(false, json!([]), None), vec![text("a"), failed]);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.failed");
        assert_eq!(last["response"]["error"], json!({"code": code, "message": "it broke"}));
    }
    let (status, body) = envelope(&ApiError::new(ErrorCode::Overloaded, "full"), "req_1");
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &body["error"]["code"]), (503, &json!("server_is_overloaded")));
    let (status, body) = envelope(&ApiError::field("input", "is wrong"), "req_1");
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &body["error"]["param"], &body["request_id"]), (400, &json!("input"), &json!("req_1")));
}

#[test]
fn a_finished_response_is_stored_with_its_conversation() {
    let shared = Arc::new(Shared::new(DialectSettings::default(), StreamLimit::default()));
    let items = json!([{"id": "item_1", "type": "message", "role": "user", "content": "a"}]).to_string().into();
    let store = Some(StoreTarget { shared: shared.clone(), owner: 5, is_local: false, items, inputs: 1 });
    let events = events(encoder(false, json!([]), store), vec![text("b"), finished(Finish::EndOfTurn)]);
    let stored = shared.responses.get(5, "resp_1").unwrap();
    let [response, items]: [Value; 2] =
        [&stored.response, &stored.items].map(|text| serde_json::from_slice(text).unwrap());
    assert_eq!(response, events.last().unwrap()["response"]);
    assert_eq!((stored.inputs, items.as_array().unwrap().len(), &items[1]["role"]), (1, 2, &json!("assistant")));
    assert!(shared.responses.get(6, "resp_1").is_none());
}

#[test]
fn reads_requests_of_codex() {
    let tools = json!([
        {"type": "function", "name": "exec_command", "strict": false, "parameters": {"type": "object", "properties": {}}},
        {"type": "namespace", "name": "multi_agent_v1", "tools": [{"type": "function", "name": "close_agent"}]},
        {"type": "web_search", "external_web_access": false},
    ]);
    let part = |text: &str| json!({"type": "input_text", "text": text});
    let input = json!([
        {"type": "message", "id": "msg_1", "role": "developer", "content": [part("one")]},
        {"type": "message", "id": "msg_2", "role": "developer", "content": [part("two"), part("three")]},
        {"type": "message", "role": "user", "content": [part("hi")]},
        {"type": "function_call", "id": "fc_1", "status": "completed", "name": "view_image", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": [{"type": "input_image", "image_url": "data:"}]},
    ]);
    let (asked, warnings) = read(json!({
        "input": input, "tools": tools, "tool_choice": "auto", "parallel_tool_calls": true, "store": false, "stream": true,
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x",
        "client_metadata": {"a": "b"}, "text": {"verbosity": "low"},
    }));
    let asked = asked.unwrap();
    assert!(asked.stream && !asked.store && asked.with_encrypted && !asked.is_limited);
    assert_eq!(warnings[0], "tools.2: tools of type 'web_search' are not served here; it is left out");
    assert!(warnings[1].contains("input.4.output.0: this model reads text only"), "{warnings:?}");
    let Input::Chat(conversation) = asked.request.input else { panic!("a response is a chat") };
    assert_eq!(conversation.system, "one\n\ntwo\nthree");
    assert_eq!((conversation.turns.len(), conversation.tools.len()), (3, 2));
    assert_eq!(asked.request.format, ResponseFormat::Free);
}

#[test]
fn a_file_of_text_is_its_text() {
    let file = json!({"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="});
    let other = json!({"type": "input_file", "filename": "b.pdf", "file_data": "data:application/pdf;base64,JVBERg=="});
    let content = json!([{"type": "input_text", "text": "Sum up:"}, file, other]);
    let found = conversation(json!({"input": [{"role": "user", "content": content}]}));
    let text = |part: &Part| if let Part::Text(text) = part { text.clone() } else { panic!("{part:?}") };
    let text: String = found.turns[0].parts.iter().map(text).collect::<Vec<_>>().join("|");
    assert!(text.contains("<document title=\"a.txt\">\nhello\n</document>"), "{text}");
    assert!(text.contains("[a document was attached") && !text.contains("JVBER"), "{text}");
}

#[test]
fn unsupported_items_in_a_history_do_not_end_the_session() {
    let hello = json!({"role": "user", "content": "hi"});
    for item in [
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
        json!({"type": "compaction", "encrypted_content": "x"}),
        json!({"type": "item_reference", "id": "x"}),
        json!({"type": "reasoning", "summary": [], "encrypted_content": "of another server"}),
        json!({"type": "function_call_output", "call_id": "gone", "output": "stray"}),
        json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{oops"}),
        json!({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}),
        json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}),
    ] {
        let (asked, _) = read(json!({"input": [hello, item]}));
        assert!(asked.is_ok(), "{item}: {asked:?}");
    }
    let (asked, warnings) = read(json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}));
    let Input::Chat(conversation) = asked.unwrap().request.input else { panic!("a response is a chat") };
    assert_eq!((conversation.tool_choice, warnings.len()), (ToolChoice::Auto, 2));
}

#[test]
fn damaged_bodies_are_accepted_or_refused() {
    fuzz::documents("responses", Dialect::Responses, |document| {
        super::read(&ApiRequest::default(), &document.root(), false).map(drop)
    });
}
