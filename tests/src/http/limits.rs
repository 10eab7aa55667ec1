//! Slow, long and numerous requests: all are bounded, and other clients do not notice.

use std::{
    sync::mpsc,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use super::{
    client::{Connection, get, request},
    server::{Options, PATIENCE},
};

const JSON: (&str, &str) = ("content-type", "application/json");
const BODY_MAX: usize = 32 << 20;

#[test]
fn whoever_sends_a_byte_a_second_is_cut_off_while_others_are_served() {
    let server = Options::configured("[server]\nheader_timeout = \"3s\"").start();
    let address = server.address;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut slow = Connection::open(address);
        slow.socket().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let began = Instant::now();
        for byte in format!("GET /health HTTP/1.1\r\nhost: {address}\r\nx-slow: {}", "a".repeat(1000)).bytes() {
            if !slow.send(&[byte]) || slow.is_closed() {
                break;
            }
        }
        tell.send(began.elapsed()).unwrap();
    });
    let took = loop {
        let began = Instant::now();
        assert_eq!(get(address, "/health").status(), 200);
        assert!(began.elapsed() < Duration::from_secs(2));
        if let Ok(took) = told.recv_timeout(Duration::from_millis(50)) {
            break took;
        }
    };
    assert!((2..20).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn whoever_sends_a_body_slowly_hears_that_it_is_too_slow() {
    let server = Options::configured("[server]\nbody_timeout = \"1s\"").start();
    for headers in [[JSON, ("content-length", "100")], [JSON, ("transfer-encoding", "chunked")]] {
        let mut slow = Connection::open(server.address);
        slow.ask("POST", "/execute", &headers, b"1");
        let reply = slow.reply("POST").unwrap();
        assert_eq!(reply.status(), 408, "{reply:?}");
        assert!(reply.text().contains("the body arrives too slowly"), "{reply:?}");
    }
}

#[test]
fn a_body_that_says_it_is_too_long_is_refused_before_it_is_read() {
    let server = Options::default().start();
    let mut connection = Connection::open(server.address);
    let length = (BODY_MAX + 1).to_string();
    connection.ask("POST", "/execute", &[JSON, ("content-length", &length)], b"");
    let reply = connection.reply("POST").unwrap();
    assert_eq!((reply.status(), reply.json()["error"]["type"].as_str()), (413, Some("request_too_large")));
}

#[test]
fn a_client_that_sends_its_whole_body_before_it_reads_hears_why_it_was_refused() {
    let server = Options::default().start();
    let body = vec![b' '; BODY_MAX + 1];
    let reply = request(server.address, "POST", "/v1/completions", &[JSON], &body);
    assert_eq!((reply.status(), reply.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
}

#[test]
fn a_body_of_unknown_length_is_read_up_to_the_limit() {
    let server = Options::default().start();
    let mut connection = Connection::open(server.address);
    connection.ask("POST", "/execute", &[JSON, ("transfer-encoding", "chunked")], b"");
    let chunk = [b"100000\r\n".to_vec(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..BODY_MAX >> 20 {
        assert!(connection.send(&chunk));
    }
    connection.send(b"1\r\n \r\n0\r\n\r\n");
    assert_eq!(connection.reply("POST").unwrap().status(), 413);
}

#[test]
fn a_body_as_long_as_the_limit_is_read() {
    let server = Options::default().start();
    let body = [b"{\"prompt\": 1".to_vec(), vec![b' '; BODY_MAX - 13], b"}".to_vec()].concat();
    let reply = request(server.address, "POST", "/execute", &[JSON], &body);
    assert_eq!(reply.status(), 400, "{reply:?}");
    assert!(reply.text().contains("prompt: should be a string"), "{reply:?}");
}

#[test]
fn json_that_is_too_deep_is_a_wrong_body() {
    let server = Options::default().start();
    for depth in [200, 1_000_000] {
        let body = [b"{\"prompt\":".to_vec(), vec![b'['; depth], vec![b']'; depth], b"}".to_vec()].concat();
        let reply = request(server.address, "POST", "/execute", &[JSON], &body);
        assert_eq!(reply.status(), 400, "{reply:?}");
    }
    assert_eq!(request(server.address, "POST", "/execute", &[JSON], b"{\"prompt\": \"\xff\"}").status(), 400);
}

#[test]
fn headers_are_limited() {
    let server = Options::default().start();
    let long = "a".repeat(70 << 10);
    assert_eq!(request(server.address, "GET", "/health", &[("x-long", &long)], b"").status(), 431);
    let many = vec![("x-many", "1"); 200];
    assert_eq!(request(server.address, "GET", "/health", &many, b"").status(), 431);
    assert_eq!(request(server.address, "GET", "/health", &many[..50], b"").status(), 200);
    let mut connection = Connection::open(server.address);
    connection.send(b"nonsense\r\n\r\n");
    assert_eq!(connection.head().unwrap().status, 400);
}

#[test]
fn a_connection_serves_one_request_after_another() {
    let server = Options::default().start();
    let mut connection = Connection::open(server.address);
    for _ in 0..3 {
        connection.ask("GET", "/health", &[], b"");
        assert_eq!(connection.reply("GET").unwrap().status(), 200);
        connection.ask("POST", "/execute", &[JSON], b"{}");
        assert_eq!(connection.reply("POST").unwrap().status(), 400);
        connection.ask("HEAD", "/", &[], b"");
        assert_eq!(connection.reply("HEAD").unwrap().status(), 200);
    }
}

#[test]
fn memory_of_bodies_is_returned() {
    let server = Options::configured("[server]\nbody_max = \"1MiB\"\nbodies_max = \"2MiB\"").start();
    // The declared length costs nothing; only received bytes do.
    let begin = || {
        let mut connection = Connection::open(server.address);
        let begun = [b"{\"prompt\": \"".to_vec(), vec![b'a'; 900 << 10]].concat();
        connection.ask("POST", "/execute", &[JSON, ("content-length", "1048576")], &begun);
        connection
    };
    let large = [b"{\"a\": \"".to_vec(), vec![b'a'; 900 << 10], b"\"}".to_vec()].concat();
    let ask = |path: &str| request(server.address, "POST", path, &[JSON], &large);
    let deadline = Instant::now() + PATIENCE;
    let mut half = vec![begin()];
    while ask("/execute").status() == 400 {
        assert!(Instant::now() < deadline, "there is always room");
        // One that came together with a whole one may have been rejected in its stead.
        half.push(begin());
        sleep(Duration::from_millis(100));
    }
    for (path, status, kind) in
        [("/v1/messages", 529, "overloaded_error"), ("/v1/completions", 429, "rate_limit_error")]
    {
        let reply = ask(path);
        assert_eq!((reply.status(), reply.header("retry-after")), (status, Some("1")), "{reply:?}");
        assert_eq!(reply.json()["error"]["type"], kind);
        // Small ones still fit.
        assert_eq!(request(server.address, "POST", path, &[JSON], b"{}").status(), 400);
    }
    half.into_iter().for_each(Connection::leave);
    while ask("/v1/messages").status() == 529 {
        assert!(Instant::now() < deadline, "the memory does not come back");
        sleep(Duration::from_millis(50));
    }
    assert_eq!(ask("/v1/messages").status(), 400);
}
