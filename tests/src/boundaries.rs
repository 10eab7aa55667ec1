//! Every number and every list that a client may send, at the edges of its range and beyond, and bodies that are none, over a
//! real socket: what is right is answered, and what is wrong is a 400 in the API's own envelope with the name of its field,
//! within 50 ms, streamed or not.

use serde_json::{Value, json};
use std::{path::Path, time::Duration};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post, request, soon},
        server::{Options, Server},
    },
    scripted,
};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// A route, a body that it takes, and the fields that it reads.
struct Route {
    path: &'static str,
    body: Value,
    fields: Vec<Field>,
}

/// A field by its path, what it needs beside it, and what it takes and does not.
struct Field {
    path: &'static str,
    beside: Value,
    good: Vec<Value>,
    bad: Vec<Value>,
}

impl Field {
    fn new(path: &'static str, good: Vec<Value>, bad: Vec<Value>) -> Self {
        Self { path, beside: json!({}), good, bad }
    }

    fn beside(self, beside: Value) -> Self {
        Self { beside, ..self }
    }

    /// What must be there.
    fn required(mut self) -> Self {
        self.good.retain(|value| !value.is_null());
        self.bad.push(Value::Null);
        self
    }

    /// Where what is right needs what this server does not have.
    fn only_bad(self) -> Self {
        Self { good: Vec::new(), ..self }
    }

    fn body(&self, route: &Route, value: &Value) -> Value {
        let mut body = route.body.clone();
        body.as_object_mut().unwrap().extend(self.beside.as_object().unwrap().clone());
        let mut place = &mut body;
        for name in self.path.split('.') {
            place = &mut place[name];
        }
        *place = value.clone();
        body
    }
}

/// What is no number.
fn no_numbers() -> Vec<Value> {
    ["1", "NaN", "Infinity", "-0", ""]
        .map(Value::from)
        .into_iter()
        .chain([json!(true), json!([1]), json!({"a": 1})])
        .collect()
}

fn number(path: &'static str, min: f64, max: f64) -> Field {
    let bad = [json!(min - 0.01), json!(max + 0.01), json!(-1e300), json!(1e300), json!(u64::MAX), json!(i64::MIN)];
    Field::new(path, vec![json!(min), json!(max), json!(1e-300), Value::Null], [bad.to_vec(), no_numbers()].concat())
}

fn integer(path: &'static str, min: i64, max: i64) -> Field {
    let bad = [json!(min - 1), json!(max + 1), json!(1.5), json!(-1e300), json!(1e300), json!(u64::MAX)];
    Field::new(path, vec![json!(min), json!(max), Value::Null], [bad.to_vec(), no_numbers()].concat())
}

/// A number of things, of which more than there can be is as many as there can be.
fn count(path: &'static str, min: u32) -> Field {
    let bad = [json!(i64::from(min) - 1), json!(-1), json!(0.5), json!(-1e300), json!(i64::MIN)];
    let good = vec![json!(min), json!(u32::MAX), json!(u64::MAX), json!(1e300), Value::Null];
    Field::new(path, good, [bad.to_vec(), no_numbers()].concat())
}

fn seed(path: &'static str) -> Field {
    let good = vec![json!(0), json!(-1), json!(i64::MIN), json!(u64::MAX), Value::Null];
    Field::new(path, good, [vec![json!(0.5), json!(1e300)], no_numbers()].concat())
}

fn flag(path: &'static str) -> Field {
    Field::new(path, vec![json!(false), Value::Null], vec![json!(0), json!("true"), json!([]), json!({})])
}

fn text(path: &'static str, bytes_max: usize) -> Field {
    let bad = vec![json!(""), json!("x".repeat(bytes_max + 1)), json!(1), json!(true), json!([]), json!({})];
    Field::new(path, vec![json!("x"), json!("x".repeat(bytes_max))], bad)
}

