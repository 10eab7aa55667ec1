//! Requests of every kind, and what their responses must look like whatever happens to the workers behind them.

use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{
    http::client::{Connection, Head},
    random::Random,
};

/// The format of a response.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// One JSON document.
    Json,
    /// Server-sent events of OpenAI's chats and completions.
    OpenAi,
    /// Named server-sent events; one of these must be last.
    Events(&'static [&'static str]),
    /// One line of JSON per piece.
    Lines,
    /// Text, or a page.
    Text,
}

/// A request, and whether its client stays to the end.
#[derive(Clone, Debug)]
pub struct Ask {
    method: &'static str,
    path: &'static str,
    body: Value,
    form: Form,
    leaves: bool,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Outcome {
    pub path: &'static str,
    /// `None` for a client that has left.
    pub status: Option<u16>,
    pub is_error: bool,
    pub has_begun: bool,
    pub ended: Instant,
    /// Longest time without a piece of the response, after the first one.
    pub gap: Duration,
}

const ANTHROPIC: Form = Form::Events(&["message_stop", "error"]);
const RESPONSES: Form = Form::Events(&["response.completed", "response.incomplete", "response.failed", "error"]);
const EXECUTE: Form = Form::Events(&["end", "error"]);

impl Ask {
    /// A random request of a client that knows the models `scripted` and `faults`, and the adapters of the latter.
    pub fn any(random: &mut Random) -> Self {
        let stream = random.below(2) == 0;
        let tokens = 1 + random.below(120);
        let prompt = ["hello", "endless", "what"][random.below(3)];
        let chat = json!({ "model": "scripted", "max_tokens": tokens, "stream": stream,
            "messages": [{ "role": "user", "content": format!("{prompt} {}", random.below(1000)) }] });
        let streamed = |form| if stream { form } else { Form::Json };
        let (path, form, body) = match random.below(13) {
            0 | 1 => ("/v1/chat/completions", streamed(Form::OpenAi), chat),
            2 | 3 => ("/v1/messages", streamed(ANTHROPIC), chat),
            4 => {
                let mut asked = chat;
                asked["input"] = asked["messages"].take();
                asked.as_object_mut().unwrap().remove("messages");
                asked.as_object_mut().unwrap().remove("max_tokens");
                asked["max_output_tokens"] = json!(tokens.max(16));
                ("/v1/responses", streamed(RESPONSES), asked)
            }
            5 => ("/api/chat", if stream { Form::Lines } else { Form::Json }, chat),
            6 => ("/execute", EXECUTE, json!({ "model": "scripted", "prompt": prompt, "max_tokens": tokens })),
            7 => ("/token_stream", Form::Text, json!({ "model": "scripted", "query": prompt, "max_tokens": tokens })),
            8 | 9 => {
                let model = ["faults", "faults:one", "faults:two"][random.below(3)];
                let ids: Vec<usize> = (0..1 + random.below(60)).map(|_| random.below(200)).collect();
                let asked = json!({ "model": model, "prompt": ids, "max_tokens": tokens, "stream": stream });
                ("/v1/completions", streamed(Form::OpenAi), asked)
            }
            10 => {
                let mut asked = chat;
                asked["response_format"] = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema":
                    { "type": "object", "properties": { "a": { "enum": ["b", random.below(50)] } }, "required": ["a"] } } });
                ("/v1/chat/completions", streamed(Form::OpenAi), asked)
            }
            11 => ("/v1/chat/completions", Form::Json, json!({ "model": 7, "messages": [random.below(9)] })),
            _ => {
                let path = ["/health", "/v1/models", "/metrics", "/v1/plugins"][random.below(4)];
                return Self { method: "GET", path, body: Value::Null, form: Form::Text, leaves: false };
            }
        };
        Self { method: "POST", path, body, form, leaves: random.below(10) == 0 }
    }

    /// Sends the request and reads the response to its end. Fails if no client could make sense of it.
    pub fn run(&self, address: SocketAddr, random: &mut Random) -> Result<Outcome, String> {
        let fail = |what: &str, shown: &str| Err(format!("{} {}: {what}: {shown}", self.path, self.body));
        let mut connection = Connection::open(address);
        let body = if self.body.is_null() { String::new() } else { self.body.to_string() };
        connection.ask(self.method, self.path, &[("content-type", "application/json")], body.as_bytes());
        let outcome = |status, is_error, has_begun, gap| {
            Ok(Outcome { path: self.path, status, is_error, has_begun, ended: Instant::now(), gap })
        };
        if self.leaves && random.below(2) == 0 {
            connection.leave();
            return outcome(None, false, false, Duration::ZERO);
        }
        let Some(head) = connection.head() else { return fail("the connection ended without an answer", "") };
        let (mut text, mut gap, mut last) = (Vec::new(), Duration::ZERO, None::<Instant>);
        if head.header("transfer-encoding") == Some("chunked") {
            while let Some(piece) = connection.piece() {
                gap = gap.max(last.replace(Instant::now()).map_or(Duration::ZERO, |last| last.elapsed()));
                text.extend(piece);
                if self.leaves && random.below(4) == 0 {
                    connection.leave();
                    return outcome(None, false, true, gap);
                }
            }
            gap = gap.max(last.map_or(Duration::ZERO, |last| last.elapsed()));
        } else {
            text = rest(&mut connection, &head);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let is_error = match ending(self.form, &head, &text) {
            Ok(is_error) => is_error,
            Err(what) => return fail(&format!("{}: {what}", head.status), &text),
        };
        outcome(Some(head.status), is_error, last.is_some(), gap)
    }
}

fn rest(connection: &mut Connection, head: &Head) -> Vec<u8> {
    let length = head.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    connection.bytes(length).unwrap_or_default()
}

/// True if a response ended with an error, which is a valid end; fails if it has no end at all.
fn ending(form: Form, head: &Head, text: &str) -> Result<bool, String> {
    let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| format!("no JSON: {error}"));
    if head.status != 200 {
        let known = [400, 404, 429, 500, 503, 529].contains(&head.status);
        let body = json(text)?;
        return if known && !body["error"].is_null() { Ok(true) } else { Err("an error of no known form".into()) };
    }
    let blocks =
        || text.split("\n\n").filter(|block| block.lines().any(|line| !line.starts_with(':') && !line.is_empty()));
    let last = || blocks().last().ok_or_else(|| "a stream without an event".to_owned());
    match form {
        Form::Json => json(text).map(|_| false),
        Form::OpenAi => {
            let is_error = blocks().any(|block| block.contains("\"error\":"));
            let is_over = last()? == "data: [DONE]";
            if is_over || is_error { Ok(is_error) } else { Err("no [DONE] and no error".into()) }
        }
        Form::Events(ends) => {
            let name = last()?.lines().find_map(|line| line.strip_prefix("event: ")).unwrap_or_default();
            if ends.contains(&name) {
                Ok(["error", "response.failed"].contains(&name))
            } else {
                Err(format!("it ends with '{name}'"))
            }
        }
        Form::Lines => {
            let line = json(text.lines().last().unwrap_or_default())?;
            let is_error = !line["error"].is_null();
            if is_error || line["done"] == true { Ok(is_error) } else { Err("the last line is not done".into()) }
        }
        Form::Text => Ok(text.lines().last().is_some_and(|line| line.starts_with("error: "))),
    }
}
