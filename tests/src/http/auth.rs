//! Access: keys, hosts, origins, and how bodies have to be declared.

use serde_json::json;

use super::{
    client::{Reply, request},
    server::{Options, Server},
};

const JSON: (&str, &str) = ("content-type", "application/json");

/// A request whose handler, if reached, would report an invalid body.
fn chat(server: &Server, headers: &[(&str, &str)]) -> Reply {
    request(server.address, "POST", "/v1/chat/completions", headers, b"{}")
}

/// Checks the status of a reply, its ids, and that refusals have an envelope.
fn check(reply: &Reply, status: u16) {
    assert_eq!(reply.status(), status, "{reply:?}");
    let id = reply.header("request-id").unwrap();
    assert!(id.starts_with("req_") && id.len() > 20, "{reply:?}");
    assert_eq!(reply.header("x-request-id"), Some(id));
    if status >= 400 {
        assert!(reply.json()["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{reply:?}");
    }
}

#[test]
fn without_a_key_of_its_own_a_server_on_this_machine_takes_any() {
    let server = Options::default().start();
    check(&chat(&server, &[JSON]), 400);
    for key in ["pensieve-local-key", "sk-ant-of-another-service", "sk-proj-of-another-service"] {
        for header in [("x-api-key", key.to_owned()), ("authorization", format!("Bearer {key}"))] {
            let header = (header.0, header.1.as_str());
            check(&chat(&server, &[JSON, header]), 400);
            check(&request(server.address, "GET", "/v1/plugins", &[header], b""), 200);
            let health = request(server.address, "GET", "/health", &[header], b"").json();
            assert!(health["models"].is_array(), "{health}");
        }
    }
}

#[test]
fn names_of_others_are_not_answered_to() {
    let server = Options::default().start();
    let port = server.address.port();
    for host in
        ["localhost", &format!("localhost:{port}"), "127.0.0.1:1", "[::1]:1", &format!("host.docker.internal:{port}")]
    {
        check(&chat(&server, &[JSON, ("host", host)]), 400);
    }
    for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example", "", "0.0.0.0"] {
        check(&chat(&server, &[JSON, ("host", host)]), 403);
        check(&request(server.address, "GET", "/health", &[("host", host)], b""), 403);
    }
}

#[test]
fn where_keys_are_set_one_of_them_is_needed() {
    let server = Options::configured("[server]\nkey = [\"first-key\", \"second-key\"]").start();
    for right in [("x-api-key", "first-key"), ("x-api-key", "second-key"), ("authorization", "Bearer first-key")] {
        check(&chat(&server, &[JSON, right]), 400);
    }
    for wrong in [vec![JSON], vec![JSON, ("x-api-key", "pensieve-local-key")], vec![JSON, ("x-api-key", "first-ke")]] {
        let reply = chat(&server, &wrong);
        check(&reply, 401);
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OLLAMA_API_KEY"] {
            assert!(reply.text().contains(name), "{reply:?}");
        }
        check(&request(server.address, "GET", "/metrics", &wrong, b""), 401);
        check(&request(server.address, "HEAD", "/", &wrong, b""), 200);
        assert_eq!(request(server.address, "GET", "/health", &wrong, b"").json(), json!({"status": "ok"}));
    }
}

