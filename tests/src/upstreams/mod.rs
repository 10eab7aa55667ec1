//! Models that other servers compute: every API works on them, bad servers harm no other request, and one of several may die.

mod changes;
mod crowd;
mod failover;
mod fake;
mod hostile;
mod local;
mod overhead;
mod pensieve;
mod replicas;
mod tls;

use serde_json::{Value, json};
use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use crate::http::{
    client::{Connection, Incoming, Reply, post, request},
    server::{Options, Server},
};
use fake::{Behaviour, Fake, end, hello, response, text};

/// The APIs, each with a path and a body that asks for an answer.
const APIS: [(&str, &str, &str); 6] = [
    (
        "messages",
        "/v1/messages",
        r#"{"model": "big", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}"#,
    ),
    ("chat", "/v1/chat/completions", r#"{"model": "big", "messages": [{"role": "user", "content": "hi"}]}"#),
    ("completions", "/v1/completions", r#"{"model": "big", "prompt": "hi", "max_tokens": 50}"#),
    ("responses", "/v1/responses", r#"{"model": "big", "input": "hi"}"#),
    ("ollama", "/api/chat", r#"{"model": "big", "messages": [{"role": "user", "content": "hi"}]}"#),
    ("gemini", "/v1beta/models/big:generateContent", r#"{"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}"#),
];

/// A server with one model on these upstreams.
fn serve(fakes: &[&Fake], settings: &str) -> Server {
    let urls: Vec<String> = fakes.iter().map(|fake| fake.url()).collect();
    let config = format!("[[models]]\nid = \"big\"\nupstream = {urls:?}\nupstream_model = \"org/Big\"\n{settings}\n");
    Options { config, variables: vec![("BIG_KEY".into(), KEY.into())], ..Options::default() }.start()
}

const KEY: &str = "sk-upstream-0123456789";

fn body(api: &str, stream: bool) -> (String, Value) {
    let (_, path, body) = APIS.iter().find(|(name, ..)| *name == api).unwrap();
    let mut body: Value = serde_json::from_str(body).unwrap();
    match (api, stream) {
        ("gemini", true) => (path.replace("generateContent", "streamGenerateContent?alt=sse"), body),
        ("gemini", false) => ((*path).to_owned(), body),
        _ => {
            body["stream"] = stream.into();
            ((*path).to_owned(), body)
        }
    }
}

fn ask(server: &Server, api: &str, stream: bool) -> Reply {
    let (path, body) = body(api, stream);
    post(server.address, &path, &body)
}

/// The text of a whole answer, and its usage as prompt, cached and generated tokens.
fn read(api: &str, reply: &Reply) -> (String, [u64; 3]) {
    assert_eq!(reply.status(), 200, "{api}: {reply:?}");
    let json = reply.json();
    let text =
        |place: &str| json.pointer(place).and_then(Value::as_str).unwrap_or_else(|| panic!("{reply:?}")).to_owned();
    let count = |place: &str| json.pointer(place).and_then(Value::as_u64).unwrap_or(0);
    match api {
        "messages" => {
            let cached = count("/usage/cache_read_input_tokens");
            (text("/content/0/text"), [count("/usage/input_tokens") + cached, cached, count("/usage/output_tokens")])
        }
        "chat" | "completions" => {
            let place = if api == "chat" { "/choices/0/message/content" } else { "/choices/0/text" };
            let cached = count("/usage/prompt_tokens_details/cached_tokens");
            (text(place), [count("/usage/prompt_tokens"), cached, count("/usage/completion_tokens")])
        }
        "responses" => {
            let cached = count("/usage/input_tokens_details/cached_tokens");
            let counts = [count("/usage/input_tokens"), cached, count("/usage/output_tokens")];
            (text("/output/0/content/0/text"), counts)
        }
        "ollama" => (text("/message/content"), [count("/prompt_eval_count"), 8, count("/eval_count")]),
        _ => {
            let counts = ["prompt", "cachedContent", "candidates"]
                .map(|name| count(&format!("/usageMetadata/{name}TokenCount")));
            (text("/candidates/0/content/parts/0/text"), counts)
        }
    }
}

#[test]
fn every_api_answers_from_an_upstream_that_speaks_chat_alone() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "");
    for (api, ..) in APIS {
        if api == "completions" {
            let [_, usage] = end("stop");
            let text = |text: &str| json!({ "choices": [{ "text": text, "finish_reason": null }] });
            let end = json!({ "choices": [{ "text": "", "finish_reason": "stop" }] });
            fake.set(Behaviour::Say(vec![text("Hel"), text("lo"), end, usage]));
        } else {
            fake.set(hello());
        }
        assert_eq!(read(api, &ask(&server, api, false)), ("Hello".into(), [11, 8, 3]), "{api}");
        let streamed = ask(&server, api, true);
        assert_eq!(streamed.status(), 200, "{api}: {streamed:?}");
        let text = streamed.text();
        assert!(text.contains("Hel") && text.contains("lo") && !text.contains("error\":{"), "{api}: {text}");
    }
    for seen in fake.asked() {
        assert_eq!((&seen.body["model"], &seen.body["stream"]), (&json!("org/Big"), &json!(true)));
    }
}

#[test]
fn calls_of_tools_go_both_ways() {
    let call = |name: Value, arguments: &str| {
        let call = json!({ "index": 0, "id": "x", "function": { "name": name, "arguments": arguments } });
        json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] }, "finish_reason": null }] })
    };
    let [stop, usage] = end("tool_calls");
    let calls = vec![call("look".into(), ""), call(Value::Null, "{\"at\":"), call(Value::Null, "\"x\"}"), stop, usage];
    let fake = Fake::start(Behaviour::Say(calls));
    let server = serve(&[&fake], "");
    let schema = json!({ "type": "object", "properties": { "at": { "type": "string" } } });
    let tool = json!({ "name": "look", "description": "looks", "input_schema": schema });
    let turn = |role: &str, content: Value| json!({ "role": role, "content": content });
    let message = |choice: Value, messages: Value| json!({ "model": "big", "max_tokens": 9, "messages": messages, "tools": [tool], "tool_choice": choice });
    let asked =
        post(server.address, "/v1/messages", &message(json!({"type": "any"}), json!([turn("user", "hi".into())])));
    let answer = asked.json();
    let used = &answer["content"][0];
    assert_eq!(
        (&used["type"], &used["name"], &used["input"]),
        (&json!("tool_use"), &json!("look"), &json!({"at": "x"}))
    );
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    fake.set(hello());
    let result = json!([{ "type": "tool_result", "tool_use_id": used["id"], "content": "a bird" }]);
    let history = json!([turn("user", "hi".into()), turn("assistant", json!([used])), turn("user", result)]);
    assert_eq!(post(server.address, "/v1/messages", &message(json!({"type": "none"}), history)).status(), 200);
    let seen = fake.asked();
    assert_eq!((&seen[0].body["tool_choice"], &seen[1].body["tool_choice"]), (&json!("required"), &json!("none")));
    assert_eq!(seen[0].body["tools"][0]["function"]["parameters"], schema);
    let [_, call, result] = seen[1].body["messages"].as_array().unwrap().as_slice() else { panic!("{seen:?}") };
    assert_eq!(call["tool_calls"][0]["function"], json!({ "name": "look", "arguments": "{\"at\":\"x\"}" }));
    assert_eq!((&result["role"], &result["content"]), (&json!("tool"), &json!("a bird")));
    assert_eq!(result["tool_call_id"], call["tool_calls"][0]["id"]);
}

