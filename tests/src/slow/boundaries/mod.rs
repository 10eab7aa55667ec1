//! Every number and list that a client may send, at the limits of its range and beyond, and invalid bodies, over a real
//! socket: correct requests are answered, and others get a 400 in the API's own envelope with the name of the field,
//! within 50 ms, streamed or not.

mod fields;
mod routes;
mod row_routes;

use serde_json::{Value, json};
use std::{
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

use self::{
    routes::{Route, routes},
    row_routes::row_routes,
};
use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post, request, soon},
        server::{Options, Server},
    },
    reference::fixture,
    scripted,
};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

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

/// A server with an encoder, a cross-encoder and a classifier, all of them loaded.
fn serve_rows() -> Server {
    let models = [("embed", "bert"), ("rank", "bert_rank"), ("classify", "modern_bert_classify")];
    let models = models.map(|(id, name)| (id.to_owned(), fixture(&format!("encoders/{name}")))).to_vec();
    let server = Options { plugins: vec![plugin("pensieve-bert")], models, ..Options::default() }.start();
    for route in row_routes() {
        let ready = post(server.address, route.path, &route.body);
        assert_eq!(ready.status(), 200, "{}: {ready:?}", route.path);
    }
    server
}

/// What is wrong with a refusal, if anything.
fn misfit(reply: &Reply, path: &str, field: Option<&str>) -> Option<String> {
    let is_openai = !path.starts_with("/v1/messages") && !matches!(path, "/execute" | "/token_stream");
    if path.starts_with("/api/") {
        return misfit_of_ollama(reply, field);
    }
    if path.starts_with("/v1beta/") {
        return misfit_of_google(reply, field);
    }
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

/// Like [`misfit`], for Ollama's error format.
fn misfit_of_ollama(reply: &Reply, field: Option<&str>) -> Option<String> {
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else { return Some("no JSON".into()) };
    let message = body["error"].as_str().unwrap_or_default();
    let checks = [
        (reply.status() == 400, "the status is not 400"),
        (!message.is_empty(), "there is no message"),
        (field.is_none_or(|field| message.starts_with(field)), "the message does not begin with the field"),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|(_, what)| format!("{what}: {reply:?}"))
}

/// Like [`misfit`], for Google's error format.
fn misfit_of_google(reply: &Reply, field: Option<&str>) -> Option<String> {
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else { return Some("no JSON".into()) };
    let error = &body["error"];
    let message = error["message"].as_str().unwrap_or_default();
    let checks = [
        (reply.status() == 400 && error["code"] == 400, "the status is not 400"),
        (error["status"] == "INVALID_ARGUMENT", "the status's name is wrong"),
        (!message.is_empty(), "there is no message"),
        (field.is_none_or(|field| message.starts_with(field)), "the message does not begin with the field"),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|(_, what)| format!("{what}: {reply:?}"))
}

fn short(body: &Value) -> String {
    body.to_string().chars().take(300).collect()
}

#[test]
fn every_field_is_taken_up_to_its_edges_and_refused_by_name_beyond_them() {
    let root = tempfile::tempdir().unwrap();
    let (asked, hostile) = try_fields(&serve(root.path()), &routes());
    assert!(asked > 1000, "{asked}");
    for path in ["/v1/responses", "/api/chat", "/api/generate"] {
        assert!(hostile[path] >= 60, "{path}: {hostile:?}");
    }
}

#[test]
fn every_field_of_vectors_and_scores_is_taken_up_to_its_edges_and_refused_by_name_beyond_them() {
    let (asked, hostile) = try_fields(&serve_rows(), &row_routes());
    assert!(asked > 300, "{asked}");
    for path in ["/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify"] {
        assert!(hostile[path] >= 25, "{path}: {hostile:?}");
    }
}

/// Tries each value of each field. Returns how many were asked for, and for each path how many had to be refused.
fn try_fields(server: &Server, routes: &[Route]) -> (usize, HashMap<&'static str, usize>) {
    let (mut wrong, mut asked) = (Vec::new(), 0);
    let mut hostile: HashMap<&str, usize> = HashMap::new();
    for route in routes {
        for field in &route.fields {
            for value in &field.good {
                let reply = post(server.address, route.path, &field.body(route, value));
                let broke_off =
                    ["event: error", "response.failed", "{\"error\""].iter().any(|end| reply.text().contains(end));
                if reply.status() != 200 || broke_off {
                    let body = short(&field.body(route, value));
                    wrong.push(format!("{} {body} is refused: {reply:?}", route.path));
                }
                asked += 1;
            }
            for value in &field.bad {
                let body = field.body(route, value);
                let reply = soon(|| post(server.address, route.path, &body));
                let misfit = misfit(&reply, route.path, Some(field.path));
                wrong.extend(misfit.map(|what| format!("{} {}: {what}", route.path, short(&body))));
                asked += 1;
                *hostile.entry(route.path).or_default() += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {asked} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    (asked, hostile)
}

#[test]
fn numbers_that_json_does_not_have_are_refused_wherever_they_stand() {
    let root = tempfile::tempdir().unwrap();
    refuse_numbers(&serve(root.path()), &routes());
    refuse_numbers(&serve_rows(), &row_routes());
}

fn refuse_numbers(server: &Server, routes: &[Route]) {
    for route in routes {
        for field in route.fields.iter().filter(|field| field.bad.contains(&json!("NaN"))) {
            let body = field.body(route, &json!("HERE")).to_string();
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
    refuse_bodies(&serve(root.path()), &routes());
    refuse_bodies(&serve_rows(), &row_routes());
}

fn refuse_bodies(server: &Server, routes: &[Route]) {
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
    for route in routes {
        for body in &bodies {
            let reply = soon(|| request(server.address, "POST", route.path, &JSON, body));
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(misfit(&reply, route.path, None), None, "{} {shown:?}", route.path);
        }
        // Unknown fields, and those of other APIs, are not rejected.
        let mut body = route.body.clone();
        body["from_the_future"] = json!({"a": [null, {"b": 1e300}]});
        body["inference_geo"] = json!({"of": "another API"});
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
    let list = format!("[{}1]", "1,".repeat(1_000_000));
    let many = format!("{{\"model\":\"scripted\",\"messages\":{list},\"prompt\":{list},\"input\":{list}}}");
    for route in routes() {
        let began = Instant::now();
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
        assert!(text.contains("no sampler is called 'no-such'") && text.contains("top_k, top_p, typical"), "{text}");
    }
}
