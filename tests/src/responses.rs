//! OpenAI's Responses API over the wire, as the Open Responses suite asks for it: what a response has, compaction, answers
//! in the background, and WebSockets.

mod background;

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};
use tungstenite::{
    Message, WebSocket,
    protocol::{Role, frame::coding::CloseCode},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Incoming, get, post},
        server::{Options, Server},
    },
    scripted,
};

const RESPONSES: &str = "/v1/responses";

/// Members that a response has from its first event on.
const MEMBERS: [&str; 32] = [
    "background",
    "completed_at",
    "created_at",
    "error",
    "frequency_penalty",
    "id",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "object",
    "output",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "status",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "usage",
    "user",
];

fn serve(root: &Path) -> Server {
    serve_with(root, "")
}

/// Starts a server with additional lines in its configuration.
fn serve_with(root: &Path, config: &str) -> Server {
    let source = root.join("scripted");
    let forever = "and on ".repeat(4000);
    let script = [
        ("Sum up this conversation", "The launch is on Tuesday."),
        ("word", "cobalt"),
        ("forever", forever.as_str()),
        ("", "Hello there."),
    ];
    scripted::checkpoint(&source, &script);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let models = vec![("scripted".into(), source)];
    Options { plugins, models, config: config.into(), ..Options::default() }.start()
}

fn body(input: impl Into<Value>, more: &Value) -> Value {
    let mut body = json!({"model": "scripted", "input": input.into()});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text_of(response: &Value) -> &str {
    let message = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "message").unwrap();
    message["content"][0]["text"].as_str().unwrap()
}

/// A client's end of a WebSocket.
struct Socket(WebSocket<TcpStream>);

