//! Changes of the configuration while answers run: they finish where they began, and new ones go where it says now.

use serde_json::Value;
use std::{
    fs, thread,
    time::{Duration, Instant},
};

use super::{ask, body, fake::*, serve};
use crate::http::{client::Incoming, server::Server};

fn rewrite(server: &Server, config: &str) {
    let file = server.home().path().join("pensieve.toml");
    let new = file.with_extension("new");
    fs::write(&new, config).unwrap();
    fs::rename(new, file).unwrap();
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_that_is_taken_out_finishes_and_is_left_alone() {
    let pieces: Vec<Value> = (0..20).map(|_| text("slow ")).chain(end("stop")).collect();
    let (old, new) = (Fake::start(Behaviour::Slowly(pieces, Duration::from_millis(250))), Fake::start(hello()));
    let server = serve(&[&old], "");
    let (path, asked) = body("chat", true);
    let stream = Incoming::open(server.address, &path, &[], &asked);
    rewrite(&server, &format!("[[models]]\nid = \"big\"\nupstream = \"{}\"\n", new.url()));
    until("the new server is not asked", || {
        assert_eq!(ask(&server, "chat", false).status(), 200);
        !new.asked().is_empty()
    });
    let before = old.asked().len();
    let events = stream.events();
    let said = events.iter().filter(|event| event.data.contains("slow ")).count();
    assert!(said == 20 && events.last().is_some_and(|event| event.data == "[DONE]"), "{events:?}");
    let seen = old.seen().len();
    assert_eq!(ask(&server, "chat", false).status(), 200);
    thread::sleep(Duration::from_secs(2));
    assert_eq!((old.asked().len(), old.seen().len()), (before, seen), "it was asked again");
}

#[test]
fn a_key_that_changes_in_its_file_is_used_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "sk-before").unwrap();
    let fake = Fake::start(hello());
    let server = serve(&[&fake], &format!("upstream_key_file = {file:?}"));
    let key = || {
        assert_eq!(ask(&server, "chat", false).status(), 200);
        fake.asked().last().and_then(|seen| seen.header("authorization").map(str::to_owned))
    };
    assert_eq!(key().as_deref(), Some("Bearer sk-before"));
    fs::write(&file, "sk-after").unwrap();
    until("the new key is not used", || key().as_deref() == Some("Bearer sk-after"));
    assert!(!server.stop().contains("sk-"));
}
