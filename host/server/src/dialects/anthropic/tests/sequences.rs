//! Answers as events and as whole messages.

use serde_json::{Value, json};

use super::order;
use crate::{
    chat::Delta,
    dialects::anthropic::{
        encoder::{Head, MessageBuilder, MessageEncoder},
        events::Event,
    },
};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Usage};

const USAGE: Usage = Usage { prompt: 100, reused: 64, generated: 7 };

fn text(text: &str) -> Delta {
    Delta::Text { text: text.into(), logprobs: Vec::new() }
}

fn thinking(text: &str) -> Delta {
    Delta::Thinking(text.into())
}

fn call(id: &str) -> Delta {
    Delta::ToolCall { id: id.into(), name: "f".into() }
}

fn arguments(text: &str) -> Delta {
    Delta::ToolArguments(text.into())
}

fn finished(reason: Finish) -> Delta {
    Delta::Finished { reason, usage: USAGE }
}

fn events(deltas: Vec<Delta>) -> Vec<Event> {
    let head = Head { id: "msg_1".into(), model: "m".into(), input_tokens: 100, edits: None, ..Head::default() };
    let mut encoder = MessageEncoder::new(head, vec!["a".into(), "STOP".into()]);
    let mut events = encoder.begin();
    for delta in deltas {
        assert!(!encoder.is_over());
        match encoder.take(delta) {
            Ok(more) => events.extend(more),
            Err(error) => {
                events.push(Event::Error(error));
                return events;
            }
        }
    }
    if !encoder.is_over() {
        events.push(Event::Error(crate::dialects::stream::ended_early()));
    }
    events
}

fn wire(events: &[Event]) -> Vec<(String, Value)> {
    let text: Vec<u8> = events.iter().flat_map(|event| event.frame("req_1")).collect();
    order::events(&String::from_utf8(text).unwrap()).unwrap()
}

/// The message, checked to be the same with and without streaming.
fn message(deltas: Vec<Delta>) -> Value {
    let events = events(deltas);
    let streamed = order::message(&wire(&events)).unwrap();
    let mut whole = MessageBuilder::default();
    for event in events {
        if let Event::Error(error) = event {
            assert_eq!(streamed["error"]["message"], error.to_string());
            return streamed;
        }
        whole.add(event);
    }
    assert_eq!(whole.json(), streamed);
    streamed
}

#[test]
fn a_whole_message_shows_a_call_whose_arguments_are_no_object_as_text() {
    let whole = |sent: &str, reason: Finish| {
        let mut whole = MessageBuilder::default();
        events(vec![call("1"), arguments(sent), finished(reason)]).into_iter().for_each(|event| whole.add(event));
        whole.json()["content"][0].clone()
    };
    for sent in [r#"{"a": "#, "[1]"] {
        assert_eq!(whole(sent, Finish::EndOfTurn), json!({ "type": "text", "text": format!("f({sent})") }));
        // The stop reason says that this one is incomplete.
        assert_eq!(whole(sent, Finish::Length)["input"], json!({}));
    }
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn text_is_one_block() {
    let wire = wire(&events(vec![
        Delta::Loading { done: 1, total: 2, what: "weights".into() },
        Delta::Started { reused_tokens: 64 },
        Delta::Prompt { computed: 100, total: 100 },
        text("Hel"),
        text(""),
        text("lo"),
        finished(Finish::EndOfTurn),
    ]));
    let usage = json!({"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0});
    let start = json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage,
    }});
    let usage = json!({"input_tokens": 36, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64, "output_tokens": 7});
    let expected = [
        start,
        json!({"type": "ping"}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": usage}),
        json!({"type": "message_stop"}),
    ];
    let data: Vec<Value> = wire.into_iter().map(|(_, data)| data).collect();
    assert_eq!(data, expected);
}

#[test]
fn reasoning_text_and_calls_are_separate_blocks() {
    let deltas = vec![
        thinking("H"),
        thinking("m"),
        text("Well"),
        call("1"),
        arguments(r#"{"a":"#),
        arguments(""),
        arguments("1}"),
        call("2"),
        finished(Finish::EndOfTurn),
    ];
    let wire = wire(&events(deltas.clone()));
    let starts: Vec<&Value> =
        wire.iter().filter(|(name, _)| name == "content_block_start").map(|(_, data)| data).collect();
    let blocks: Vec<&Value> = starts.iter().map(|data| &data["content_block"]).collect();
    assert_eq!(blocks[0], &json!({"type": "thinking", "thinking": "", "signature": ""}));
    assert_eq!(blocks[2], &json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}));
    assert_eq!(
        names(&wire)[..7],
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
        ]
    );
    assert_eq!(wire[5].1["delta"]["type"], "signature_delta");
    let message = message(deltas);
    assert_eq!(message["content"][0]["thinking"], "Hm");
    let signature = message["content"][0]["signature"].as_str().unwrap();
    assert!(signature.len() == 64 && signature.bytes().all(|byte| byte.is_ascii_hexdigit()), "{signature}");
    assert_eq!(message["content"][1], json!({"type": "text", "text": "Well"}));
    assert_eq!(message["content"][2], json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}));
    assert_eq!(message["content"][3], json!({"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}}));
    assert_eq!(message["stop_reason"], "tool_use");
}

#[test]
fn a_call_without_arguments_still_has_json() {
    let wire = wire(&events(vec![call("1"), finished(Finish::EndOfTurn)]));
    assert_eq!(wire[3].1["delta"], json!({"type": "input_json_delta", "partial_json": "{}"}));
}

#[test]
fn text_after_a_call_is_a_new_block() {
    let message = message(vec![text("a"), call("1"), text("b"), finished(Finish::EndOfTurn)]);
    let kinds: Vec<&Value> = message["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "tool_use", "text"]);
}

#[test]
fn an_answer_may_be_empty() {
    let message = message(vec![finished(Finish::EndOfTurn)]);
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!("end_turn")));
}

#[test]
fn every_end_has_its_reason() {
    let check = |reason: Finish, expected: &str, sequence: Value| {
        let message = message(vec![text("a"), finished(reason)]);
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(expected), &sequence), "{reason:?}");
    };
    check(Finish::EndOfTurn, "end_turn", json!(null));
    check(Finish::StopToken(3), "end_turn", json!(null));
    check(Finish::GrammarDone, "end_turn", json!(null));
    check(Finish::Length, "max_tokens", json!(null));
    check(Finish::ContextFull, "model_context_window_exceeded", json!(null));
    check(Finish::StopString(1), "stop_sequence", json!("STOP"));
    check(Finish::StopString(2), "end_turn", json!(null));
    let after_a_call = |reason| message(vec![call("1"), finished(reason)])["stop_reason"].clone();
    assert_eq!(after_a_call(Finish::GrammarDone), "tool_use");
    assert_eq!(after_a_call(Finish::Length), "max_tokens");
    assert_eq!(after_a_call(Finish::StopString(0)), "stop_sequence");
}

