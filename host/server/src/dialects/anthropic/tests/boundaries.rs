//! Every number and list at the limits of its range, and invalid bodies.

use serde_json::{Value, json};

use super::{body, message, read};
use crate::dialects::anthropic::envelope;

/// Asserts that some values of a field are accepted, and others are refused with the field's name.
fn check(path: &str, good: &[Value], bad: &[Value]) {
    let fields = |value: &Value| {
        let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let inner = match rest {
            None => value.clone(),
            Some(name) if first == "thinking" => json!({"type": "enabled", name: value}),
            Some("adapter_scale") => json!({"adapter": "a", "adapter_scale": value}),
            Some(name) => json!({ name: value }),
        };
        json!({ first: inner })
    };
    for value in good {
        assert!(read(&fields(value)).is_ok(), "{path} = {value}: {:?}", read(&fields(value)));
    }
    for value in bad {
        let problem = read(&fields(value)).err().unwrap_or_else(|| panic!("{path} = {value} is taken"));
        let field = problem.field.as_deref().unwrap_or_default();
        assert!(field == path || field.starts_with(&format!("{path}.")), "{path} = {value}: {}", problem.message);
        let (status, body) = envelope(&problem, "req_1");
        let body: Value = serde_json::from_slice(&body).unwrap();
        let error = json!({"type": "invalid_request_error", "message": problem.message});
        assert_eq!((status, body), (400, json!({"type": "error", "error": error, "request_id": "req_1"})));
    }
}

#[test]
fn numbers_are_accepted_within_their_range_only() {
    let huge = json!(1e300);
    let wrong = [json!("1"), json!(true), json!([1]), json!({"a": 1})];
    let with_wrong = |bad: &[Value]| [bad, &wrong].concat();
    let most = json!(u64::MAX);
    check(
        "max_tokens",
        &[json!(1), json!(4.0), most.clone(), huge.clone()],
        &with_wrong(&[json!(0), json!(-1), json!(0.5), json!(-1e300), json!(null)]),
    );
    check(
        "temperature",
        &[json!(0), json!(0.0), json!(1), json!(1e-300), json!(-0.0), json!(null)],
        &with_wrong(&[json!(-1), json!(1.001), json!(2), most.clone(), huge.clone(), json!(-1e300)]),
    );
    check(
        "top_p",
        &[json!(0), json!(1), json!(1.0), json!(0.3), json!(null)],
        &with_wrong(&[json!(-1), json!(1.001), json!(2), huge.clone()]),
    );
    check(
        "top_k",
        &[json!(0), json!(1), most, huge.clone(), json!(null)],
        &with_wrong(&[json!(-1), json!(0.5), json!(-1e300)]),
    );
    check(
        "thinking.budget_tokens",
        &[json!(1), json!(1024), huge.clone()],
        &with_wrong(&[json!(0), json!(-1), json!(null)]),
    );
    check(
        "pensieve.seed",
        &[json!(0), json!(-1), json!(u64::MAX), json!(i64::MIN), json!(null)],
        &with_wrong(&[json!(0.5), huge.clone()]),
    );
    check(
        "pensieve.adapter_scale",
        &[json!(0), json!(-1), json!(16), json!(-16), json!(null)],
        &with_wrong(&[json!(16.01), json!(17), huge]),
    );
}

#[test]
fn lists_are_accepted_up_to_their_limit_only() {
    let stops = |count: usize| json!(vec!["a"; count]);
    check(
        "stop_sequences",
        &[stops(0), stops(1), stops(32), json!(["x".repeat(1024)]), json!(null), json!([" "])],
        &[stops(33), json!("a"), json!({}), json!([""]), json!([1]), json!([null]), json!(["x".repeat(1025)])],
    );
    let samplers = |count: usize| json!(vec!["a"; count]);
    check("pensieve.samplers", &[samplers(0), samplers(32), json!(null)], &[samplers(33), json!("a"), json!([[]])]);
    let schema = |len: usize| json!({"json_schema": {"type": "object", "description": "x".repeat(len)}});
    check("pensieve.grammar", &[schema(1), schema(500_000)], &[schema(600_000), json!({}), json!([]), json!("a")]);
    check("model", &[json!("a"), json!("x".repeat(256))], &[json!(""), json!("x".repeat(257)), json!(null), json!(1)]);
    check("metadata.user_id", &[json!("a"), json!(null)], &[json!(1), json!("x".repeat(20_000))]);
    check("metadata", &[json!({}), json!({"a": 1})], &[json!(1), json!([])]);
    check("stream", &[json!(true), json!(false), json!(null)], &[json!(0), json!("true")]);
}

#[test]
fn a_body_that_is_no_request_is_refused_at_once() {
    let deep = |depth: usize| {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let body = String::from_utf8(body(&json!({"metadata": {"x": "DEEP"}}))).unwrap();
        body.replace("\"DEEP\"", &text).into_bytes()
    };
    assert!(message(&deep(100)).is_ok());
    let huge = [b"{\"messages\":[".to_vec(), b"[],".repeat(2_000_000)].concat();
    let nested = String::from_utf8(body(&json!({"temperature": "NAN"}))).unwrap();
    let bodies: [Vec<u8>; 12] = [
        Vec::new(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"\"a\"".to_vec(),
        b"{}".to_vec(),
        b"\xff\xfe{}".to_vec(),
        deep(200),
        deep(1_000_000),
        huge,
        nested.replace("\"NAN\"", "NaN").into_bytes(),
        nested.replace("\"NAN\"", "1e999").into_bytes(),
    ];
    for body in bodies {
        let begin = std::time::Instant::now();
        let problem = message(&body).unwrap_err();
        let (status, _) = envelope(&problem, "");
        let head = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!(status, 400, "{head}");
        assert!(begin.elapsed().as_millis() < 500, "{head}: {:?}", begin.elapsed());
    }
}