impl Socket {
    fn open(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let address = server.address;
        let head = format!(
            "GET {RESPONSES} HTTP/1.1\r\nhost: {address}\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The server sends nothing of its own before the first message, so the reader takes only the head.
        let lines: Vec<String> =
            BufReader::new(&stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        assert!(lines[0].starts_with("HTTP/1.1 101 "), "{lines:?}");
        // The accepted key of RFC 6455's own example.
        assert!(lines.iter().any(|line| line == "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{lines:?}");
        Self(WebSocket::from_raw_socket(stream, Role::Client, None))
    }

    fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).unwrap();
    }

    /// The next message; `None` at the end of the connection.
    fn read(&mut self) -> Option<Value> {
        loop {
            match self.0.read().ok()? {
                Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// The last event of a response, or an error.
    fn ask(&mut self, input: impl Into<Value>, more: &Value) -> Value {
        let mut message = body(input, &json!({"type": "response.create", "store": false}));
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.send(&message);
        let mut events = Vec::new();
        loop {
            let event = self.read().expect("an event");
            let kind = event["type"].as_str().unwrap().to_owned();
            events.push(event);
            match kind.as_str() {
                "response.completed" | "response.incomplete" | "response.failed" => {
                    assert!(events.iter().enumerate().all(|(place, event)| event["sequence_number"] == place));
                    assert_eq!(events[0]["type"], "response.created");
                    return events.pop().unwrap();
                }
                "error" => {
                    assert_eq!(events.len(), 1);
                    return events.pop().unwrap();
                }
                _ => {}
            }
        }
    }
}

#[test]
fn responses_have_what_their_schema_asks_for() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let members = |response: &Value| {
        let mut names: Vec<String> = response.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    };
    let more = json!({
        "reasoning": {"effort": "low"}, "safety_identifier": "someone", "prompt_cache_key": "k", "presence_penalty": 0.5,
        "max_tool_calls": 3, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    });
    let response = post(server.address, RESPONSES, &body("hi", &more)).json();
    assert_eq!(members(&response), MEMBERS);
    assert!(response["completed_at"].is_u64() && response["usage"]["total_tokens"].is_u64(), "{response}");
    assert_eq!(response["reasoning"], json!({"effort": "low", "summary": null}));
    assert_eq!((&response["tools"][0]["strict"], &response["tools"][0]["description"]), (&json!(false), &Value::Null));
    assert_eq!((&response["presence_penalty"], &response["max_tool_calls"]), (&json!(0.5), &json!(3)));
    let streamed = body("hi", &json!({"stream": true}));
    let events = Incoming::open(server.address, RESPONSES, &[], &streamed).events();
    let first: Value = serde_json::from_str(&events[0].data).unwrap();
    assert_eq!(members(&first["response"]), MEMBERS);
    assert_eq!(first["response"]["completed_at"], Value::Null);

    let asked = body("hi", &json!({"top_logprobs": 2}));
    let response = post(server.address, RESPONSES, &asked).json();
    let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    let text: String = logprobs.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "Hello there.");
    assert!(logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2), "{response}");
}

#[test]
fn a_compacted_conversation_goes_on_from_its_summary() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let items = json!([
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": "We agreed to launch on Tuesday."},
        {"type": "message", "role": "assistant", "content": "Understood."},
    ]);
    let compacted = post(server.address, "/v1/responses/compact", &body(items, &json!({}))).json();
    assert_eq!(compacted["object"], "response.compaction");
    let output = compacted["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "message", "compaction"]);
    assert!(compacted["usage"]["output_tokens"].as_u64() > Some(0), "{compacted}");

    let mut next = output.clone();
    next.push(json!({"role": "user", "content": "Which day?"}));
    let count = |input: Value| {
        let reply = post(server.address, "/v1/responses/input_tokens", &body(input, &json!({})));
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    let with_summary = count(Value::from(next.clone()));
    next.retain(|item| item["type"] != "compaction");
    // The test's tokenizer has a token for each letter.
    assert!(with_summary - count(Value::from(next)) >= "The launch is on Tuesday.".len() as u64);

    let foreign = json!([{"type": "compaction", "encrypted_content": "gAAAA"}, {"role": "user", "content": "hi"}]);
    let reply = post(server.address, RESPONSES, &body(foreign, &json!({})));
    assert_eq!(reply.status(), 200);
    assert!(reply.header("warning").is_some_and(|warning| warning.contains("another server made this summary")));
    let nameless = post(server.address, "/v1/responses/compact", &json!({"input": "hi"}));
    assert_eq!((nameless.status(), &nameless.json()["error"]["param"]), (400, &json!("model")));
}

#[test]
fn a_websocket_carries_one_response_after_the_other() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut socket = Socket::open(&server);
    for _ in 0..2 {
        let event = socket.ask("hi", &json!({}));
        assert_eq!((&event["type"], text_of(&event["response"])), (&json!("response.completed"), "Hello there."));
    }
    // A message that comes during a response waits for its turn.
    let message = |input: &str| body(input, &json!({"type": "response.create", "store": false}));
    socket.send(&message("hi"));
    let last = socket.ask("word", &json!({"max_output_tokens": 50}))["response"].clone();
    assert_eq!(text_of(&last), "Hello there.");
    let mut events = std::iter::from_fn(|| socket.read());
    let waited = events.find(|event| event["type"] == "response.completed").unwrap();
    assert_eq!(text_of(&waited["response"]), "cobalt");

    // One message too many is refused alone: the response goes on, and those that wait get theirs.
    socket.send(&message("forever"));
    assert_eq!(socket.read().unwrap()["type"], "response.created");
    for _ in 0..9 {
        socket.send(&message("hi"));
    }
    let (mut completed, mut refused) = (0, 0);
    while completed < 9 {
        let event = socket.read().unwrap();
        match event["type"].as_str().unwrap() {
            "response.completed" => completed += 1,
            "error" => {
                assert_eq!((&event["status"], completed), (&json!(503), 0), "{event}");
                refused += 1;
            }
            "response.failed" => panic!("{event}"),
            _ => {}
        }
    }
    assert_eq!(refused, 1);

    let error = socket.ask("hi", &json!({"type": "session.update"}));
    assert_eq!((&error["status"], &error["error"]["param"]), (&json!(400), &json!("type")));
    assert!(error["error"]["code"].is_string());
    let error = socket.ask("hi", &json!({"temperature": "hot"}));
    assert_eq!(error["error"]["param"], "temperature");
    socket.0.send(Message::text("{")).unwrap();
    assert_eq!(socket.read().unwrap()["type"], "error");
    socket.0.send(Message::Ping(b"still there?".to_vec().into())).unwrap();
    socket.0.send(Message::text("[\"response.create\", null]")).unwrap();
    let list = socket.read().unwrap();
    assert_eq!(list["error"]["message"], "a message should be a JSON object", "{list}");
    assert_eq!(socket.ask("hi", &json!({}))["type"], "response.completed", "it goes on after an error");

    // A client that breaks the protocol hears how.
    let length = (1_u64 << 40).to_be_bytes();
    let endless = [&[0x81, 0xff][..], &length, &[0; 4]].concat();
    for (bytes, code) in [
        (&[0x81, 1, b'a'][..], CloseCode::Protocol),
        (&[0x83, 0x80, 0, 0, 0, 0], CloseCode::Protocol),
        (&[0xc1, 0x80, 0, 0, 0, 0], CloseCode::Protocol),
        (&[0x81, 0x81, 0, 0, 0, 0, 0xff], CloseCode::Invalid),
        (&endless, CloseCode::Size),
    ] {
        let mut other = Socket::open(&server);
        other.0.get_mut().write_all(bytes).unwrap();
        let closed = other.0.read();
        let Ok(Message::Close(Some(frame))) = closed else { panic!("{bytes:?}: {closed:?}") };
        assert!(frame.code == code && !frame.reason.is_empty(), "{bytes:?}: {frame:?}");
    }

    // A closed connection ends its answer.
    socket.send(&message("forever"));
    assert!(socket.read().is_some());
    drop(socket);
    server.until("no request is in flight", |metrics| metrics["pensieve_http_requests_in_flight"] <= 1.0);
    let plain = get(server.address, RESPONSES);
    assert_eq!(plain.status(), 405, "{}", plain.text());
}

#[test]
fn a_message_on_a_websocket_that_trickles_in_is_too_slow() {
    let root = tempfile::tempdir().unwrap();
    let server = serve_with(root.path(), "[server]\nbody_timeout = \"1s\"\n");
    let mut socket = Socket::open(&server);
    assert_eq!(socket.ask("hi", &json!({}))["type"], "response.completed");
    // A frame of a thousand bytes, of which ten come.
    let stream = socket.0.get_mut();
    stream.write_all(&[0x81, 0x80 | 126, 3, 232, 0, 0, 0, 0]).unwrap();
    stream.write_all(br#"{"type": ""#).unwrap();
    let error = socket.read().unwrap();
    assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(408)), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("too slowly"), "{error}");
    assert!(socket.read().is_none(), "the connection ends");
}