#[test]
fn names_and_pages_that_are_listed_come_in() {
    let config = "[server]\nhosts = [\"box.example\"]\norigins = [\"https://app.example\"]";
    let server = Options::configured(config).start();
    let origin = ("origin", "https://app.example");
    let reply = chat(&server, &[JSON, ("host", "box.example:8000"), origin]);
    check(&reply, 400);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(reply.header("access-control-expose-headers").unwrap().contains("request-id"));
    let wanted = ("access-control-request-headers", "content-type, x-api-key, anthropic-version");
    let asked = [origin, ("access-control-request-method", "POST"), wanted];
    let reply = request(server.address, "OPTIONS", "/v1/messages", &asked, b"");
    check(&reply, 204);
    assert_eq!(reply.header("access-control-allow-headers"), Some(wanted.1));
    assert!(reply.header("access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(reply.header("vary"), Some("origin"));
}

#[test]
fn pages_of_others_never_reach_a_handler() {
    let server = Options::default().start();
    for origin in ["null", "https://evil.example", "http://localhost:3000", "http://127.0.0.1:1"] {
        let reply = chat(&server, &[JSON, ("origin", origin)]);
        check(&reply, 403);
        assert_eq!(reply.header("access-control-allow-origin"), None);
        let asked = [("origin", origin), ("access-control-request-method", "POST")];
        check(&request(server.address, "OPTIONS", "/v1/messages", &asked, b""), 403);
    }
}

#[test]
fn a_browsers_simple_request_is_not_taken_for_json() {
    let server = Options::default().start();
    check(&chat(&server, &[]), 415);
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        check(&chat(&server, &[("content-type", media_type)]), 415);
    }
    check(&chat(&server, &[("content-type", "application/json; charset=utf-8")]), 400);
    check(&chat(&server, &[JSON, ("content-encoding", "gzip")]), 415);
}

#[test]
fn an_error_has_the_form_of_the_path_or_else_of_the_headers() {
    let server = Options::configured("[server]\nkey = \"right\"").start();
    let bearer = [JSON, ("authorization", "Bearer wrong")];
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/x", "/v1/responses", "/nothing"] {
        let method = if path.contains("models") { "GET" } else { "POST" };
        let error = request(server.address, method, path, &bearer, b"").json();
        assert!(error["error"]["code"].is_string() && error.get("type").is_none(), "{path}: {error}");
    }
    for path in ["/api/chat", "/api/nothing"] {
        let error = request(server.address, "POST", path, &bearer, b"").json();
        assert!(error["error"].is_string(), "{path}: {error}");
    }
    let by_key = [JSON, ("x-api-key", "wrong")];
    let by_version = [JSON, ("x-api-key", "wrong"), ("anthropic-version", "2023-06-01")];
    for headers in [&by_key[..], &by_version[..]] {
        for (method, path) in
            [("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/nothing"), ("POST", "/execute")]
        {
            let reply = request(server.address, method, path, headers, b"");
            let error = reply.json();
            assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("authentication_error")));
            assert_eq!(error["request_id"].as_str(), reply.header("request-id"));
        }
    }
}

#[test]
fn unknown_paths_and_methods_are_told_apart() {
    let server = Options::default().start();
    for (method, path, nearest) in [
        ("GET", "/nothing", "/"),
        ("POST", "/v1/chat/complete", "'/v1/chat/completions'"),
        ("POST", "/v1/message", "'/v1/messages'"),
        ("POST", "/api/chats", "'/api/chat'"),
    ] {
        let reply = request(server.address, method, path, &[], b"");
        assert_eq!(reply.status(), 404, "{reply:?}");
        assert!(reply.text().contains(&format!("'{path}'")) && reply.text().contains(nearest), "{reply:?}");
    }
    for (method, path, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/v1/models/x", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
        ("OPTIONS", "/v1/completions", "POST"),
    ] {
        let reply = request(server.address, method, path, &[], b"");
        check(&reply, 405);
        assert_eq!(reply.header("allow"), Some(allowed), "{path}");
    }
    for path in ["/?beta=true", "/health", "/v1/models", "/metrics", "/openapi.json"] {
        let head = request(server.address, "HEAD", path, &[], b"");
        check(&head, 200);
        assert_eq!(head.body, b"", "{path}");
    }
    for path in ["/health?x=/y", "/v1/plugins/", "//health", "/models", "/v1/models?limit=1000"] {
        check(&request(server.address, "GET", path, &[], b""), 200);
    }
    for path in ["/v1/completions?beta=true", "/completions", "/v1/v1/messages", "//v1//responses/"] {
        check(&request(server.address, "POST", path, &[JSON], b"{}"), 400);
    }
}
