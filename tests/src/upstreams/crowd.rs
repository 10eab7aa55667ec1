//! Two hundred streams at once over two servers, one of which is killed, stopped, slowed down, or made to talk nonsense.

use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::fake::*;
use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::Incoming,
        server::{Options, PATIENCE, Server},
    },
    scripted,
};

const STREAMS: usize = 200;
/// A second is what it takes to find out about a server; the rest is for a busy machine.
const FOUND_OUT_MAX: Duration = Duration::from_secs(5);
const NAMES: [&str; 2] = ["alpha ", "bravo "];
const WORDS: usize = 25;

/// A stream as its client has seen it.
#[derive(Debug, Default)]
struct Seen {
    text: String,
    error: Option<String>,
    is_whole: bool,
    /// Of the prompt, and those from the cache.
    tokens: [u64; 2],
}

impl Seen {
    fn home(&self) -> Option<usize> {
        let first = self.text.chars().next()?;
        NAMES.iter().position(|name| name.starts_with(first))
    }

    fn is_all_of(&self, home: usize) -> bool {
        self.is_whole && self.error.is_none() && self.text == NAMES[home].repeat(WORDS)
    }
}

/// A server whose model says its name over and over.
fn engine(root: &Path, place: usize, listen: Option<SocketAddr>) -> Server {
    let source = root.join(NAMES[place].trim());
    scripted::checkpoint(&source, &[("", &NAMES[place].repeat(WORDS))]);
    let config =
        format!("[[models]]\nid = \"big\"\nsource = {source:?}\nthreads = 1\noptions = {{ step_us = 20000 }}\n");
    let arguments = listen.map(|address| vec!["--listen".to_owned(), address.to_string()]).unwrap_or_default();
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, config, arguments, ..Options::default() }.start()
}

/// The beginning of a conversation, with as many turns as there were.
fn conversation(number: usize, turns: usize) -> Value {
    let first = format!("conversation {number}: {}", "the quick brown fox jumps over the lazy dog. ".repeat(8));
    let mut messages = vec![json!({ "role": "user", "content": first })];
    for turn in 1..turns {
        messages.push(json!({ "role": "assistant", "content": format!("answer {turn}") }));
        messages.push(json!({ "role": "user", "content": format!("question {turn}") }));
    }
    json!({ "model": "big", "messages": messages, "max_tokens": 400, "temperature": 0, "stream": true,
        "stream_options": { "include_usage": true } })
}

/// Reads a stream to its end, and counts it once its first piece has come.
fn read(address: SocketAddr, body: &Value, begun: &AtomicUsize) -> Seen {
    let mut stream = Incoming::open(address, "/v1/chat/completions", &[], body);
    let mut seen = Seen::default();
    let mut has_begun = false;
    if stream.head.status != 200 {
        seen.error = Some(format!("status {}", stream.head.status));
    }
    while let Some(event) = stream.event() {
        assert!(seen.error.is_none(), "something follows the error: {event:?}");
        if event.data == "[DONE]" {
            seen.is_whole = true;
            continue;
        }
        let event = event.json();
        if let Some(error) = event["error"]["message"].as_str() {
            seen.error = Some(error.to_owned());
        }
        seen.text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if let Some(prompt) = event["usage"]["prompt_tokens"].as_u64() {
            let cached = &event["usage"]["prompt_tokens_details"]["cached_tokens"];
            seen.tokens = [prompt, cached.as_u64().unwrap_or(0)];
        }
        if !has_begun && !seen.text.is_empty() {
            has_begun = true;
            begun.fetch_add(1, Ordering::SeqCst);
        }
    }
    seen
}

/// One stream for each conversation, all at once.
fn all(address: SocketAddr, turns: usize, numbers: impl Iterator<Item = usize>) -> Vec<(usize, Seen)> {
    let begun = AtomicUsize::new(0);
    thread::scope(|scope| {
        let begun = &begun;
        let asked: Vec<_> = numbers
            .map(|number| (number, scope.spawn(move || read(address, &conversation(number, turns), begun))))
            .collect();
        asked.into_iter().map(|(number, asked)| (number, asked.join().unwrap())).collect()
    })
}