#[test]
fn a_websocket_goes_on_from_its_last_response_alone() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut socket = Socket::open(&server);
    let first = socket.ask("hi", &json!({}))["response"].clone();
    let previous = json!({"previous_response_id": first["id"]});
    let second = socket.ask("word", &previous)["response"].clone();
    assert_eq!(text_of(&second), "cobalt");
    assert!(second["usage"]["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64());
    let not_found = |event: &Value| event["error"]["code"] == "previous_response_not_found" && event["status"] == 400;
    assert!(not_found(&socket.ask("word", &previous)), "an older one is gone");

    let previous = json!({"previous_response_id": second["id"]});
    let mut other = Socket::open(&server);
    assert!(not_found(&other.ask("word", &previous)), "another connection does not know it");
    assert_eq!(other.ask("hi", &json!({}))["type"], "response.completed");

    // Going on with an output that no call waits for fails, and what it went on from is forgotten.
    let orphan = json!([{"type": "function_call_output", "call_id": "call_1", "output": "4"}]);
    let failed = socket.ask(orphan, &previous);
    assert_eq!((&failed["type"], &failed["status"]), (&json!("error"), &json!(400)), "{failed}");
    assert!(not_found(&socket.ask("word", &previous)));

    let stored = socket.ask("hi", &json!({"store": true}))["response"].clone();
    let previous = json!({"previous_response_id": stored["id"]});
    assert_eq!(other.ask("word", &previous)["type"], "response.completed", "a stored one is known everywhere");
    let missing = post(server.address, RESPONSES, &body("hi", &json!({"previous_response_id": "resp_none"})));
    assert_eq!((missing.status(), &missing.json()["error"]["code"]), (400, &json!("previous_response_not_found")));
}
