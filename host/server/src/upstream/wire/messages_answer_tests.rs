//! Streams of Messages, good and bad, as deltas.

use super::*;
use pensieve_protocol::job::FailureCode;
use serde_json::{Value, json};

fn read(events: &[Value]) -> Result<Vec<String>, Failure> {
    let expected = Expected { model: "big".into(), stops: vec!["END".into()], prompt: 5, ..Expected::default() };
    let (mut reader, mut deltas) = (MessagesReader::new(expected), Vec::new());
    let last = events.len() - 1;
    for (place, event) in events.iter().enumerate() {
        let is_last = reader.read(event.to_string().as_bytes(), &mut deltas)?;
        assert_eq!(is_last, place == last && event["type"] == "message_stop", "{event}");
    }
    deltas.push(reader.finish()?);
    Ok(deltas.iter().map(shown).collect())
}

fn shown(delta: &Delta) -> String {
    match delta {
        Delta::Text { text, .. } => format!("text {text}"),
        Delta::Thinking(text) => format!("thinking {text}"),
        Delta::ToolCall { name, .. } => format!("call {name}"),
        Delta::ToolArguments(text) => format!("arguments {text}"),
        Delta::Finished { reason, usage } => {
            format!("{reason:?} {} {} {}", usage.prompt, usage.reused, usage.generated)
        }
        other => format!("{other:?}"),
    }
}

fn start(usage: Value) -> Value {
    json!({"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": usage}})
}

fn block(block: Value) -> Value {
    json!({"type": "content_block_start", "index": 0, "content_block": block})
}

fn delta(delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": 0, "delta": delta})
}

fn end(reason: &str, tokens: u64) -> [Value; 2] {
    let delta = json!({"stop_reason": reason, "stop_sequence": "END"});
    [
        json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens}}),
        json!({"type": "message_stop"}),
    ]
}

#[test]
fn text_reasoning_calls_and_cached_usage_come_through() {
    let usage =
        json!({"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output_tokens": 1});
    let look = |id: &str| block(json!({"type": "tool_use", "id": id, "name": "look", "input": {}}));
    let [stop, over] = end("tool_use", 9);
    let events = [
        start(usage),
        json!({"type": "ping"}),
        block(json!({"type": "thinking", "thinking": ""})),
        delta(json!({"type": "thinking_delta", "thinking": "hm"})),
        delta(json!({"type": "signature_delta", "signature": "x"})),
        block(json!({"type": "text", "text": ""})),
        delta(json!({"type": "text_delta", "text": ""})),
        delta(json!({"type": "text_delta", "text": "Hel"})),
        delta(json!({"type": "text_delta", "text": "lo"})),
        look("a"),
        delta(json!({"type": "input_json_delta", "partial_json": ""})),
        delta(json!({"type": "input_json_delta", "partial_json": "{\"at\":"})),
        delta(json!({"type": "input_json_delta", "partial_json": "1}"})),
        look("b"),
        delta(json!({"type": "input_json_delta", "partial_json": "{}"})),
        stop,
        over,
    ];
    let expected = [
        "thinking hm",
        "text Hel",
        "text lo",
        "call look",
        "arguments {\"at\":",
        "arguments 1}",
        "call look",
        "arguments {}",
        "EndOfTurn 50 40 9",
    ];
    assert_eq!(read(&events).unwrap(), expected);
}

#[test]
fn an_answer_ends_for_the_reason_that_the_server_gives() {
    let check = |reason: &str, expected: &str| {
        let [stop, over] = end(reason, 2);
        assert_eq!(read(&[start(json!({"input_tokens": 4})), stop, over]).unwrap(), [expected]);
    };
    check("end_turn", "EndOfTurn 4 0 2");
    check("max_tokens", "Length 4 0 2");
    check("stop_sequence", "StopString(0) 4 0 2");
    check("model_context_window_exceeded", "ContextFull 4 0 2");
    check("refusal", "Refused 4 0 2");
    check("pause_turn", "Paused 4 0 2");
}

#[test]
fn what_is_no_answer_is_an_error() {
    let error = |events: &[Value]| read(events).unwrap_err();
    let text = delta(json!({"type": "text_delta", "text": "a"}));
    let cut = error(std::slice::from_ref(&text));
    assert_eq!(cut.message, "the upstream of model 'big' broke off in the middle of its answer");
    let busy = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let said = error(&[text, busy]);
    assert_eq!((said.is_private, said.message.as_str()), (true, "the upstream of model 'big' broke off: Overloaded"));
    let long = json!({"type": "error", "error": {"message": "prompt is too long: 9 tokens > 8 maximum"}});
    assert_eq!(error(&[long]).code, FailureCode::TooLong);
    let nameless = block(json!({"type": "tool_use", "id": "a"}));
    assert!(error(&[nameless]).message.contains("without a name"));
    let many: Vec<Value> = (0..=BLOCKS_MAX).map(|_| block(json!({"type": "text"}))).collect();
    assert!(error(&many).message.contains("too many blocks"));
    for nonsense in [&b"<html>"[..], b"[1]", b"{\"type\":7}", b"\xff"] {
        let mut reader = MessagesReader::new(Expected::default());
        assert_eq!(reader.read(nonsense, &mut Vec::new()).unwrap_err().code, FailureCode::Unreachable);
    }
}
