//! Timing: a stream starts before the model has seen the prompt, pings arrive while it is computed, and all work stops
//! once a client has left.

use serde_json::json;
use std::time::{Duration, Instant};

use super::{MESSAGES, about, serve, serve_with};
use crate::http::{
    client::{Connection, Incoming},
    server::Server,
};

#[test]
fn a_stream_begins_within_a_tenth_of_a_second() {
    let root = tempfile::tempdir().unwrap();
    // A prompt would take minutes.
    let server = serve_with(root.path(), "options = { token_us = 20_000 }");
    let prose = "The quick brown fox jumps over the lazy dog, and 17 others (of them 3 cats) watch it; why not? ";
    let tools: Vec<_> = (0..24)
        .map(|n| {
            let field = json!({"type": "string", "description": prose.repeat(12)});
            let schema =
                json!({"type": "object", "properties": {"command": field, "other": field}, "required": ["command"]});
            json!({"name": format!("Tool{n}"), "description": prose.repeat(6), "input_schema": schema})
        })
        .collect();
    let body = about(&prose.repeat(280), &json!({"stream": true, "tools": tools, "max_tokens": 32_000}));
    let bytes = body.to_string().len();
    assert!((90_000..100_000).contains(&bytes), "{bytes}");
    let start = || {
        let begin = Instant::now();
        let mut incoming = Incoming::open(server.address, MESSAGES, &[], &body);
        let event = incoming.event().unwrap();
        let time = begin.elapsed();
        assert_eq!(event.name, "message_start");
        let tokens = event.json()["message"]["usage"]["input_tokens"].as_u64().unwrap();
        assert_eq!(incoming.event().unwrap().name, "ping");
        incoming.leave();
        (time, tokens)
    };
    // The first request reads the tokenizer; of the others the fastest counts, since the machine may be busy with other
    // tests.
    let (first, tokens) = start();
    let quickest = (0..10).map(|_| start().0).min().unwrap();
    println!("message_start for {bytes} bytes, {tokens} tokens: {first:?} the first time, then {quickest:?}");
    assert!(tokens > 20_000);
    assert!(quickest < Duration::from_millis(100), "{quickest:?}");
}

#[test]
fn pings_fill_the_silence_while_a_prompt_is_computed() {
    let root = tempfile::tempdir().unwrap();
    let server = serve_with(root.path(), "options = { token_us = 4_000 }");
    // About 3,500 tokens, or 14 seconds.
    let body = about(&format!("{} hello", "a b c d e f g ".repeat(500)), &json!({"stream": true}));
    let mut incoming = Incoming::open(server.address, MESSAGES, &[], &body);
    let (mut last, mut pings, mut longest) = (Instant::now(), 0, Duration::ZERO);
    let begin = last;
    loop {
        let event = incoming.event().unwrap();
        longest = longest.max(last.elapsed());
        last = Instant::now();
        match event.name.as_str() {
            "ping" => pings += 1,
            "content_block_start" => break,
            "message_start" => {}
            other => panic!("{other}"),
        }
    }
    println!("{pings} pings within {:?}, at most {longest:?} apart", begin.elapsed());
    assert!(begin.elapsed() > Duration::from_secs(8), "the prompt was too quick to say anything");
    assert!(pings >= 2 && longest < Duration::from_secs(10), "{pings} pings, {longest:?}");
}

/// Fails unless the server is soon idle.
fn falls_idle(server: &Server) {
    let begin = Instant::now();
    server.until("idle", |metrics| {
        let active = metrics.iter().filter(|(name, _)| name.starts_with("pensieve_requests_active"));
        active.map(|(_, active)| *active).sum::<f64>() == 0.0
    });
    let is_idle = || {
        let model = &server.get("/health").json()["models"][0];
        model["streams"] == 0 && model["waiting"] == 0
    };
    while !is_idle() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", server.get("/health").json());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_leaves_stops_the_work() {
    let root = tempfile::tempdir().unwrap();
    // The prompt alone would take minutes, in steps of a second.
    let server = serve_with(root.path(), "options = { token_us = 1_000, step_us = 500_000 }");
    let long = format!("{} forever", "a b c d e f g ".repeat(5_000));
    let body = about(&long, &json!({"stream": true}));
    let mut incoming = Incoming::open(server.address, MESSAGES, &[], &body);
    assert_eq!(incoming.event().unwrap().name, "message_start");
    std::thread::sleep(Duration::from_millis(1500));
    incoming.leave();
    falls_idle(&server);
    let mut connection = Connection::open(server.address);
    let body = about(&long, &json!({})).to_string();
    connection.ask("POST", MESSAGES, &[("content-type", "application/json")], body.as_bytes());
    server.until("at work", |metrics| {
        metrics.iter().any(|(name, active)| name.starts_with("pensieve_requests_active") && *active > 0.0)
    });
    std::thread::sleep(Duration::from_millis(500));
    connection.leave();
    falls_idle(&server);
    // The model is free for others at once.
    let begin = Instant::now();
    super::whole(&server, &about("Say hello", &json!({"max_tokens": 1})));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn a_stream_ends_with_its_message() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut connection = Connection::open(server.address);
    let body = about("Say hello", &json!({"stream": true})).to_string();
    // The connection stays open, as clients keep theirs.
    for _ in 0..3 {
        connection.ask("POST", MESSAGES, &[("content-type", "application/json")], body.as_bytes());
        let reply = connection.reply("POST").unwrap();
        let text = reply.text();
        assert!(text.starts_with("event: message_start\ndata: {"), "{text}");
        assert!(text.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), "{text}");
    }
}
