//! A model on this machine beside one elsewhere: which requests leave, and that it is told.

use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, Instant, SystemTime},
};
use tempfile::TempDir;

use super::fake::*;
use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post},
        server::{Options, Server},
    },
    scripted,
};

/// A scripted model here with these rules, and one on a fake.
fn start(root: &TempDir, fake: &Fake, rules: &str, settings: &str) -> Server {
    let source = root.path().join("scripted");
    scripted::checkpoint(&source, &[("", "Here.")]);
    let config = format!(
        "[[models]]\nid = \"small\"\naliases = [\"claude-haiku-*\"]\nsource = {source:?}\n{rules}\n\
         [[models]]\nid = \"big\"\naliases = [\"claude-opus-*\"]\nupstream = \"{}\"\n{settings}\n",
        fake.url()
    );
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, config, variables: vec![("TZ".into(), "UTC".into())], ..Options::default() }.start()
}

fn ask(server: &Server, model: &str) -> Reply {
    let body = json!({ "model": model, "max_tokens": 20, "messages": [{ "role": "user", "content": "hi" }] });
    let reply = post(server.address, "/v1/messages", &body);
    assert_eq!(reply.status(), 200, "{reply:?}");
    reply
}

fn said(reply: &Reply) -> Value {
    reply.json()["content"][0]["text"].clone()
}

/// All of the day but a minute that is hours away.
fn always() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 60;
    let time = |minute: u64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
    format!("{}-{}", time(now + 720), time(now + 719))
}

#[test]
fn names_are_split_between_this_machine_and_an_upstream() {
    let (root, fake) = (tempfile::tempdir().unwrap(), Fake::start(hello()));
    let server = start(&root, &fake, "", "");
    assert_eq!(said(&ask(&server, "claude-haiku-9")), "Here.");
    assert!(fake.asked().is_empty());
    assert_eq!(said(&ask(&server, "claude-opus-9")), "Hello");
    assert_eq!(fake.asked().len(), 1);
}

#[test]
fn a_request_is_handed_over_at_its_hours_unless_nobody_takes_it() {
    let (root, fake) = (tempfile::tempdir().unwrap(), Fake::start(hello()));
    let rules = format!("[models.handover]\nto = \"big\"\nhours = \"{}\"", always());
    let server = start(&root, &fake, &rules, "upstream_streams_max = 1");
    let away = ask(&server, "small");
    assert_eq!((away.header("pensieve-model"), away.header("pensieve-handover")), (Some("big"), Some("hours")));
    assert_eq!(said(&away), "Hello");
    let slow = [text("Slow")].into_iter().chain(end("stop")).collect();
    fake.set(Behaviour::Slowly(slow, Duration::from_secs(1)));
    thread::scope(|scope| {
        let first = scope.spawn(|| ask(&server, "small"));
        let deadline = Instant::now() + Duration::from_secs(10);
        while fake.asked().len() < 2 {
            assert!(Instant::now() < deadline, "the first one was not sent");
            thread::sleep(Duration::from_millis(10));
        }
        let second = ask(&server, "small");
        assert_eq!((said(&second), second.header("pensieve-handover")), (json!("Here."), None), "big is full");
        assert_eq!(said(&first.join().unwrap()), "Slow");
    });
    let log = server.stop();
    assert!(log.contains("model 'small' hands over to 'big' from "), "{log}");
}

#[test]
fn the_doctor_lists_what_may_leave_this_machine() {
    let fake = Fake::start(hello());
    let root = tempfile::tempdir().unwrap();
    let server = start(&root, &fake, "", "");
    let text = "[[models]]\nid = \"small\"\nsource = \"nowhere\"\n[models.handover]\nto = \"big\"\nstreams = 8\n\
                [[models]]\nid = \"big\"\nupstream = \"https://api.example.com/v1\"\n";
    let file = root.path().join("other.toml");
    fs::write(&file, text).unwrap();
    let program = server.home().path().join("bin").join("pensieve");
    let mut command = std::process::Command::new(program);
    command.arg("doctor").arg("--config").arg(&file).current_dir(root.path());
    command.env("PENSIEVE_HOME", server.home().path()).env("HOME", server.home().path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for line in [
        "'big' is computed by https://api.example.com/v1: requests for it leave this machine",
        "'small' hands over to 'big' if a prompt does not fit, if 8 requests run or wait",
    ] {
        assert!(said.contains(line), "{line:?} is not in {said}");
    }
}
