//! Several servers behind one model: conversations stay with one, and the loss of another costs no answer.

use serde_json::json;
use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use super::{fake::*, serve};
use crate::http::{
    client::{Reply, post},
    server::Server,
};

const CONVERSATIONS: usize = 40;

fn ask(server: &Server, conversation: usize) -> Reply {
    let body =
        json!({ "model": "big", "messages": [{ "role": "user", "content": format!("conversation {conversation}") }] });
    post(server.address, "/v1/chat/completions", &body)
}

/// Which of the servers has seen each conversation, in order.
fn homes(fakes: &[&Fake]) -> HashMap<String, Vec<usize>> {
    let mut homes: HashMap<String, Vec<usize>> = HashMap::new();
    for (place, fake) in fakes.iter().enumerate() {
        for seen in fake.asked() {
            let text = seen.body["messages"][0]["content"].as_str().unwrap().to_owned();
            homes.entry(text).or_default().push(place);
        }
    }
    homes
}

#[test]
fn conversations_stay_where_their_cache_is() {
    let fakes = [Fake::start(hello()), Fake::start(hello()), Fake::start(hello())];
    let fakes: Vec<&Fake> = fakes.iter().collect();
    let server = serve(&fakes, "");
    for _ in 0..3 {
        (0..CONVERSATIONS).for_each(|conversation| assert_eq!(ask(&server, conversation).status(), 200));
    }
    let homes = homes(&fakes);
    assert_eq!(homes.len(), CONVERSATIONS);
    assert!(
        homes.values().all(|places| places.len() == 3 && places.iter().all(|place| *place == places[0])),
        "{homes:?}"
    );
    for place in 0..3 {
        let count = homes.values().filter(|places| places[0] == place).count();
        assert!((4..=26).contains(&count), "server {place} has {count} of {CONVERSATIONS}");
    }
}

#[test]
fn whatever_becomes_of_one_server_no_answer_is_lost_before_it_begins() {
    let ruins = [
        ("is gone", Behaviour::Drop(vec![])),
        (
            "talks nonsense",
            Behaviour::Raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ?\n\n".to_vec()),
        ),
        ("is broken", response("502 Bad Gateway", "", "{}")),
        ("is busy", response("503 Service Unavailable", "retry-after: 1\r\n", "{}")),
        ("fails", response("500 Internal Server Error", "", "{}")),
        ("says nothing", Behaviour::Silent),
    ];
    for (what, ruin) in ruins {
        let (good, bad) = (Fake::start(hello()), Fake::start(hello()));
        let server = serve(&[&good, &bad], "upstream_timeout = \"1s\"");
        assert_eq!(ask(&server, 0).status(), 200);
        bad.set(ruin);
        thread::scope(|scope| {
            for conversation in 0..CONVERSATIONS {
                let server = &server;
                scope.spawn(move || {
                    let reply = ask(server, conversation);
                    assert_eq!(reply.status(), 200, "a server {what}: {reply:?}");
                });
            }
        });
        // Once it is well again its conversations come home.
        bad.set(hello());
        let before = bad.asked().len();
        let deadline = Instant::now() + Duration::from_secs(20);
        while bad.asked().len() == before {
            assert!(Instant::now() < deadline, "a server that {what} is not used again");
            (0..CONVERSATIONS).for_each(|conversation| assert_eq!(ask(&server, conversation).status(), 200));
            thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_server_that_has_stopped_is_left_within_seconds_and_one_set_up_wrongly_at_once() {
    let wrong = || response("401 Unauthorized", "", "{}");
    for (what, ruin) in [("stopped", Behaviour::Stopped), ("refuses the key", wrong())] {
        let (good, bad) = (Fake::start(hello()), Fake::start(hello()));
        let server = serve(&[&good, &bad], "");
        assert_eq!(ask(&server, 0).status(), 200);
        bad.set(ruin);
        for conversation in 0..10 {
            let began = Instant::now();
            let reply = ask(&server, conversation);
            assert_eq!(reply.status(), 200, "a server that {what}: {reply:?}");
            // About one second; the rest is for a busy machine.
            assert!(began.elapsed() < Duration::from_secs(5), "a server that {what}: {:?}", began.elapsed());
        }
        // Whether a server answers at all is found out without a request.
        assert!(what == "stopped" || !bad.asked().is_empty(), "{what}");
    }
}

#[test]
fn more_than_one_server_may_take_goes_to_the_others_or_waits_outside() {
    let slow = || Behaviour::Slowly(vec![text("a"), end("stop")[0].clone()], Duration::from_millis(700));
    let (one, two) = (Fake::start(slow()), Fake::start(slow()));
    let server = serve(&[&one, &two], "upstream_streams_max = 2");
    let statuses: Vec<u16> = thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|n| {
                let server = &server;
                scope.spawn(move || ask(server, n).status())
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(served, 4, "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!((one.asked().len(), two.asked().len()), (2, 2));
}
