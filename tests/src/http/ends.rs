//! How a server starts and stops.

use std::{net::TcpListener, time::Duration};

use super::{
    client::Connection,
    server::{Options, PATIENCE},
};

fn with(arguments: &[&str]) -> Options {
    Options { arguments: arguments.iter().map(ToString::to_string).collect(), ..Options::default() }
}

#[test]
fn a_port_that_is_taken_is_told_by_its_number() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, log) = with(&["--listen", &address]).fail();
    assert!(!status.success());
    assert!(log.contains(&format!("{address} is taken by another program")) && log.contains("--listen"), "{log}");
}

#[test]
fn without_a_key_nobody_beyond_this_machine_is_served() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (status, log) = with(&["--listen", address]).fail();
        assert!(!status.success() && log.contains("no secret key is set; set server.key"), "{log}");
    }
}

#[test]
fn told_to_end_it_closes_what_is_idle_and_ends_well() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = Options::default().start();
        let mut idle = Connection::open(server.address);
        idle.ask("GET", "/health", &[], b"");
        assert_eq!(idle.reply("GET").unwrap().status(), 200);
        server.signal(signal);
        let status = server.ended(Duration::from_secs(20)).expect("it does not end");
        assert!(status.success(), "{status}");
        assert!(idle.is_closed());
    }
}

#[test]
fn the_log_is_for_programs_where_they_read_it() {
    let server = with(&["--log-format", "json"]).start();
    let id = server.get("/v1/plugins?secret=1").header("request-id").unwrap().to_owned();
    let log = server.stop();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = lines.iter().find(|line| line["span"]["id"] == id.as_str()).unwrap_or_else(|| panic!("{log}"));
    assert_eq!((&line["span"]["route"], &line["fields"]["status"]), (&"/v1/plugins".into(), &200.into()));
    assert!(line["fields"]["duration_ms"].is_u64() && !log.contains("secret"), "{log}");
}

#[test]
fn neither_prompt_nor_key_is_in_the_log() {
    let options = Options { variables: vec![("PENSIEVE_LOG".into(), "debug".into())], ..Options::default() };
    let server = options.start();
    let body =
        br#"{"prompt": "a-secret-prompt", "messages": [{"role": "user", "content": "a-secret-prompt"}], "model": "x"}"#;
    let json = ("content-type", "application/json");
    for path in ["/execute", "/token_stream", "/v1/chat/completions", "/v1/messages"] {
        for key in ["a-secret-key", "pensieve-local-key"] {
            super::client::request(server.address, "POST", path, &[json, ("x-api-key", key)], body);
        }
    }
    let log = server.stop();
    assert!(log.contains("/execute"), "{log}");
    assert!(!log.contains("a-secret"), "{log}");
}

#[test]
fn a_second_signal_does_not_wait() {
    // Without a stream there is nothing to wait for, so the second signal may come too late to be seen.
    let mut server = Options::default().start();
    server.signal(libc::SIGTERM);
    server.signal(libc::SIGTERM);
    let status = server.ended(PATIENCE).unwrap();
    assert!(status.success() || status.code() == Some(128 + libc::SIGTERM), "{status}");
}
