//! Too many connections, bodies and requests: idle connections make room, slow ones are ended, and one client leaves
//! room for others.

use serde_json::{Value, json};
use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use super::{
    client::{Connection, Incoming, Reply, post, request},
    server::{Options, PATIENCE, Server},
    streams::{begun, execute, scripted},
};
use crate::artifacts::{plugin, test_plugin};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Keeps this many connections open that send only these bytes, reopening closed ones.
fn crowd(address: SocketAddr, count: usize, bytes: &[u8], stop: &AtomicBool) {
    let open = || {
        let mut connection = Connection::open(address);
        connection.send(bytes);
        connection.socket().set_nonblocking(true).unwrap();
        connection
    };
    let is_open = |connection: &Connection| {
        let mut socket: &TcpStream = connection.socket();
        matches!(socket.read(&mut [0; 512]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    let mut all: Vec<Connection> = (0..count).map(|_| open()).collect();
    while !stop.load(Ordering::Relaxed) {
        for connection in &mut all {
            if !is_open(connection) {
                *connection = open();
            }
        }
        sleep(Duration::from_millis(1));
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not: {what}");
        sleep(Duration::from_millis(50));
    }
}

/// Counts how many of `total` requests, each on a new connection, are answered with this status in time.
fn answered(address: SocketAddr, total: usize, path: &str, status: u16, time_max: Duration) -> usize {
    let (method, body): (_, &[u8]) = if path == "/health" { ("GET", b"") } else { ("POST", b"{}") };
    let ask = || {
        let mut connection = Connection::open(address);
        let began = Instant::now();
        connection.ask(method, path, &[JSON], body);
        connection.reply(method).is_some_and(|reply| reply.status() == status && began.elapsed() < time_max)
    };
    (0..total).filter(|_| ask()).count()
}

/// Sends requests while there is a crowd larger than the limit.
fn answered_beside(server: &Server, bytes: &[u8], path: &str, status: u16) -> usize {
    let stop = AtomicBool::new(false);
    let address = server.address;
    let answered = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| crowd(address, 24, bytes, &stop));
        }
        // Until it is full.
        sleep(Duration::from_secs(1));
        let answered = answered(address, 100, path, status, Duration::from_secs(5));
        stop.store(true, Ordering::Relaxed);
        answered
    });
    let evicted = server.metrics()["pensieve_http_connections_evicted_total"];
    assert!(evicted > 96.0, "there was no crowd: {evicted}");
    answered
}

#[test]
fn connections_that_ask_for_nothing_keep_no_request_out() {
    let server = Options::configured("[server]\nconnections_max = 64").start();
    for bytes in ["", "GET /health HTTP/1.1\r\nhost: localhost\r\n"] {
        let answered = answered_beside(&server, bytes.as_bytes(), "/health", 200);
        assert!(answered >= 95, "{answered} of 100");
    }
}

#[test]
fn bodies_that_do_not_come_keep_no_request_out() {
    let server = Options::configured("[server]\nconnections_max = 64\nrequests_max = 4").start();
    let begun =
        "POST /execute HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let answered = answered_beside(&server, begun.as_bytes(), "/execute", 400);
    assert!(answered >= 95, "{answered} of 100");
}

#[test]
fn connections_whose_answers_are_written_make_room_for_nobody() {
    let (server, _root) = scripted("[server]\nconnections_max = 3", 5_000);
    let mut kept = vec![begun(&server), begun(&server)];
    // The connection of a finished response makes room.
    let mut idle = Connection::open(server.address);
    idle.ask("GET", "/health", &[], b"");
    assert_eq!(idle.reply("GET").unwrap().status(), 200);
    kept.push(begun(&server));
    assert!(idle.is_closed());
    let reply = Connection::open(server.address).reply("GET").unwrap();
    assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("1")));
    assert_eq!(reply.json()["error"]["type"], "overloaded_error");
    for stream in &mut kept {
        assert_eq!(stream.event().unwrap().name, "token");
    }
    kept.into_iter().for_each(Incoming::leave);
    until("there is room again", || {
        let mut connection = Connection::open(server.address);
        connection.ask("GET", "/health", &[], b"");
        connection.reply("GET").is_some_and(|reply| reply.status() == 200)
    });
}