#[test]
fn truncated_arguments_become_an_empty_object() {
    let message = message(vec![call("1"), arguments(r#"{"a": "b"#), finished(Finish::Length)]);
    assert_eq!(message["content"][0]["input"], json!({}));
    assert_eq!(message["stop_reason"], "max_tokens");
}

#[test]
fn a_failure_is_the_last_event() {
    let check = |code: FailureCode, expected: &str| {
        let failure = Failure::new(code, "it went wrong").with_help("try again");
        let message = message(vec![thinking("a"), Delta::Failed(failure)]);
        let error = json!({"type": expected, "message": "it went wrong; try again"});
        assert_eq!(message, json!({"type": "error", "error": error, "request_id": "req_1"}), "{code:?}");
    };
    check(FailureCode::Busy, "overloaded_error");
    check(FailureCode::Draining, "overloaded_error");
    check(FailureCode::WorkerLost, "api_error");
    check(FailureCode::Invalid, "invalid_request_error");
    check(FailureCode::NotFound, "not_found_error");
    assert_eq!(message(vec![text("a")])["error"]["type"], "api_error");
    assert_eq!(message(vec![finished(Finish::Cancelled)])["error"]["type"], "api_error");
    assert_eq!(message(vec![finished(Finish::Deadline)])["error"]["type"], "timeout_error");
}

/// The order of events holds for any sequence of deltas.
#[test]
fn any_deltas_make_an_ordered_stream() {
    fastrand::seed(7);
    for _ in 0..2000 {
        let mut deltas: Vec<Delta> = (0..fastrand::usize(0..12))
            .map(|place| match fastrand::u8(0..7) {
                0 => text("a"),
                1 => text(""),
                2 => thinking("b"),
                3 => call(&place.to_string()),
                4 => arguments("{}"),
                5 => arguments(""),
                _ => Delta::Started { reused_tokens: 1 },
            })
            .collect();
        deltas.push(finished(Finish::EndOfTurn));
        let events = wire(&events(deltas.clone()));
        order::message(&events).unwrap_or_else(|why| panic!("{why}: {deltas:?}"));
    }
}

#[test]
fn the_order_is_really_checked() {
    let good = wire(&events(vec![text("a"), call("1"), finished(Finish::EndOfTurn)]));
    assert!(order::message(&good).is_ok());
    for place in 0..good.len() {
        let mut less = good.clone();
        let (name, _) = less.remove(place);
        let is_needed = !matches!(name.as_str(), "ping" | "content_block_delta");
        assert_eq!(order::message(&less).is_err(), is_needed, "without {name}");
        let mut twice = good.clone();
        twice.insert(place, good[place].clone());
        let may_repeat = matches!(name.as_str(), "ping" | "content_block_delta");
        assert_eq!(order::message(&twice).is_ok(), may_repeat, "{name} twice");
    }
}
