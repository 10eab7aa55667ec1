//! Streams of chat completions, good and bad, as deltas.

use super::*;
use pensieve_protocol::job::FailureCode;
use serde_json::{Value, json};

fn expected() -> Expected {
    Expected {
        model: "big".into(),
        stops: vec!["END".into(), "X".into()],
        logprobs: true,
        prompt: 5,
        ..Expected::default()
    }
}

/// The deltas of an answer that comes in these chunks.
fn read(chunks: &[Value]) -> Result<Vec<Delta>, Failure> {
    let (mut reader, mut deltas) = (ChatReader::new(expected()), Vec::new());
    for chunk in chunks {
        assert!(!reader.read(chunk.to_string().as_bytes(), &mut deltas)?);
    }
    assert!(reader.read(b"[DONE]", &mut deltas)?);
    deltas.push(reader.finish()?);
    Ok(deltas)
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// The deltas without ids, which are random.
fn shown(deltas: &[Delta]) -> Vec<String> {
    let show = |delta: &Delta| match delta {
        Delta::Text { text, .. } => format!("text {text}"),
        Delta::Thinking(text) => format!("thinking {text}"),
        Delta::ToolCall { id, name } => {
            assert!(id.len() == 24 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            format!("call {name}")
        }
        Delta::ToolArguments(text) => format!("arguments {text}"),
        Delta::Finished { reason, usage } => {
            format!("{reason:?} {} {} {}", usage.prompt, usage.reused, usage.generated)
        }
        other => format!("{other:?}"),
    };
    deltas.iter().map(show).collect()
}

#[test]
fn text_reasoning_and_usage_come_through() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47,
        "prompt_tokens_details": {"cached_tokens": 32}}});
    let chunks = [
        delta(json!({"role": "assistant", "content": null})),
        delta(json!({"reasoning_content": "hm"})),
        delta(json!({"reasoning": "so"})),
        delta(json!({"content": "Hel"})),
        delta(json!({"content": "lo"})),
        end("stop"),
        usage,
    ];
    let expected = ["thinking hm", "thinking so", "text Hel", "text lo", "EndOfTurn 40 32 7"];
    assert_eq!(shown(&read(&chunks).unwrap()), expected);
    let timed = json!({"choices": [{"delta": {}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2}, "timings": {"cache_n": 8}});
    assert_eq!(shown(&read(&[timed]).unwrap()), ["Length 10 8 2"], "llama.cpp counts its cache apart");
    assert_eq!(shown(&read(&[delta(json!({"content": "a"})), end("stop")]).unwrap())[1], "EndOfTurn 5 0 1");
    let odd = json!({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10.0, "completion_tokens": 2}, "timings": {"cache_n": -1}});
    assert_eq!(shown(&read(&[odd]).unwrap()), ["text a", "EndOfTurn 10 0 2"], "pieces, and numbers of another kind");
}

#[test]
fn calls_come_one_after_the_other() {
    let call = |index: u64, name: Option<&str>, arguments: &str| {
        delta(json!({"tool_calls": [{"index": index, "id": "c", "function": {"name": name, "arguments": arguments}}]}))
    };
    let chunks = [
        call(0, Some("f"), ""),
        call(0, None, "{\"a\""),
        call(0, Some(""), ":1}"),
        call(1, Some("g"), "{}"),
        end("tool_calls"),
    ];
    let expected = ["call f", "arguments {\"a\"", "arguments :1}", "call g", "arguments {}", "EndOfTurn 5 0 5"];
    assert_eq!(shown(&read(&chunks).unwrap()), expected);
    let whole = delta(json!({"tool_calls": [
        {"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g", "arguments": "{}"}}]}));
    let expected = ["call f", "arguments {}", "call g", "arguments {}", "EndOfTurn 5 0 4"];
    assert_eq!(shown(&read(&[whole, end("tool_calls")]).unwrap()), expected, "without indices");
    let whole = |id: &str, name: &str| {
        let function = json!({"name": name, "arguments": "{}"});
        delta(json!({"tool_calls": [{"index": 0, "id": id, "function": function}]}))
    };
    assert_eq!(shown(&read(&[whole("x", "f"), whole("y", "f"), end("tool_calls")]).unwrap()).len(), 5, "by their ids");
    assert_eq!(shown(&read(&[whole("x", "f"), whole("x", "f"), end("tool_calls")]).unwrap())[1..].len(), 3, "one call");
    for wrong in [vec![call(0, None, "{}")], vec![call(0, Some("f"), ""), call(1, Some("g"), ""), call(0, None, "x")]] {
        assert_eq!(read(&wrong).unwrap_err().code, FailureCode::Unreachable);
    }
}

#[test]
fn the_clients_stop_strings_are_found_again() {
    let stopped = |extra: Value| {
        let mut chunk = end("stop");
        extra.as_object().unwrap().iter().for_each(|(name, value)| chunk["choices"][0][name] = value.clone());
        shown(&read(&[chunk]).unwrap())[0].clone()
    };
    assert_eq!(stopped(json!({"stop_reason": "X"})), "StopString(1) 5 0 0");
    assert_eq!(stopped(json!({"matched_stop": "END"})), "StopString(0) 5 0 0");
    assert_eq!(stopped(json!({"stop_reason": 128_009})), "EndOfTurn 5 0 0");
    assert_eq!(stopped(json!({"stop_reason": null})), "EndOfTurn 5 0 0");
}