/// A text that must be there, longer than any table's.
fn words(path: &'static str) -> Field {
    let bad = vec![json!(""), json!(1), json!(true), json!(["a"]), json!({})];
    Field::new(path, vec![json!("x"), json!("x".repeat(10_000))], bad).required()
}

/// A list of so many such items, none of which may be among the wrong ones.
fn list(path: &'static str, max: usize, item: impl Fn(usize) -> Value, wrong: &[Value]) -> Field {
    let of = |count: usize| Value::Array((0..count).map(&item).collect());
    let mut bad = vec![of(max + 1), json!(1), json!({"a": 1}), json!(true)];
    bad.extend(wrong.iter().map(|wrong| json!([item(0), wrong])));
    Field::new(path, vec![of(1), of(max)], bad)
}

fn stops(path: &'static str, max: usize) -> Field {
    list(
        path,
        max,
        |place| json!(format!("stop {place}")),
        &[json!(""), json!("x".repeat(1025)), json!(1), json!(null), json!([])],
    )
}

/// What every dialect reads alike.
fn extras() -> Vec<Field> {
    let samplers = |place: usize| if place == 0 { json!({"sampler": "top_k", "k": 3}) } else { json!("greedy") };
    let wrong =
        [json!(1), json!(""), json!({}), json!("no-such-sampler"), json!({"sampler": "x".repeat(129)}), json!([])];
    let wrong_grammars = vec![
        json!({}),
        json!([]),
        json!("a"),
        json!({"gbnf": "a"}),
        json!({"regex": 1}),
        json!({"regex": "a", "lark": "b"}),
        json!({"lark": "x".repeat(70_000)}),
    ];
    vec![
        list("pensieve.samplers", 32, samplers, &wrong),
        seed("pensieve.seed"),
        number("pensieve.adapter_scale", -16.0, 16.0).beside(json!({"pensieve": {"adapter": "a"}})).only_bad(),
        text("pensieve.adapter", 128).only_bad(),
        Field::new("pensieve.grammar", vec![json!({"regex": "[a-z]+"}), Value::Null], wrong_grammars),
        Field::new(
            "pensieve",
            vec![json!({}), Value::Null],
            vec![json!(1), json!([]), json!("a"), json!({"unknown": 1}), json!({"template": 1})],
        ),
    ]
}