#[test]
fn a_refusal_of_an_upstream_is_told_in_the_words_of_each_api() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "");
    let pieces = |first: Value| vec![first, end("content_filter")[0].clone()];
    for (api, ..) in APIS {
        let first = if api == "completions" { json!({ "choices": [{ "text": "Hel" }] }) } else { text("Hel") };
        fake.set(Behaviour::Say(pieces(first)));
        let (place, word) = match api {
            "messages" => ("/stop_reason", "refusal"),
            "responses" => ("/incomplete_details/reason", "content_filter"),
            "ollama" => ("/done_reason", "content_filter"),
            "gemini" => ("/candidates/0/finishReason", "SAFETY"),
            _ => ("/choices/0/finish_reason", "content_filter"),
        };
        let reply = ask(&server, api, false);
        assert_eq!(reply.json().pointer(place).and_then(Value::as_str), Some(word), "{api}: {reply:?}");
        let streamed = ask(&server, api, true).text();
        assert!(streamed.contains(&format!("\"{word}\"")) && streamed.contains("Hel"), "{api}: {streamed}");
    }
}

#[test]
fn errors_of_an_upstream_come_in_the_clients_own_form() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "");
    let too_long = r#"{"object":"error","message":"This model's maximum context length is 4096 tokens."}"#;
    let cases = [
        ("400 Bad Request", "", r#"{"error":{"message":"no such template"}}"#, 400, "no such template"),
        ("400 Bad Request", "", too_long, 400, "prompt is too long: This model's maximum context length"),
        ("402 Payment Required", "", r#"{"error":{"message":"no credit"}}"#, 502, "no credit"),
        ("429 Too Many Requests", "retry-after: 9\r\n", r#"{"error":{"message":"slow down"}}"#, 429, "slow down"),
        ("500 Internal Server Error", "", "<html>", 502, "answered 500"),
    ];
    for (status, headers, said, expected, words) in cases {
        for (api, ..) in APIS {
            fake.set(response(status, headers, said));
            // An upstream that is busy is left alone for a while.
            for stream in if expected == 429 { vec![false] } else { vec![false, true] } {
                let reply = ask(&server, api, stream);
                // Anthropic's API calls an overload 529, and too long a prompt 413 by its type.
                let allowed = if expected == 429 { vec![429, 503, 529] } else { vec![expected] };
                assert!(allowed.contains(&reply.status()) && reply.text().contains(words), "{api} {status}: {reply:?}");
                if expected == 429 {
                    assert!(reply.header("retry-after").is_some(), "{api}: {reply:?}");
                    // It asked to be left alone.
                    thread::sleep(Duration::from_millis(10));
                }
            }
            if expected == 429 {
                break;
            }
        }
        if expected == 429 {
            thread::sleep(Duration::from_secs(9));
        }
    }
}

#[test]
fn the_key_goes_to_the_upstream_and_nowhere_else() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "upstream_key_env = \"BIG_KEY\"");
    let (path, body) = body("chat", false);
    let headers = [("content-type", "application/json"), ("authorization", "Bearer of-the-client")];
    let reply = request(server.address, "POST", &path, &headers, body.to_string().as_bytes());
    assert_eq!(reply.status(), 200, "{reply:?}");
    assert_eq!(fake.asked()[0].header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    fake.set(response("401 Unauthorized", "", &format!(r#"{{"error":{{"message":"wrong key {KEY}"}}}}"#)));
    let refused = ask(&server, "chat", false);
    assert!(refused.status() == 502 && refused.text().contains("refuses this server's key"), "{refused:?}");
    fake.set(response("400 Bad Request", "", &format!(r#"{{"error":{{"message":"key {KEY} is odd"}}}}"#)));
    let repeated = ask(&server, "messages", true);
    assert!(repeated.text().contains("key … is odd"), "{repeated:?}");
    let log = server.stop();
    assert!(!log.contains(KEY), "{log}");
    assert!(log.contains("model 'big' is computed by http://127.0.0.1:"), "{log}");
}

#[test]
fn hanging_up_ends_the_upstreams_work() {
    let fake = Fake::start(Behaviour::Hang(vec![text("Hel")]));
    let server = serve(&[&fake], "");
    for (api, ..) in APIS.iter().filter(|(api, ..)| *api != "completions") {
        let before = fake.abandoned.load(Ordering::SeqCst);
        let (path, body) = body(api, true);
        let mut stream = Incoming::open(server.address, &path, &[], &body);
        while !String::from_utf8_lossy(&stream.piece().unwrap_or_else(|| panic!("{api} ended"))).contains("Hel") {}
        stream.leave();
        let deadline = Instant::now() + Duration::from_secs(10);
        while fake.abandoned.load(Ordering::SeqCst) == before {
            assert!(Instant::now() < deadline, "{api}: the upstream still works");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn hanging_up_before_the_first_byte_and_on_whole_answers_ends_the_upstreams_work() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "");
    for (behaviour, stream) in
        [(Behaviour::Silent, true), (Behaviour::Silent, false), (Behaviour::Hang(vec![text("Hel")]), false)]
    {
        fake.set(behaviour.clone());
        let (asked, before) = (fake.asked().len(), fake.abandoned.load(Ordering::SeqCst));
        let (path, body) = body("messages", stream);
        let mut connection = Connection::open(server.address);
        connection.ask("POST", &path, &[("content-type", "application/json")], body.to_string().as_bytes());
        let deadline = Instant::now() + Duration::from_secs(10);
        let wait = |what: &str| {
            assert!(Instant::now() < deadline, "{behaviour:?}, {stream}: {what}");
            thread::sleep(Duration::from_millis(20));
        };
        while fake.asked().len() == asked {
            wait("it was not asked");
        }
        connection.leave();
        while fake.abandoned.load(Ordering::SeqCst) == before {
            wait("the upstream still works");
        }
    }
}

#[test]
fn several_answers_to_one_request_begin_together() {
    let pieces = [text("Hi")].into_iter().chain(end("stop")).collect();
    let fake = Fake::start(Behaviour::Late(pieces, Duration::from_millis(700)));
    let server = serve(&[&fake], "");
    let body = json!({ "model": "big", "n": 4, "seed": 7, "messages": [{ "role": "user", "content": "hi" }] });
    let began = Instant::now();
    let reply = post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.json()["choices"].as_array().map(Vec::len), Some(4), "{reply:?}");
    assert!(began.elapsed() < Duration::from_millis(2000), "{:?}", began.elapsed());
    let mut seeds: Vec<u64> = fake.asked().iter().map(|seen| seen.body["seed"].as_u64().unwrap()).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [7, 8, 9, 10]);
    assert!(fake.asked().iter().all(|seen| seen.body["messages"] == body["messages"]));
}

#[test]
fn counting_is_an_estimate_where_the_upstream_cannot() {
    let fake = Fake::start(response("404 Not Found", "", "{}"));
    let server = serve(&[&fake], "");
    let body = json!({ "model": "big", "messages": [{ "role": "user", "content": "x".repeat(400) }] });
    let reply = post(server.address, "/v1/messages/count_tokens", &body);
    assert!((90..130).contains(&reply.json()["input_tokens"].as_u64().unwrap()), "{reply:?}");
    assert!(reply.header("warning").is_some_and(|warning| warning.contains("estimate")), "{reply:?}");
    assert!(fake.seen().iter().any(|seen| seen.path == "/tokenize"), "it was asked");
    fake.set(response("200 OK", "", r#"{"count": 123, "max_model_len": 4096, "tokens": []}"#));
    let reply = post(server.address, "/v1/messages/count_tokens", &body);
    assert_eq!((&reply.json()["input_tokens"], reply.header("warning")), (&json!(123), None));
}

#[test]
fn what_needs_a_worker_says_so() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "aliases = [\"claude-*\"]");
    let reply = post(server.address, "/v1/embeddings", &json!({ "model": "big", "input": "hi" }));
    assert!(reply.status() == 400 && reply.text().contains("computed by an upstream"), "{reply:?}");
    let models = server.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["context_length"]), (&json!("big"), &json!(4096)));
    let (_, mut body) = body("messages", false);
    body["model"] = "claude-opus-9".into();
    assert_eq!(read("messages", &post(server.address, "/v1/messages", &body)).0, "Hello", "aliases are split as ever");
}

#[test]
fn fields_that_nobody_knows_pass_where_both_sides_speak_the_same_api() {
    let chunk = |delta: Value| json!({ "id": "c", "provider": "p", "choices": [{ "index": 0, "delta": delta, "stop_reason": null }] });
    let [mut stop, mut usage] = end("stop");
    stop["choices"][0]["native_finish_reason"] = "eos".into();
    usage["usage"]["cost"] = 0.25.into();
    usage["usage"]["completion_tokens_details"] = json!({ "reasoning_tokens": 2 });
    let secret = json!({ "choices": [], "echo": format!("the key {KEY}") });
    let said = vec![
        chunk(json!({ "role": "assistant", "content": "Hel", "notes": [1] })),
        chunk(json!({ "notes": [2] })),
        secret,
        chunk(json!({ "content": "lo" })),
        stop,
        usage,
    ];
    let fake = Fake::start(Behaviour::Say(said));
    let server = serve(&[&fake], "upstream_key_env = \"BIG_KEY\"");
    let whole = ask(&server, "chat", false).json();
    let (choice, usage) = (&whole["choices"][0], &whole["usage"]);
    assert_eq!((&whole["provider"], &choice["native_finish_reason"]), (&json!("p"), &json!("eos")), "{whole}");
    assert_eq!((&choice["message"]["notes"], &choice["message"]["content"]), (&json!([1, 2]), &json!("Hello")));
    assert_eq!((&usage["cost"], &usage["prompt_tokens"]), (&json!(0.25), &json!(11)), "{whole}");
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 2, "{whole}");
    assert!(whole.get("echo").is_none() && choice.get("stop_reason").is_none(), "{whole}");
    let (path, mut body) = body("chat", true);
    body["stream_options"] = json!({ "include_usage": true });
    let streamed = post(server.address, &path, &body).text();
    let chunks: Vec<Value> = streamed
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .map(|rest| serde_json::from_str(&format!("{{{rest}")).unwrap())
        .collect();
    let notes: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["notes"]).collect();
    let notes: Vec<&&Value> = notes.iter().filter(|notes| !notes.is_null()).collect();
    assert_eq!(notes, [&&json!([1]), &&json!([2])], "{streamed}");
    assert_eq!(chunks.last().unwrap()["usage"]["cost"], 0.25, "{streamed}");
    assert!(!streamed.contains(KEY) && streamed.contains("native_finish_reason"), "{streamed}");
    // Another API has no place for them.
    for api in ["messages", "responses", "ollama"] {
        let reply = ask(&server, api, false);
        assert!(reply.text().contains("Hello") && !reply.text().contains("native_finish_reason"), "{api}: {reply:?}");
    }

    let usage = json!({ "input_tokens": 3, "output_tokens": 1, "service_tier": "standard" });
    let message = json!({ "id": "m", "type": "message", "role": "assistant", "content": [], "container": { "id": "c" }, "usage": usage });
    let events = vec![
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Hello" } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_sequence": null },
            "usage": { "output_tokens": 2, "server_tool_use": { "web_search_requests": 0 } } }),
        json!({ "type": "message_stop" }),
    ];
    let fake = Fake::start(Behaviour::Say(events));
    let server = serve(&[&fake], "upstream_kind = \"anthropic\"");
    let whole = ask(&server, "messages", false).json();
    assert_eq!(read("messages", &ask(&server, "messages", false)), ("Hello".into(), [3, 0, 2]));
    assert_eq!(
        (&whole["container"]["id"], &whole["usage"]["service_tier"]),
        (&json!("c"), &json!("standard")),
        "{whole}"
    );
    assert_eq!(whole["usage"]["server_tool_use"]["web_search_requests"], 0, "{whole}");
    let streamed = ask(&server, "messages", true).text();
    assert!(streamed.contains("\"container\":{") && streamed.contains("server_tool_use"), "{streamed}");
    assert!(!ask(&server, "chat", false).text().contains("container"));
}
