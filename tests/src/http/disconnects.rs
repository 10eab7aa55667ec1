//! A thousand clients disconnect at random moments and leave nothing behind.

use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread::{scope, sleep},
    time::Duration,
};

use super::{
    client::{Connection, Incoming},
    server::{Options, Server},
};
use crate::{
    artifacts::{plugin, test_plugin},
    checkpoints::bigram,
    random::Random,
};

const CLIENTS: usize = 1000;
const AT_ONCE: usize = 25;
const MODEL: &str = "{model=\"bigram\"}";

fn server() -> (Server, tempfile::TempDir) {
    let checkpoint = bigram(2048, 4096);
    let options = Options {
        models: vec![("bigram".into(), checkpoint.path().into())],
        plugins: vec![plugin("bigram"), plugin("pensieve-samplers"), test_plugin("scripted")],
        ..Options::default()
    };
    (options.start(), checkpoint)
}

fn body(random: &mut Random, tokens: usize) -> Value {
    let words: Vec<String> = (0..=random.below(200)).map(|_| (1 + random.below(2047)).to_string()).collect();
    json!({ "prompt": words.join(" "), "model": "bigram", "max_tokens": tokens, "temperature": 0, "stream": true })
}

/// The text of a greedy answer, which would reveal reused blocks with another request's tokens.
fn answer(server: &Server) -> String {
    let body = body(&mut Random(42), 200);
    let events = Incoming::open(server.address, "/execute", &[], &body).events();
    assert_eq!(events.last().unwrap().name, "end", "{events:?}");
    events.iter().map(|event| event.data.clone()).filter(|data| data.starts_with("{\"text\"")).collect()
}

/// One client, which leaves at some point of its request or of the response.
fn visit(server: &Server, random: &mut Random) {
    let path =
        ["/execute", "/v1/completions", "/token_stream", "/v1/messages", "/v1/chat/completions"][random.below(5)];
    let mut body = body(random, 400);
    body["query"] = body["prompt"].clone();
    body["messages"] = json!([{ "role": "user", "content": body["prompt"] }]);
    let text = body.to_string();
    let mut connection = Connection::open(server.address);
    let length = text.len().to_string();
    let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
    let sent = if random.below(4) == 0 { random.below(text.len()) } else { text.len() };
    connection.ask("POST", path, &headers, &text.as_bytes()[..sent]);
    match random.below(4) {
        0 => {}
        1 => sleep(Duration::from_millis(random.below(30) as u64)),
        _ if sent < text.len() => {}
        _ => {
            let mut pieces = random.below(30);
            let head = connection.head().expect("an answer");
            assert_eq!(head.status, 200, "{head:?}");
            while pieces > 0 && connection.piece().is_some() {
                pieces -= 1;
            }
        }
    }
    connection.leave();
}

#[test]
fn a_thousand_clients_that_leave_at_random_leave_nothing_behind() {
    let (server, _checkpoint) = server();
    let before = answer(&server);
    let idle = |metrics: &std::collections::HashMap<String, f64>| {
        metrics[&format!("pensieve_streams{MODEL}")] == 0.0
            && metrics[&format!("pensieve_sequences_running{MODEL}")] == 0.0
            && metrics[&format!("pensieve_sequences_waiting{MODEL}")] == 0.0
            && metrics["pensieve_http_requests_in_flight"] == 1.0
    };
    let at_first = server.until("idle", idle);
    let next = AtomicUsize::new(0);
    scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let client = next.fetch_add(1, Ordering::Relaxed);
                    if client >= CLIENTS {
                        return;
                    }
                    visit(&server, &mut Random(client as u64));
                }
            });
        }
    });
    // Abandoned work ends once the data in the sockets has been read. Prompt processes started for many simultaneous
    // requests are kept: up to four per model, each with a few pipes. The ledger of usage is opened a second after the first
    // answer, for good.
    let at_last = server.until("as before", |metrics| {
        let more = (metrics["pensieve_child_processes"] - at_first["pensieve_child_processes"]).max(0.0);
        idle(metrics) && more <= 3.0 && metrics["process_open_fds"] <= at_first["process_open_fds"] + 1.0 + 4.0 * more
    });
    assert_eq!(at_last["pensieve_blocks{model=\"bigram\",state=\"active\"}"], 0.0);
    let blocks = |metrics: &std::collections::HashMap<String, f64>| {
        let of = |state: &str| metrics[&format!("pensieve_blocks{{model=\"bigram\",state=\"{state}\"}}")];
        of("free") + of("cached")
    };
    assert_eq!(blocks(&at_last), blocks(&at_first));
    assert_eq!(at_last[&format!("pensieve_worker_deaths_total{MODEL}")], 0.0);
    assert_eq!(at_last[&format!("pensieve_worker_loads_total{MODEL}")], 1.0);
    let abandoned: f64 =
        at_last.iter().filter(|(name, _)| name.starts_with("pensieve_http_requests_abandoned")).map(|(_, n)| n).sum();
    assert!(abandoned > 300.0, "hardly anybody left early: {abandoned}");
    assert_eq!(answer(&server), before);
}