fn routes() -> Vec<Route> {
    let hello = json!([{"role": "user", "content": "hello"}]);
    let messages = json!({"model": "scripted", "max_tokens": 1, "messages": hello});
    let tool = |place: usize| json!({"name": format!("t{place}"), "input_schema": {"type": "object"}});
    let wrong_tools = [
        json!(1),
        json!({}),
        json!({"name": "a b", "input_schema": {}}),
        json!({"name": "t0", "input_schema": {}}),
        json!({"name": "a", "input_schema": []}),
        json!({"type": "bash_20250124", "name": "bash"}),
    ];
    let wrong_messages = [
        json!(1),
        json!({}),
        json!({"role": "robot", "content": "a"}),
        json!({"role": "user", "content": 1}),
        json!({"role": "user"}),
        json!({"role": "user", "content": [{"type": "image"}]}),
    ];
    let conversation = || {
        vec![
            text("model", 256).required(),
            number("temperature", 0.0, 1.0),
            number("top_p", 0.0, 1.0),
            count("top_k", 0),
            count("thinking.budget_tokens", 1).beside(json!({"thinking": {"type": "enabled"}})).required(),
            stops("stop_sequences", 32),
            list("tools", 512, tool, &wrong_tools),
            Field::new(
                "tool_choice",
                vec![json!({"type": "auto"}), Value::Null],
                vec![json!("auto"), json!({}), json!({"type": "any"}), json!({"type": "tool", "name": "a"})],
            ),
            list("messages", 40, |_| hello[0].clone(), &wrong_messages).required(),
            Field::new(
                "system",
                vec![json!(""), json!([]), json!("a"), json!([{"type": "text", "text": "a"}]), Value::Null],
                vec![json!(1), json!({}), json!([1]), json!([{"type": "text"}]), json!([{"type": "image"}])],
            ),
            Field::new(
                "metadata",
                vec![json!({}), json!({"user_id": "a"})],
                vec![json!(1), json!([]), json!({"user_id": 1}), json!({"user_id": "x".repeat(20_000)})],
            ),
            Field::new(
                "output_config",
                vec![json!({}), json!({"effort": "low"})],
                vec![json!(1), json!({"effort": 1}), json!({"format": 1}), json!({"format": {"type": "json_schema"}})],
            ),
        ]
    };
    // A list of messages has no end that a table could reach, and so many tools take their time where a model is asked.
    let conversation = || {
        conversation().into_iter().map(|mut field| {
            if field.path == "messages" {
                field.bad.remove(0);
            }
            field
        })
    };
    let asked = || {
        conversation().map(|mut field| {
            if field.path == "tools" {
                field.good.truncate(1);
            }
            field
        })
    };
    let streams = || [count("max_tokens", 1).required(), flag("stream")];
    let chat_tool = |place: usize| json!({"type": "function", "function": {"name": format!("t{place}")}});
    let biases = |count: usize| Value::Object((0..count).map(|id| (id.to_string(), json!(1))).collect());
    let openai = || {
        vec![
            text("model", 256).required(),
            number("temperature", 0.0, 2.0),
            number("top_p", 0.0, 1.0),
            number("presence_penalty", -2.0, 2.0),
            number("frequency_penalty", -2.0, 2.0),
            integer("n", 1, 8),
            count("max_tokens", 1).beside(json!({"stop": ["t"]})),
            seed("seed"),
            stops("stop", 4),
            Field::new(
                "logit_bias",
                vec![biases(1024), json!({"2047": -100}), json!({"5": 100.0}), Value::Null],
                vec![
                    biases(1025),
                    json!({"2048": 1}),
                    json!({"4294967296": 1}),
                    json!({"-1": 1}),
                    json!({"x": 1}),
                    json!({"5": 100.5}),
                    json!({"5": "1"}),
                    json!({"5": null}),
                    json!([5]),
                    json!(1),
                ],
            ),
            flag("stream"),
            Field::new(
                "stream_options",
                vec![json!({"include_usage": true})],
                vec![json!(1), json!([]), json!({"include_usage": 1})],
            )
            .beside(json!({"stream": true})),
        ]
    };
    let chat = vec![
        count("max_completion_tokens", 1),
        integer("top_logprobs", 0, 20).beside(json!({"logprobs": true})),
        flag("logprobs"),
        flag("parallel_tool_calls"),
        list(
            "tools",
            128,
            chat_tool,
            &[
                json!(1),
                json!({}),
                json!({"type": "function"}),
                json!({"type": "code"}),
                json!({"type": "function", "function": {"name": "a b"}}),
            ],
        )
        .only_bad(),
        Field::new(
            "response_format",
            vec![json!({"type": "text"})],
            vec![json!("json"), json!({}), json!({"type": "xml"}), json!({"type": "json_schema"})],
        ),
        Field::new("reasoning_effort", vec![json!("low")], vec![json!("huge"), json!(1)]),
        Field::new(
            "messages",
            vec![hello.clone()],
            [
                wrong_messages.iter().map(|wrong| json!([wrong])).collect(),
                vec![Value::Null, json!([]), json!(1), json!({}), json!("a")],
            ]
            .concat(),
        ),
    ];
    let legacy = vec![
        integer("logprobs", 0, 5),
        integer("best_of", 1, 8),
        flag("echo"),
        list("prompt", 64, |_| json!("hello"), &[json!(1), json!(null), json!({})]).required(),
        Field::new(
            "prompt",
            vec![json!([1, 2047]), json!([[1], [2]])],
            vec![
                json!([1, 2048]),
                json!([u64::MAX]),
                json!([-1]),
                json!([1.5]),
                json!([[1], [2048]]),
                json!([]),
                json!([[]]),
            ],
        ),
    ];
    let plain = || {
        vec![
            text("model", 256),
            count("max_tokens", 1).beside(json!({"stop": ["t"]})),
            number("temperature", 0.0, 2.0),
            number("top_p", 0.0, 1.0),
            count("top_k", 0),
            Field { good: vec![json!(0.01), json!(100)], ..number("repetition_penalty", 0.01, 100.0) },
            seed("seed"),
            stops("stop", 16),
        ]
    };
    let route = |path, body: Value, fields: Vec<Vec<Field>>| Route {
        path,
        body,
        fields: fields.into_iter().flatten().collect(),
    };
    vec![
        route("/v1/messages", messages.clone(), vec![asked().collect(), streams().into(), extras()]),
        route("/v1/messages/stream", messages.clone(), vec![asked().collect(), streams().into()]),
        route(
            "/v1/messages/count_tokens",
            json!({"model": "scripted", "messages": hello}),
            vec![conversation().collect()],
        ),
        route("/v1/chat/completions", messages.clone(), vec![openai(), chat, extras()]),
        route(
            "/v1/completions",
            json!({"model": "scripted", "prompt": "hello", "max_tokens": 1}),
            vec![openai(), legacy, extras()],
        ),
        route(
            "/token_stream",
            json!({"query": "hello", "max_tokens": 1}),
            vec![plain(), vec![words("query")], extras()],
        ),
        route("/execute", json!({"prompt": "hello", "max_tokens": 1}), vec![plain(), vec![words("prompt")], extras()]),
    ]
}

