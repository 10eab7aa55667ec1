//! Upstreams that flood, redirect, compress, lie, stall and break off.

use serde_json::json;
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{APIS, ask, fake::*, serve};
use crate::{
    http::client::{Connection, post},
    processes::memory,
};

/// Growth of the server that one bad upstream may cause.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// No bad answer may take longer, whatever its upstream does: the time without a byte is one second here.
const TIME_MAX: Duration = Duration::from_secs(20);

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";

fn raw(head: &str, body: &[u8]) -> Behaviour {
    Behaviour::Raw([head.as_bytes(), b"\r\n", body].concat())
}

fn flood(head: &str, more: &[u8]) -> Behaviour {
    Behaviour::Flood(head.as_bytes().to_vec(), more.repeat(1 + (64 << 10) / more.len()))
}

fn attacks(elsewhere: &Fake) -> Vec<(&'static str, Behaviour)> {
    let redirect = format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {}/chat/completions\r\n", elsewhere.url());
    let chunked = format!("{STREAM}transfer-encoding: chunked\r\n\r\n");
    let long = "0123456789".repeat(50);
    vec![
        (
            "headers without an end",
            flood("HTTP/1.1 200 OK\r\n", b"x-more: 0123456789012345678901234567890123456789\r\n"),
        ),
        ("a header without an end", flood("HTTP/1.1 200 OK\r\nx: ", b"0123456789")),
        ("a status line without an end", flood("HTTP/1.1 200 ", b"OK")),
        ("words before the answer", flood("", b"HTTP/1.1 100 Continue\r\n\r\n")),
        ("an event without an end", flood(&format!("{STREAM}\r\ndata: "), b"0123456789")),
        ("a chunk size without an end", flood(&chunked, b"0")),
        ("extensions of a chunk without an end", flood(&format!("{chunked}1;"), b"x=y;")),
        ("a redirect", raw(&format!("{redirect}content-length: 0\r\n"), b"")),
        ("a bomb", raw(&format!("{STREAM}content-encoding: gzip\r\n"), &[0x1f, 0x8b, 8, 0])),
        ("no HTTP", Behaviour::Raw(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())),
        ("a page", raw("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n", b"<html>")),
        ("an error without an end", flood("HTTP/1.1 400 Bad Request\r\n\r\n", b"no, ")),
        ("no JSON", raw(STREAM, b"data: <html>\n\n")),
        ("JSON of another kind", raw(STREAM, b"data: {\"choices\": 7}\n\n")),
        ("deep JSON", raw(STREAM, &[b"data: {\"choices\":", "[".repeat(1 << 20).as_bytes(), b"\n\n"].concat())),
        (
            "choices without an end",
            raw(STREAM, &[b"data: {\"choices\":[{}", ",{}".repeat(1_398_000).as_bytes(), b"]}\n\n"].concat()),
        ),
        (
            "calls without an end",
            raw(
                STREAM,
                &[
                    b"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}",
                    ",{}".repeat(1_398_000).as_bytes(),
                    b"]}}]}\n\n",
                ]
                .concat(),
            ),
        ),
        ("comments without an end", flood(&format!("{STREAM}\r\n"), format!(": {long}\n").as_bytes())),
        ("unknown fields without an end", flood(&format!("{STREAM}\r\n"), format!("id: {long}\n\n").as_bytes())),
        (
            "empty pieces without an end",
            flood(&format!("{STREAM}\r\n"), format!("data: {{\"id\":\"{long}\"}}\n\n").as_bytes()),
        ),
        ("nothing at all", Behaviour::Silent),
        ("an end before the beginning", Behaviour::Drop(vec![])),
        ("an answer without an end", raw(STREAM, b"data: [DONE]\n\n")),
    ]
}

