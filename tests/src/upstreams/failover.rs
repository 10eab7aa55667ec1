//! What another server takes over, and what is tried no further.

use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

use super::{ask, fake::*, serve};
use crate::http::client::post;

fn reported() -> Behaviour {
    Behaviour::Say(vec![json!({ "error": { "message": "the KV cache is full", "code": 500 } })])
}

#[test]
fn an_error_in_a_stream_before_any_text_is_another_servers_turn() {
    let (bad, good) = (Fake::start(reported()), Fake::start(hello()));
    let server = serve(&[&bad, &good], "");
    for conversation in 0..10 {
        let messages = json!([{ "role": "user", "content": format!("conversation {conversation}") }]);
        let reply = post(server.address, "/v1/chat/completions", &json!({ "model": "big", "messages": messages }));
        assert!(reply.status() == 200 && reply.text().contains("Hello"), "{reply:?}");
    }
    assert!(!bad.asked().is_empty(), "it was asked first by some");
    good.set(reported());
    let reply = ask(&server, "chat", false);
    assert!(reply.status() == 502 && reply.text().contains("the KV cache is full"), "{reply:?}");
}

#[test]
fn text_that_comes_with_an_error_is_shown_before_it() {
    let error = json!({ "error": { "message": "the KV cache is full" } });
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let (said, other) = (Fake::start(hello()), Fake::start(hello()));
    for fake in [&said, &other] {
        fake.set(Behaviour::Raw(format!("{head}data: {}\n\ndata: {error}\n\n", text("Hel")).into_bytes()));
    }
    let server = serve(&[&said, &other], "");
    for api in ["messages", "chat", "responses"] {
        let reply = ask(&server, api, true).text();
        assert!(reply.contains("Hel") && reply.contains("the KV cache is full"), "{api}: {reply}");
    }
    assert_eq!(said.asked().len() + other.asked().len(), 3, "no other server begins anew");
}

#[test]
fn a_request_that_makes_servers_fail_is_sent_to_three_at_most() {
    let failing: [(&str, Behaviour); 3] = [
        ("fail", response("500 Internal Server Error", "", "{}")),
        ("hang up", Behaviour::Drop(vec![])),
        ("report an error", reported()),
    ];
    for (what, behaviour) in failing {
        let fakes: Vec<Fake> = (0..6).map(|_| Fake::start(behaviour.clone())).collect();
        let server = serve(&fakes.iter().collect::<Vec<_>>(), "");
        let reply = ask(&server, "chat", false);
        assert_eq!(reply.status(), 502, "servers that {what}: {reply:?}");
        let asked: usize = fakes.iter().map(|fake| fake.asked().len()).sum();
        assert_eq!(asked, 3, "servers that {what}");
    }
    // One that has not seen it cannot have failed because of it.
    let fakes: Vec<Fake> = (0..6).map(|_| Fake::start(response("503 Service Unavailable", "", "{}"))).collect();
    fakes[5].set(hello());
    let server = serve(&fakes.iter().collect::<Vec<_>>(), "");
    assert_eq!(ask(&server, "chat", false).status(), 200);
}

#[test]
fn a_connection_that_the_server_gave_up_costs_no_answer() {
    let pieces: Vec<_> = [text("Hello")].into_iter().chain(end("stop")).collect();
    let fake = Fake::start(Behaviour::Once(pieces));
    let server = serve(&[&fake], "");
    // The connection on which it is asked about itself is kept.
    assert_eq!(server.get("/v1/models").status(), 200);
    thread::sleep(Duration::from_millis(200));
    for _ in 0..5 {
        let reply = ask(&server, "chat", false);
        assert!(reply.status() == 200 && reply.text().contains("Hello"), "{reply:?}");
    }
    assert_eq!(fake.asked().len(), 5, "each has a connection of its own");
}

#[test]
fn nobody_waits_for_a_server_that_has_stopped_while_another_tells_about_itself() {
    let (stopped, good) = (Fake::start(Behaviour::Stopped), Fake::start(hello()));
    let server = serve(&[&stopped, &good], "");
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(server.get("/v1/models").json()["data"][0]["context_length"], 4096));
        }
    });
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // A count goes on with the next server, too.
    good.set(response("200 OK", "", r#"{"count": 123}"#));
    for conversation in 0..8 {
        let began = Instant::now();
        let messages = json!([{ "role": "user", "content": format!("conversation {conversation}") }]);
        let reply = post(server.address, "/v1/messages/count_tokens", &json!({ "model": "big", "messages": messages }));
        assert_eq!(reply.json()["input_tokens"], 123, "{reply:?}");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}