fn serve(root: &Path) -> Server {
    let source = root.join("scripted");
    scripted::checkpoint(&source, &[("", "What?")]);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    // The first request loads the model.
    let ready = post(server.address, "/execute", &json!({"prompt": "hello", "max_tokens": 1}));
    assert_eq!(ready.status(), 200, "{ready:?}");
    server
}

/// What is wrong with a refusal, if anything is.
fn misfit(reply: &Reply, path: &str, field: Option<&str>) -> Option<String> {
    let is_openai = path.ends_with("/completions");
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else { return Some("no JSON".into()) };
    let error = &body["error"];
    let names = |text: &Value, field: &str| {
        let rest = text.as_str().and_then(|text| text.strip_prefix(field));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ':']))
    };
    let checks = [
        (reply.status() == 400, "the status is not 400"),
        (error["type"] == "invalid_request_error", "the type is wrong"),
        (error["message"].as_str().is_some_and(|message| !message.is_empty()), "there is no message"),
        (is_openai || body["type"] == "error", "it is not in Anthropic's envelope"),
        (!is_openai || error.get("code").is_some(), "it is not in OpenAI's envelope"),
        (body["request_id"].as_str() == reply.header("request-id"), "the id is another one"),
        (field.is_none_or(|field| names(&error["message"], field)), "the message does not begin with the field"),
        (!is_openai || field.is_none_or(|field| names(&error["param"], field)), "the param is not the field"),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|(_, what)| format!("{what}: {reply:?}"))
}

fn short(body: &Value) -> String {
    body.to_string().chars().take(300).collect()
}

