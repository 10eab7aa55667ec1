//! `POST /api/pull`, from a test hub.

use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use super::{
    client::{Incoming, Reply, post},
    server::{Options, Server},
};
use crate::hub::{COMMIT, Fault, Hub};

const FILE: &str = "m-Q4_K_M.gguf";

struct Desk {
    hub: Hub,
    server: Server,
    cache: TempDir,
}

fn desk(config: &str) -> Desk {
    let hub = Hub::serve(&[(FILE, vec![7; 1_000_000])]);
    let cache = tempfile::tempdir().unwrap();
    let variables =
        vec![("HF_ENDPOINT".to_owned(), hub.endpoint()), ("HF_HOME".to_owned(), cache.path().display().to_string())];
    let server = Options { variables, config: config.to_owned(), ..Options::default() }.start();
    Desk { hub, server, cache }
}

impl Desk {
    fn pull(&self, body: &Value) -> Reply {
        post(self.server.address, "/api/pull", body)
    }

    fn file(&self) -> PathBuf {
        self.cache.path().join(format!("hub/models--owner--repo/snapshots/{COMMIT}/{FILE}"))
    }
}

fn lines(reply: &Reply) -> Vec<Value> {
    reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_model_of_the_hub_comes_with_lines_that_tell_how_far_it_is() {
    let desk = desk("");
    let reply = desk.pull(&json!({"model": "hf.co/owner/repo"}));
    assert_eq!((reply.status(), reply.header("content-type")), (200, Some("application/x-ndjson")));
    let lines = lines(&reply);
    assert_eq!(
        (&lines[0], lines.last().unwrap()),
        (&json!({"status": "pulling manifest"}), &json!({"status": "success"}))
    );
    let last = lines.iter().rfind(|line| line["completed"].is_u64()).unwrap();
    assert_eq!(
        (&last["completed"], &last["total"], &last["digest"]),
        (&json!(1_000_000), &json!(1_000_000), &json!(FILE))
    );
    assert!(lines[lines.len() - 2]["status"].as_str().unwrap().contains("serve --model ID=hf:owner/repo"), "{lines:?}");
    assert_eq!(fs::read(desk.file()).unwrap().len(), 1_000_000);
    // Existing files are not requested again, and a served model needs no hub.
    let again = desk.pull(&json!({"model": "hf:owner/repo", "stream": false}));
    assert_eq!((again.status(), again.json()), (200, json!({"status": "success"})));
    assert_eq!(desk.hub.asked("/resolve/").len(), 1);
    assert_eq!(lines_of(&desk.pull(&json!({"model": "nothing"}))), [json!({"status": "success"})]);
}

fn lines_of(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status(), 200, "{reply:?}");
    lines(reply)
}

#[test]
fn what_cannot_be_pulled_is_refused_in_words() {
    let desk = desk("");
    let check = |body: Value, status: u16, words: &str| {
        let reply = desk.pull(&body);
        let error = reply.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status() == status && error.contains(words), "{words}: {reply:?}");
    };
    check(json!({}), 400, "model: this field is required");
    check(json!({"model": "llama3"}), 404, "hf:OWNER/REPO");
    check(json!({"model": "hf:owner"}), 400, "is not a name on the hub");
    check(json!({"model": "hf:owner/repo", "stream": "yes"}), 400, "stream: should be true or false");
    check(json!({"model": "hf:owner/none", "stream": false}), 404, "owner/none");
    let lines = lines_of(&desk.pull(&json!({"model": "hf:owner/none"})));
    assert!(lines.last().unwrap()["error"].as_str().unwrap().contains("owner/none"), "{lines:?}");
    let closed = self::desk("[server]\nmodel_downloads = \"refuse\"");
    let refused = closed.pull(&json!({"model": "hf:owner/repo"}));
    assert!(refused.status() == 403 && refused.text().contains("model_downloads"), "{refused:?}");
    assert!(closed.hub.asked("").is_empty());
}

#[test]
fn a_client_that_leaves_ends_its_download_and_another_one_goes_on_there() {
    let desk = desk("");
    desk.hub.fail("/resolve/", Fault::Trickle(20_000, Duration::from_millis(50)));
    let body = json!({"model": "hf:owner/repo"});
    let mut first = Incoming::open(desk.server.address, "/api/pull", &[], &body);
    while !String::from_utf8(first.piece().unwrap()).unwrap().contains("pulling m-") {}
    let second = desk.pull(&body);
    assert!(second.status() == 503 && second.header("retry-after").is_some(), "one at a time: {second:?}");
    drop(first);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let reply = desk.pull(&json!({"model": "hf:owner/repo", "stream": false}));
        if reply.status() == 200 {
            break;
        }
        assert!(reply.status() == 503 && Instant::now() < deadline, "{reply:?}");
        thread::sleep(Duration::from_millis(20));
    }
    let asked = desk.hub.asked("/resolve/");
    let from: usize =
        asked[1].range.as_ref().unwrap().trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap();
    assert!(asked.len() == 2 && from < 1_000_000, "the rest alone is asked for: {asked:?}");
}