#[test]
fn harms_only_its_own_requests() {
    let (bad, elsewhere, good) = (Fake::start(hello()), Fake::start(hello()), Fake::start(hello()));
    let second = format!("[[models]]\nid = \"good\"\nupstream = \"{}\"", good.url());
    let server = serve(&[&bad], &format!("upstream_timeout = \"1s\"\nupstream_key_env = \"BIG_KEY\"\n{second}"));
    let others_are_served = || {
        let body = json!({ "model": "good", "messages": [{ "role": "user", "content": "hi" }] });
        let reply = post(server.address, "/v1/chat/completions", &body);
        assert_eq!(reply.status(), 200, "{reply:?}");
    };
    others_are_served();
    ask(&server, "chat", false);
    let before = memory(server.pid()).unwrap().peak;
    for (name, attack) in attacks(&elsewhere) {
        for (api, stream) in [("messages", true), ("chat", false)] {
            bad.set(attack.clone());
            let began = Instant::now();
            let reply = ask(&server, api, stream);
            assert!(began.elapsed() < TIME_MAX, "{name}: {:?}", began.elapsed());
            let is_error = reply.text().contains("error");
            // An upstream that takes a while to fail does so after the status of a stream.
            assert!(is_error && (reply.status() >= 400 || stream), "{name}, {api}: {reply:?}");
            assert!(!reply.text().contains(super::KEY), "{name}: {reply:?}");
            others_are_served();
            // Three failures in a row close it; the fake answers probes, so it is soon open again.
            bad.set(hello());
            let deadline = Instant::now() + TIME_MAX;
            while ask(&server, "chat", false).status() != 200 {
                assert!(Instant::now() < deadline, "{name}: it is not used again");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    assert!(elsewhere.asked().is_empty(), "a redirect was followed");
    let growth = memory(server.pid()).unwrap().peak.saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "the server grew by {growth} bytes");
    assert!(!server.stop().contains(super::KEY));
}

#[test]
fn an_answer_that_breaks_off_ends_in_an_error_of_its_api() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "upstream_timeout = \"1s\"");
    for behaviour in [Behaviour::Drop(vec![text("Hel")]), Behaviour::Hang(vec![text("Hel")])] {
        for (api, ..) in APIS.iter().filter(|(api, ..)| *api != "completions") {
            fake.set(behaviour.clone());
            let reply = ask(&server, api, true);
            let text = reply.text();
            assert!(reply.status() == 200 && text.contains("Hel"), "{api}: {reply:?}");
            let last = text.lines().rfind(|line| line.contains('{')).unwrap_or_default();
            let last: serde_json::Value = serde_json::from_str(last.trim_start_matches("data: ")).unwrap();
            let is_error = match *api {
                "messages" => last["type"] == "error" && last["error"]["type"].is_string(),
                "chat" => last["error"]["message"].is_string(),
                "responses" => last["type"] == "response.failed" || last["type"] == "error",
                _ => last["error"].is_string() || last["error"]["message"].is_string(),
            };
            assert!(is_error, "{api}: {last}");
            assert!(!text.contains("[DONE]") || *api == "chat", "{api}: {text}");
            let whole = ask(&server, api, false);
            assert_eq!(whole.status(), 502, "{api}: {whole:?}");
            fake.set(hello());
            let deadline = Instant::now() + TIME_MAX;
            while ask(&server, "chat", false).status() != 200 {
                assert!(Instant::now() < deadline, "it is not used again");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    assert!(fake.abandoned.load(Ordering::SeqCst) > 0, "it was disconnected when it stalled");
}

#[test]
fn a_stream_that_goes_on_without_saying_anything_ends() {
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "upstream_timeout = \"1s\"");
    let nothing = json!({ "choices": [{ "index": 0, "delta": {} }] });
    for (pieces, expected) in [(vec![], 502), (vec![text("Hel")], 200)] {
        // A minute of it, never silent for a second.
        let drips = pieces.into_iter().chain(vec![nothing.clone(); 200]).collect();
        fake.set(Behaviour::Slowly(drips, Duration::from_millis(300)));
        let began = Instant::now();
        let reply = ask(&server, "chat", expected == 200);
        let taken = began.elapsed();
        assert!(reply.status() == expected && reply.text().contains("error"), "{reply:?}");
        assert!(taken > Duration::from_secs(9) && taken < TIME_MAX, "{taken:?}");
    }
}

#[test]
fn an_answer_to_another_request_is_shown_to_nobody() {
    let answer = |said: &str| [text(said)].into_iter().chain(end("stop")).collect::<Vec<_>>();
    let fake = Fake::start(hello());
    let server = serve(&[&fake], "");
    for pause in [Duration::ZERO, Duration::from_millis(20)] {
        fake.set(Behaviour::Twice(answer("first"), answer("second"), pause));
        let reply = ask(&server, "chat", false);
        assert!(reply.text().contains("first") && !reply.text().contains("second"), "{reply:?}");
        std::thread::sleep(pause * 2);
        fake.set(hello());
        for _ in 0..20 {
            let reply = ask(&server, "chat", false);
            assert!(reply.status() == 200 && reply.text().contains("Hello"), "{reply:?}");
        }
    }
}

#[test]
fn several_answers_share_the_body_of_their_request() {
    const PICTURE_BYTES: usize = 16 << 20;
    let fake = Fake::start(Behaviour::Silent);
    let known = "upstream_kind = \"vllm\"\ncontext = 1000000000\nupstream_images = true\n";
    let server = serve(&[&fake], known);
    let before = memory(server.pid()).unwrap().resident;
    let picture = format!("data:image/png;base64,iVBORw0KGgo{}A", "A".repeat(PICTURE_BYTES));
    let content = json!([{ "type": "image_url", "image_url": { "url": picture } }]);
    let body = json!({ "model": "big", "n": 8, "messages": [{ "role": "user", "content": content }] }).to_string();
    let mut connection = Connection::open(server.address);
    connection.ask("POST", "/v1/chat/completions", &[("content-type", "application/json")], body.as_bytes());
    let deadline = Instant::now() + 6 * TIME_MAX;
    while fake.asked_count() < 8 {
        assert!(Instant::now() < deadline, "{} of 8 were sent on", fake.asked_count());
        std::thread::sleep(Duration::from_millis(100));
    }
    let growth = memory(server.pid()).unwrap().peak.saturating_sub(before);
    println!("{} MiB more at the most", growth >> 20);
    // The body, the picture, and what is sent, once each; some of it twice for a moment.
    assert!(growth < 9 * PICTURE_BYTES as u64, "the server grew by {} MiB", growth >> 20);
    connection.leave();
    assert_eq!(server.get("/health").status(), 200);
}