#[test]
fn every_field_is_taken_up_to_its_edges_and_refused_by_name_beyond_them() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for route in routes() {
        for field in &route.fields {
            for value in &field.good {
                let reply = post(server.address, route.path, &field.body(&route, value));
                let broke_off = reply.text().contains("event: error");
                if reply.status() != 200 || broke_off {
                    let body = short(&field.body(&route, value));
                    wrong.push(format!("{} {body} is refused: {reply:?}", route.path));
                }
                asked += 1;
            }
            for value in &field.bad {
                let body = field.body(&route, value);
                let reply = soon(|| post(server.address, route.path, &body));
                let misfit = misfit(&reply, route.path, Some(field.path));
                wrong.extend(misfit.map(|what| format!("{} {}: {what}", route.path, short(&body))));
                asked += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {asked} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(asked > 1000, "{asked}");
}

#[test]
fn numbers_that_json_does_not_have_are_refused_wherever_they_stand() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    for route in routes() {
        for field in route.fields.iter().filter(|field| field.bad.contains(&json!("NaN"))) {
            let body = field.body(&route, &json!("HERE")).to_string();
            for number in ["NaN", "1e400", "-1e400", "Infinity", "01", "1.", ".5", "+1", "0x1", "--1"] {
                let body = body.replace("\"HERE\"", number);
                let reply = soon(|| request(server.address, "POST", route.path, &JSON, body.as_bytes()));
                assert_eq!(misfit(&reply, route.path, None), None, "{} {body}", route.path);
            }
        }
    }
}

#[test]
fn what_is_no_request_is_refused_on_every_route() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let deep = |depth: usize| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth)).into_bytes();
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"{}{}".to_vec(),
        b"[]".to_vec(),
        b"null".to_vec(),
        b"1".to_vec(),
        b"\"a\"".to_vec(),
        b"{}".to_vec(),
        b"{'a': 1}".to_vec(),
        b"{\"a\": 1,}".to_vec(),
        b"{\"a\": \"\xff\"}".to_vec(),
        b"\xff\xfe{\0}\0".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        b"{\"a\": \"\\ud800\"}".to_vec(),
        b"{\"a\": \"\n\"}".to_vec(),
        b"{\"\0\": 1}".to_vec(),
        deep(200),
        deep(10_000),
        format!("{{\"a\":{}", "{\"a\":".repeat(100_000)).into_bytes(),
        b"\0".repeat(100_000),
    ];
    for route in routes() {
        for body in &bodies {
            let reply = soon(|| request(server.address, "POST", route.path, &JSON, body));
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(misfit(&reply, route.path, None), None, "{} {shown:?}", route.path);
        }
        // What is new, or another's, is no reason to refuse.
        let mut body = route.body.clone();
        body["from_the_future"] = json!({"a": [null, {"b": 1e300}]});
        body["context_management"] = json!({"edits": []});
        let reply = post(server.address, route.path, &body);
        assert_eq!(reply.status(), 200, "{}: {reply:?}", route.path);
    }
}

#[test]
fn lists_that_are_far_too_long_are_refused_soon_enough() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let message = json!({"role": "user", "content": "a"});
    for (path, most) in
        [("/v1/messages", 100_000), ("/v1/messages/count_tokens", 100_000), ("/v1/chat/completions", 10_000)]
    {
        let body = json!({"model": "scripted", "max_tokens": 1, "messages": vec![message.clone(); most + 1]});
        let reply = post(server.address, path, &body);
        assert_eq!(misfit(&reply, path, Some("messages")), None);
    }
    let many = format!("{{\"model\":\"scripted\",\"messages\":[{}1]}}", "1,".repeat(1_000_000));
    for route in routes() {
        let began = std::time::Instant::now();
        let reply = request(server.address, "POST", route.path, &JSON, many.as_bytes());
        assert_eq!(misfit(&reply, route.path, None), None, "{}", route.path);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

#[test]
fn a_sampler_that_is_not_there_is_a_status_even_for_a_stream() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    for route in routes().iter().filter(|route| !route.path.ends_with("/count_tokens")) {
        let mut body = route.body.clone();
        body["stream"] = true.into();
        body["pensieve"] = json!({"samplers": ["top_k", {"sampler": "no-such", "k": 1}]});
        let reply = soon(|| post(server.address, route.path, &body));
        assert_eq!(misfit(&reply, route.path, Some("pensieve.samplers.1")), None, "{}", route.path);
        let text = reply.text();
        assert!(text.contains("no sampler is called 'no-such'") && text.contains("top_k, typical"), "{text}");
    }
}