#[test]
fn an_answer_ends_for_the_reason_that_the_server_gives() {
    let check = |reason: &str, expected: &str| assert_eq!(shown(&read(&[end(reason)]).unwrap()), [expected]);
    check("stop", "EndOfTurn 5 0 0");
    check("length", "Length 5 0 0");
    check("model_length", "ContextFull 5 0 0");
    check("content_filter", "Refused 5 0 0");
    for reason in ["abort", "error", "insufficient_system_resource"] {
        assert_eq!(read(&[end(reason)]).unwrap_err().code, FailureCode::Unreachable, "{reason}");
    }
}

#[test]
fn log_probabilities_have_the_tokens_bytes() {
    let content = json!([{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -0.5, "bytes": null}, {"token": "b", "logprob": -1.5}]}]);
    let chunk = json!({"choices": [{"delta": {"content": "a"}, "logprobs": {"content": content}}]});
    let old = json!({"choices": [{"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [null, -0.25],
        "top_logprobs": [null, {"c": -3.0, "b": -0.25}]}}]});
    let of = |chunk: Value| {
        let Delta::Text { logprobs, .. } = read(&[chunk, end("stop")]).unwrap().remove(0) else { panic!("text") };
        let one = |token: &TokenLogprob| (String::from_utf8(token.bytes.clone()).unwrap(), token.logprob);
        logprobs.iter().map(|token| (one(token), token.top.iter().map(one).collect())).collect::<Vec<(_, Vec<_>)>>()
    };
    let named = |name: &str, number: f32| (name.to_owned(), number);
    assert_eq!(of(chunk), [(named("a", -0.5), vec![named("a", -0.5), named("b", -1.5)])]);
    let expected = [(named("a", 0.0), vec![]), (named("b", -0.25), vec![named("b", -0.25), named("c", -3.0)])];
    assert_eq!(of(old), expected);
}

#[test]
fn of_long_lists_little_is_kept() {
    let chunk = |choices: &str| format!("{{\"choices\":[{choices}]}}");
    let read = |chunk: &str, logprobs| {
        let mut deltas = Vec::new();
        let mut reader = ChatReader::new(Expected { logprobs, ..expected() });
        reader.read(chunk.as_bytes(), &mut deltas).map(|_| deltas)
    };
    let many = chunk(&format!("{{\"text\":\"a\"}}{}", ",{}".repeat(1 << 20)));
    assert_eq!(shown(&read(&many, false).unwrap()), ["text a"], "the first choice alone");
    let tokens = format!("{{\"text\":\"a\",\"logprobs\":{{\"content\":[{{}}{}]}}}}", ",{}".repeat(1 << 20));
    assert_eq!(shown(&read(&chunk(&tokens), false).unwrap()), ["text a"], "not asked for");
    assert_eq!(read(&chunk(&tokens), true).unwrap_err().code, FailureCode::Unreachable);
    let top = format!("{{\"content\":[{{\"top_logprobs\":[{{}}{}]}}]}}", ",{}".repeat(1000));
    let kept = read(&chunk(&format!("{{\"logprobs\":{top}}}")), true).unwrap();
    let [Delta::Text { logprobs, .. }] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((logprobs.len(), logprobs[0].top.len()), (1, TOP_MAX));
    let error = read(&format!("{{\"error\":[{}0]}}", "[],".repeat(1 << 20)), false).unwrap_err();
    assert_eq!(error.code, FailureCode::Unreachable);
}

#[test]
fn what_is_no_answer_is_an_error() {
    let error = |chunks: &[Value]| read(chunks).unwrap_err();
    let cut = error(&[delta(json!({"content": "a"}))]);
    assert_eq!(cut.message, "the upstream of model 'big' broke off in the middle of its answer");
    let said = error(&[json!({"error": {"message": "the KV cache is full", "code": 500}})]);
    assert_eq!(said.message, "the upstream of model 'big' broke off: the KV cache is full");
    let long = error(&[json!({"error": {"message": "maximum context length is 8 tokens"}})]);
    assert_eq!(long.code, FailureCode::TooLong);
    for nonsense in [&b"<html>"[..], b"[1]", b"{\"choices\":7}", b"\xff"] {
        let read = ChatReader::new(expected()).read(nonsense, &mut Vec::new());
        assert_eq!(read.unwrap_err().code, FailureCode::Unreachable);
    }
    let deep = format!("{{\"choices\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(ChatReader::new(expected()).read(deep.as_bytes(), &mut Vec::new()).is_err());
    let calls: Vec<Value> = (0..300).map(|index| json!({"index": index, "function": {"name": "f"}})).collect();
    assert!(error(&[delta(json!({"tool_calls": calls}))]).message.contains("too many tools"));
}