#[test]
fn a_body_that_trickles_in_times_out() {
    let server = Options::configured("[server]\nbody_timeout = \"6s\"").start();
    let mut slow = Connection::open(server.address);
    slow.ask("POST", "/execute", &[JSON, ("content-length", "1000000")], b"{");
    let began = Instant::now();
    slow.socket().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut first = [0; 1];
    while slow.socket().read(&mut first).is_err() && began.elapsed() < Duration::from_secs(20) {
        slow.send(b" ");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    slow.socket().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut rest = vec![0; 2048];
    let read = slow.socket().read(&mut rest).unwrap();
    let text = String::from_utf8_lossy(&rest[..read]).into_owned();
    assert!(text.starts_with("TTP/1.1 408 "), "{text}");
    assert!(text.contains("the body arrives too slowly, at less than 1024 bytes per second"), "{text}");
}

/// Starts another stream with this key, if the client may have one.
fn begun_by(server: &Server, key: &str) -> Result<Incoming, Incoming> {
    let stream = Incoming::open(server.address, "/execute", &[("x-api-key", key)], &execute("endless"));
    if stream.head.status == 200 { Ok(stream) } else { Err(stream) }
}

#[test]
fn requests_have_a_number_of_which_no_key_has_all() {
    let (server, _root) = scripted("[server]\nkey = [\"one\", \"two\", \"three\"]\nrequests_max = 8", 5_000);
    let ask = |key: &str, path: &str| {
        let body = json!({ "model": "scripted", "prompt": "x", "max_tokens": 1, "messages": [{ "role": "user", "content": "hello" }] });
        request(server.address, "POST", path, &[JSON, ("x-api-key", key)], body.to_string().as_bytes())
    };
    let kept: Vec<Incoming> = std::iter::from_fn(|| begun_by(&server, "one").ok()).collect();
    assert_eq!(kept.len(), 6);
    for (path, status, kind) in
        [("/v1/messages", 529, "overloaded_error"), ("/v1/completions", 429, "rate_limit_error")]
    {
        let reply = ask("one", path);
        assert_eq!((reply.status(), reply.header("retry-after")), (status, Some("1")), "{reply:?}");
        assert_eq!(reply.json()["error"]["type"], kind);
        // A client that has read a response to its end may send another request at once.
        for _ in 0..20 {
            assert_eq!(ask("two", path).status(), 200);
        }
    }
    let metrics = request(server.address, "GET", "/metrics", &[("x-api-key", "two")], b"").text();
    assert!(metrics.contains("pensieve_http_requests_total{") && !metrics.contains("abandoned_total{"), "{metrics}");
    let others = [begun_by(&server, "two"), begun_by(&server, "three")].map(|begun| begun.map_err(|_| ()).unwrap());
    assert_eq!(ask("two", "/v1/completions").status(), 429);
    kept.into_iter().chain(others).for_each(Incoming::leave);
    until("there is room again", || ask("one", "/v1/completions").status() == 200);
}

#[test]
fn a_models_queue_is_not_filled_by_one_key() {
    let config = "[server]\nkey = [\"one\", \"two\"]";
    let more = "sequences_max = 1\nwaiting_max = 4\n";
    let (server, _root) = super::streams::scripted_with(config, 5_000, more);
    let mut kept: Vec<_> = (0..8).map(|_| begun_by(&server, "one")).collect();
    let waits = |count: &str| {
        let metrics = request(server.address, "GET", "/metrics", &[("x-api-key", "two")], b"").text();
        metrics.contains(&format!("pensieve_sequences_waiting{{model=\"scripted\"}} {count}\n"))
    };
    until("one key has its share", || waits("3"));
    kept.push(begun_by(&server, "two"));
    until("the other has a place", || waits("4"));
    kept.into_iter().for_each(|stream| stream.unwrap_or_else(|refused| refused).leave());
}

#[test]
fn a_model_in_quarantine_is_a_503_that_says_when_to_come_again() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("config.json"), r#"{"architectures": ["FaultsForCausalLM"]}"#).unwrap();
    let options = Options {
        plugins: vec![test_plugin("faults"), plugin("pensieve-samplers")],
        models: vec![("faults".into(), root.path().into())],
        config: "[fleet]\ndeaths_max = 1\nquarantine = \"100s\"".into(),
        ..Options::default()
    };
    let server = options.start();
    let ask = |path: &str, body: Value| -> Reply { post(server.address, path, &body) };
    let crash = json!({ "model": "faults", "prompt": [262], "max_tokens": 1 });
    let reply = ask("/v1/completions", crash);
    assert!([500, 503].contains(&reply.status()), "{reply:?}");
    for stream in [false, true] {
        let chat = json!({ "model": "faults", "prompt": "a", "input": "a", "max_tokens": 1, "stream": stream,
            "messages": [{ "role": "user", "content": "a" }] });
        for (path, status) in [
            ("/v1/completions", 503),
            ("/v1/chat/completions", 503),
            ("/v1/responses", 503),
            ("/api/generate", 503),
            ("/v1/messages", 529),
        ] {
            let mut chat = chat.clone();
            if path == "/v1/responses" {
                chat = json!({ "model": "faults", "input": "a", "stream": stream });
            }
            let reply = ask(path, chat);
            assert_eq!(reply.status(), status, "{path}: {reply:?}");
            let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
            assert!((50..=100).contains(&seconds), "{path}: {reply:?}");
            assert!(reply.text().contains("is in quarantine"), "{path}: {reply:?}");
        }
    }
}
