//! The door's cost: how much later pieces of an answer come through it than from the upstream itself, and how much memory a
//! stream takes. The bounds are for a debug build on a busy machine; `docs/scaling.md` has what was measured.

use serde_json::{Value, json};
use std::{net::SocketAddr, thread, time::Duration};

use super::{fake::*, serve};
use crate::{http::client::Incoming, processes::memory};

const STREAMS: usize = 200;
const PIECES: usize = 40;
const STREAM_BYTES_MAX: u64 = 64 << 10;

fn body(number: usize) -> Value {
    let messages = json!([{ "role": "user", "content": format!("conversation {number}") }]);
    // A small limit fits whatever the prompt is, so it is not counted.
    json!({ "model": "big", "messages": messages, "max_tokens": 100, "stream": true })
}

/// How long each piece of all streams was on its way, in microseconds, in order.
fn delays(address: SocketAddr) -> Vec<u64> {
    let mut delays: Vec<u64> = thread::scope(|scope| {
        let read = |number| {
            move || {
                let mut stream = Incoming::open(address, "/v1/chat/completions", &[], &body(number));
                assert_eq!(stream.head.status, 200);
                let mut delays = Vec::new();
                while let Some(event) = stream.event() {
                    let now = now_us();
                    if event.data == "[DONE]" {
                        break;
                    }
                    let written = event.json()["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
                    delays.extend(written.and_then(|text| text.trim().parse().ok()).map(|written: u64| now - written));
                }
                delays
            }
        };
        // Not all at the same moment, as they would go on so.
        let streams: Vec<_> = (0..STREAMS)
            .map(|number| {
                thread::sleep(Duration::from_millis(1));
                scope.spawn(read(number))
            })
            .collect();
        streams.into_iter().flat_map(|stream| stream.join().unwrap()).collect()
    });
    assert_eq!(delays.len(), STREAMS * PIECES);
    delays.sort_unstable();
    delays
}

#[test]
fn pieces_of_two_hundred_streams_pass_within_a_moment() {
    let fake = Fake::start(Behaviour::Stamped(PIECES, Duration::from_millis(200)));
    let server = serve(&[&fake], "");
    let at = |delays: &[u64], percent: usize| delays[delays.len() * percent / 100];
    // In turn, and the best of two: other work of the machine slows both.
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let (direct, through) = (delays(fake.address), delays(server.address));
        rounds.push([50, 99].map(|percent| at(&through, percent).saturating_sub(at(&direct, percent))));
        println!(
            "{STREAMS} streams: {} and {} us at p50 and p99 through the door, {} and {} without it",
            at(&through, 50),
            at(&through, 99),
            at(&direct, 50),
            at(&direct, 99)
        );
    }
    let best = rounds.iter().min().unwrap();
    println!("added: {} us at p50, {} us at p99", best[0], best[1]);
    assert!(best[0] < 20_000, "{best:?}");
}

#[test]
fn a_stream_takes_little_memory() {
    let fake = Fake::start(Behaviour::Hang(vec![text("Hel")]));
    let server = serve(&[&fake], "");
    let open = |count: usize| -> Vec<Incoming> {
        let begun = |number| {
            let mut stream = Incoming::open(server.address, "/v1/chat/completions", &[], &body(number));
            while !String::from_utf8_lossy(&stream.piece().expect("a piece")).contains("Hel") {}
            stream
        };
        (0..count).map(begun).collect()
    };
    // What is kept for all of them, and for the first of each thread.
    let first = open(20);
    let before = memory(server.pid()).unwrap().resident;
    let streams = open(STREAMS);
    let each = memory(server.pid()).unwrap().resident.saturating_sub(before) / STREAMS as u64;
    println!("{each} bytes for a stream");
    assert!(each < STREAM_BYTES_MAX, "{each} bytes for a stream");
    drop((first, streams));
}