fn is_up(door: &Server, engine: SocketAddr) -> bool {
    let name = format!("pensieve_upstream_up{{model=\"big\",upstream=\"http://{engine}/v1\"}}");
    door.metrics()[&name] > 0.0
}

/// Time until a server is left out, or used again.
fn until_up(door: &Server, engine: SocketAddr, up: bool) -> Duration {
    let began = Instant::now();
    while is_up(door, engine) != up {
        assert!(began.elapsed() < PATIENCE, "up: {up}");
        thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

/// Conversations stay where they are while both servers are well; then one is ruined, and restored.
fn under_two_hundred_streams(what: &str, ruin: impl Fn(&mut Server), restore: impl Fn(&Path, Server) -> Server) {
    let root = tempfile::tempdir().unwrap();
    let mut dying = engine(root.path(), 0, None);
    let living = engine(root.path(), 1, None);
    let urls = [dying.address, living.address].map(|address| format!("http://{address}/v1"));
    let door = Options::configured(&format!("[[models]]\nid = \"big\"\nupstream = {urls:?}\n")).start();
    let address = door.address;

    // Two turns: the second finds the first in its server's cache.
    let first = all(address, 1, 0..STREAMS);
    let homes: Vec<usize> = first.iter().map(|(_, seen)| seen.home().unwrap_or_else(|| panic!("{seen:?}"))).collect();
    assert!(first.iter().zip(&homes).all(|((_, seen), home)| seen.is_all_of(*home)), "{first:?}");
    let of_dying = homes.iter().filter(|home| **home == 0).count();
    println!("{what}: {of_dying} of {STREAMS} conversations are at home on the server that is ruined");
    assert!((60..=140).contains(&of_dying));
    let second = all(address, 2, 0..STREAMS);
    let there = second.iter().zip(&homes).filter(|((_, seen), home)| seen.is_all_of(**home)).count();
    // All but the last block of what the first turn had in common with it can be found.
    let possible: u64 = first.iter().map(|(_, seen)| seen.tokens[0] / 16 * 16 - 16).sum();
    let found: u64 = second.iter().map(|(_, seen)| seen.tokens[1]).sum();
    println!("{what}: {there} stayed, {found} of {possible} tokens were found again");
    assert!(there * 100 >= STREAMS * 95 && found * 100 >= possible * 95, "{there} stayed, {found} of {possible}");

    // Half of them have begun, and the others ask now.
    let begun = AtomicUsize::new(0);
    let (early, late, left_out) = thread::scope(|scope| {
        let begun = &begun;
        let early: Vec<_> = (0..STREAMS / 2)
            .map(|number| scope.spawn(move || (number, read(address, &conversation(number, 3), begun))))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while begun.load(Ordering::SeqCst) < STREAMS / 2 {
            assert!(Instant::now() < deadline, "{} have begun", begun.load(Ordering::SeqCst));
            thread::sleep(Duration::from_millis(2));
        }
        ruin(&mut dying);
        let late: Vec<_> = (STREAMS / 2..STREAMS)
            .map(|number| scope.spawn(move || (number, read(address, &conversation(number, 3), begun))))
            .collect();
        let left_out = until_up(&door, dying.address, false);
        let join = |asked: Vec<thread::ScopedJoinHandle<'_, (usize, Seen)>>| {
            asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
        };
        (join(early), join(late), left_out)
    });
    println!("{what}: left out after {left_out:?}");
    assert!(left_out < FOUND_OUT_MAX, "{left_out:?}");
    let mut broken = 0;
    for (number, seen) in &early {
        let home = seen.home().unwrap_or_else(|| panic!("{number} has no text: {seen:?}"));
        if home == 0 && !seen.is_all_of(0) {
            // A part of the answer, and then an error in the form of the API.
            assert!(NAMES[0].repeat(WORDS).starts_with(&seen.text) && seen.error.is_some(), "{number}: {seen:?}");
            broken += 1;
        } else {
            assert!(seen.is_all_of(home), "{number}: {seen:?}");
        }
    }
    println!("{what}: {broken} of {} answers that had begun broke off", early.len());
    assert!(broken > 10, "the server was not ruined in time: {broken}");
    for (number, seen) in &late {
        assert!(seen.is_all_of(1) || (homes[*number] == 0 && seen.is_all_of(0)), "{number} is lost: {seen:?}");
    }

    // Those of the living server are where they were; once the other one is well its own come home.
    let ruined = dying.address;
    let dying = restore(root.path(), dying);
    println!("{what}: used again after {:?}", until_up(&door, ruined, true));
    let after = all(address, 4, 0..STREAMS);
    let there = after.iter().zip(&homes).filter(|((_, seen), home)| seen.is_all_of(**home)).count();
    assert!(there * 100 >= STREAMS * 95, "{there} are at home again");
    let of_living = after.iter().zip(&homes).filter(|(_, home)| **home == 1);
    let (kept, possible) = of_living.fold((0, 0), |(kept, possible), ((_, seen), _)| {
        (kept + seen.tokens[1], possible + seen.tokens[0] / 16 * 16 - 16)
    });
    println!("{what}: the other server's conversations found {kept} of {possible} tokens again");
    assert!(kept * 100 >= possible * 80, "{kept} of {possible}");
    drop((dying, living));
}

#[test]
fn a_server_that_is_killed_costs_only_the_answers_that_it_had_begun() {
    under_two_hundred_streams(
        "killed",
        |server| server.signal(libc::SIGKILL),
        |root, server| {
            let address = server.address;
            drop(server);
            engine(root, 0, Some(address))
        },
    );
}

#[test]
fn a_server_that_is_stopped_costs_only_the_answers_that_it_had_begun() {
    under_two_hundred_streams(
        "stopped",
        |server| server.signal(libc::SIGSTOP),
        |_, server| {
            server.signal(libc::SIGCONT);
            server
        },
    );
}

#[test]
fn a_server_that_turns_slow_or_talks_nonsense_costs_no_answer() {
    let pieces = || -> Vec<Value> { (0..10).map(|_| text("so ")).chain(end("stop")).collect() };
    let usual = || Behaviour::Slowly(pieces(), Duration::from_millis(50));
    let nonsense = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"choices\": 7}\n\n".to_vec();
    for (what, ruin) in [
        ("slow", Behaviour::Late(pieces(), Duration::from_secs(4))),
        ("slow in each piece", Behaviour::Slowly(pieces(), Duration::from_millis(500))),
        ("talking nonsense", Behaviour::Raw(nonsense)),
    ] {
        let (good, bad) = (Fake::start(usual()), Fake::start(usual()));
        let server = super::serve(&[&good, &bad], "");
        let (address, begun) = (server.address, AtomicUsize::new(0));
        let seen: Vec<Seen> = thread::scope(|scope| {
            let begun = &begun;
            let ask = |number| scope.spawn(move || read(address, &conversation(number, 1), begun));
            let early: Vec<_> = (0..STREAMS / 2).map(ask).collect();
            while begun.load(Ordering::SeqCst) < STREAMS / 4 {
                thread::sleep(Duration::from_millis(2));
            }
            bad.set(ruin.clone());
            let late: Vec<_> = (STREAMS / 2..STREAMS).map(ask).collect();
            if let Behaviour::Raw(_) = ruin {
                let left_out = until_up(&server, bad.address, false);
                println!("{what}: left out after {left_out:?}");
                assert!(left_out < FOUND_OUT_MAX, "{left_out:?}");
            }
            early.into_iter().chain(late).map(|asked| asked.join().unwrap()).collect()
        });
        for seen in &seen {
            assert!(seen.is_whole && seen.error.is_none() && seen.text == "so ".repeat(10), "{what}: {seen:?}");
        }
        bad.set(hello());
        let used = bad.asked_count();
        let began = Instant::now();
        until_up(&server, bad.address, true);
        while bad.asked_count() == used {
            assert!(began.elapsed() < PATIENCE, "{what}: it is not used again");
            all(address, 1, 0..20);
        }
        println!("{what}: used again after {:?}", began.elapsed());
    }
}
