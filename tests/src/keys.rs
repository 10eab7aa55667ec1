//! Keys with names: what each may use, what it has used, and that this outlives restarts, crashes and changes of keys.

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{
    artifacts::{plugin, test_plugin},
    cli::{Desk, files},
    http::{
        client::{Incoming, Reply, request},
        server::{Options, Server, home},
    },
    scripted::checkpoint,
};
use pensieve_server::http::Key;

const CHAT: &str = "/v1/chat/completions";
const LONG: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen";
const OWN: &str = "the-key-of-the-server";
const ALICE: &str = "pensieve-key-of-alice-0000000000000000";
const BOB: &str = "pensieve-key-of-bob-000000000000000000";
const LATER: &str = "pensieve-key-of-alice-1111111111111111";

/// An answer that takes many seconds, and does not repeat itself.
fn longer() -> String {
    (0..250).map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
}

/// An entry of `[[keys]]`.
fn entry(name: &str, key: &str, more: &str) -> String {
    format!("[[keys]]\nname = \"{name}\"\nhash = \"{}\"\n{more}\n", Key::new(key).hash())
}

struct Case {
    root: TempDir,
    home: Arc<TempDir>,
}

impl Case {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        checkpoint(&root.path().join("scripted"), &[("longer", &longer()), ("long", LONG), ("", "Hello!")]);
        Self { root, home: home() }
    }

    /// The whole configuration with these keys: the models 'small', which is slow, and 'large', with another name.
    fn config(&self, keys: &str) -> String {
        let source = self.root.path().join("scripted");
        let model = |id: &str, more: &str| {
            let rest = "threads = 1\nkv_budget = \"4MiB\"\noptions = { token_us = 10_000 }\n";
            format!("[[models]]\nid = \"{id}\"\nsource = \"{}\"\n{rest}{more}", source.display())
        };
        let models = [model("small", ""), model("large", "aliases = [\"claude-*\"]\n")].concat();
        format!("[server]\nkey = \"{OWN}\"\n{models}{keys}")
    }

    fn start(&self, keys: &str) -> Server {
        let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
        Options { plugins, config: self.config(keys), ..Options::default() }.start_in(&self.home)
    }

    /// Replaces the configuration, and waits for the words in the log.
    fn change(&self, server: &Server, keys: &str, words: &str) {
        let file = self.home.path().join("pensieve.toml");
        let new = file.with_extension("new");
        fs::write(&new, self.config(keys)).unwrap();
        fs::rename(new, file).unwrap();
        until(words, || server.log().contains(words));
    }

    fn ledger(&self) -> PathBuf {
        self.home.path().join("usage/keys.txt")
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "not {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn send(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    request(server.address, method, path, &headers, body.as_bytes())
}

fn get(server: &Server, key: &str, path: &str) -> Reply {
    send(server, key, "GET", path, &Value::Null)
}

fn body(model: &str, text: &str) -> Value {
    json!({ "model": model, "max_tokens": 200, "messages": [{ "role": "user", "content": text }] })
}

fn ask(server: &Server, key: &str, model: &str) -> Reply {
    send(server, key, "POST", CHAT, &body(model, "hello"))
}

/// The stream of an answer, which takes about 10 ms a letter.
fn stream(server: &Server, key: &str, text: &str) -> Incoming {
    let mut body = body("small", text);
    (body["stream"], body["max_tokens"]) = (true.into(), 2000.into());
    let incoming = Incoming::open(server.address, CHAT, &[("authorization", &format!("Bearer {key}"))], &body);
    assert_eq!(incoming.head.status, 200);
    incoming
}

/// The text of a stream, which has to end well.
fn text(incoming: Incoming) -> String {
    let events = incoming.events();
    assert_eq!(events.last().unwrap().data, "[DONE]", "{events:?}");
    let chunks = events.iter().filter(|event| event.data != "[DONE]").map(super::http::client::ServerEvent::json);
    chunks.filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect()
}

/// Usage of the key with this name, as the server's own key sees it.
fn used(server: &Server, name: &str) -> Value {
    let keys = get(server, OWN, "/v1/usage").json()["keys"].clone();
    let found = keys.as_array().unwrap().iter().find(|key| key["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {keys}")).clone()
}

fn message(reply: &Reply) -> String {
    reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_key_uses_the_models_that_it_may_use_and_sees_no_others() {
    let case = Case::new();
    let keys = [entry("alice", ALICE, "models = [\"sm*\"]"), entry("bob", BOB, "")].concat();
    let server = case.start(&keys);
    for (key, model, status) in [
        (ALICE, "small", 200),
        (ALICE, "large", 403),
        (ALICE, "claude-opus", 403),
        // Names of nothing are answered by the first model, which it may use.
        (ALICE, "nothing", 200),
        (BOB, "large", 200),
        (OWN, "large", 200),
        ("pensieve-key-of-nobody-00000000000000", "small", 401),
    ] {
        assert_eq!(ask(&server, key, model).status(), status, "{key} {model}");
    }
    let refused = ask(&server, ALICE, "large");
    assert_eq!(
        message(&refused),
        "model: the key 'alice' may not use a model 'large'; GET /v1/models lists those that it may use"
    );
    assert_eq!(refused.json()["error"]["code"], "permission_denied");
    // Every route that a model computes, in its API's form.
    for (path, more) in [
        ("/v1/messages", json!({})),
        ("/v1/messages/count_tokens", json!({})),
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/v1/responses", json!({ "input": "a" })),
        ("/v1/responses/input_tokens", json!({ "input": "a" })),
        ("/v1/embeddings", json!({ "input": "a" })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
        ("/v1/score", json!({ "text_1": "a", "text_2": "b" })),
        ("/v1/classify", json!({ "input": "a" })),
        ("/api/chat", json!({})),
        ("/api/generate", json!({ "prompt": "a" })),
        ("/api/generate", json!({ "keep_alive": 0 })),
        ("/api/embed", json!({ "input": "a" })),
        ("/api/embed", json!({ "input": [] })),
        ("/v1beta/models/large:generateContent", json!({ "contents": [{ "parts": [{ "text": "a" }] }] })),
        ("/v1beta/models/large:countTokens", json!({ "contents": [{ "parts": [{ "text": "a" }] }] })),
    ] {
        let mut sent = if more.get("contents").is_some() { json!({}) } else { body("large", "hello") };
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if sent.get("input").or(sent.get("query")).or(sent.get("text_1")).or(sent.get("prompt")).is_some() {
            sent.as_object_mut().unwrap().retain(|name, _| name != "messages" && name != "max_tokens");
        }
        let reply = send(&server, ALICE, "POST", path, &sent);
        assert_eq!(reply.status(), 403, "{path} {sent}: {reply:?}");
        assert!(reply.text().contains("may not use a model 'large'"), "{reply:?}");
    }
    let ids = |key: &str, path: &str, list: &str, name: &str| -> Vec<String> {
        let listed = get(&server, key, path).json();
        listed[list].as_array().unwrap().iter().map(|model| model[name].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(ALICE, "/v1/models", "data", "id"), ["small"]);
    assert_eq!(ids(ALICE, "/api/tags", "models", "model"), ["small"]);
    assert_eq!(ids(ALICE, "/api/ps", "models", "model"), ["small"]);
    assert_eq!(ids(ALICE, "/v1beta/models", "models", "name"), ["models/small"]);
    assert_eq!(ids(BOB, "/v1/models", "data", "id"), ["small", "large"]);
    let one = |key: &str, path: &str| get(&server, key, path).status();
    assert_eq!((one(ALICE, "/v1/models/small"), one(ALICE, "/v1/models/large")), (200, 404));
    assert_eq!(send(&server, ALICE, "POST", "/api/show", &json!({ "model": "large" })).status(), 404);
    // What others would notice takes the server's own key.
    for (method, path) in [
        ("GET", "/metrics"),
        ("POST", "/v1/models/small/unload"),
        ("POST", "/v1/models/small/pin"),
        ("DELETE", "/v1/models/small/pin"),
        ("POST", "/v1/models/small/adapters"),
        ("DELETE", "/v1/models/small/adapters/x"),
        ("POST", "/api/pull"),
    ] {
        let reply = send(&server, BOB, method, path, &json!({}));
        assert!(reply.status() == 403 && reply.text().contains("server.key"), "{method} {path}: {reply:?}");
    }
    assert_eq!(send(&server, OWN, "POST", "/v1/models/small/unload", &json!({})).status(), 200);
    let log = server.stop();
    assert!(log.contains("key=\"alice\"") || log.contains("key=alice"), "{log}");
}

#[test]
fn stored_responses_belong_to_their_key_and_outlive_its_replacement() {
    let case = Case::new();
    let server = case.start(&[entry("alice", ALICE, ""), entry("bob", BOB, "")].concat());
    let create = |key: &str, more: Value| {
        let mut body = json!({ "model": "small", "input": "hello" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        send(&server, key, "POST", "/v1/responses", &body)
    };
    let id = create(ALICE, json!({})).json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/responses/{id}");
    for key in [BOB, OWN] {
        assert_eq!(
            (get(&server, key, &path).status(), send(&server, key, "DELETE", &path, &Value::Null).status()),
            (404, 404)
        );
        assert_eq!(create(key, json!({ "previous_response_id": id })).status(), 400);
    }
    assert_eq!(get(&server, ALICE, &path).status(), 200);
    case.change(&server, &[entry("alice", LATER, ""), entry("bob", BOB, "")].concat(), "key 'alice' changed");
    assert_eq!((get(&server, LATER, &path).status(), get(&server, ALICE, &path).status()), (200, 401));
    assert_eq!(create(LATER, json!({ "previous_response_id": id })).status(), 200);
}

#[test]
fn a_key_has_so_many_requests_at_once_and_those_in_the_background_count() {
    let case = Case::new();
    let server = case.start(&[entry("alice", ALICE, "requests = 1"), entry("bob", BOB, "requests = 2")].concat());
    let running = stream(&server, ALICE, "longer");
    let refused = ask(&server, ALICE, "small");
    assert_eq!((refused.status(), refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    assert!(message(&refused).starts_with("the key 'alice' has 1 requests at hand"), "{refused:?}");
    let messages = send(&server, ALICE, "POST", "/v1/messages", &body("small", "hello"));
    assert_eq!((messages.status(), &messages.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    let ollama = send(&server, ALICE, "POST", "/api/chat", &body("small", "hello"));
    assert!(ollama.status() == 429 && ollama.json()["error"].is_string(), "{ollama:?}");
    // What costs nothing is answered, and so are others.
    assert_eq!(send(&server, ALICE, "POST", "/v1/messages/count_tokens", &body("small", "hello")).status(), 200);
    assert_eq!(get(&server, ALICE, "/v1/models").status(), 200);
    assert_eq!(used(&server, "alice")["requests_running"], 1);
    assert_eq!(ask(&server, BOB, "small").status(), 200);
    running.leave();
    until("free again", || ask(&server, ALICE, "small").status() == 200);
    let background = json!({ "model": "small", "input": "long", "background": true });
    assert_eq!(send(&server, ALICE, "POST", "/v1/responses", &background).status(), 200);
    assert_eq!(ask(&server, ALICE, "small").status(), 429);
    until("free again", || ask(&server, ALICE, "small").status() == 200);
    until("all over", || used(&server, "alice")["requests_running"] == 0);
}

#[test]
fn a_day_has_its_tokens_and_they_are_counted_over_restarts_and_crashes() {
    let case = Case::new();
    let keys = [entry("alice", ALICE, "tokens_per_day = 150"), entry("bob", BOB, "tokens_per_day = 100_000")].concat();
    let mut server = case.start(&keys);
    // One that begins under the limit is answered whole.
    assert_eq!(text(stream(&server, ALICE, "long")), LONG);
    until("counted", || used(&server, "alice")["days"][0]["requests"] == 1);
    let mut expected = used(&server, "alice")["tokens_today"].as_u64().unwrap();
    let is_over = |tokens: u64| tokens >= 150;
    while !is_over(expected) {
        assert_eq!(ask(&server, ALICE, "small").status(), 200);
        expected = used(&server, "alice")["tokens_today"].as_u64().unwrap();
    }
    let refused = ask(&server, ALICE, "small");
    assert_eq!(refused.status(), 429, "{refused:?}");
    let expect = format!(
        "the key 'alice' has used {expected} tokens today, and may use 150 a day; its next day begins at midnight in \
         UTC; [[keys]] has its limit"
    );
    assert_eq!(message(&refused), expect);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=24 * 60 * 60).contains(&wait), "{wait}");
    assert_eq!(get(&server, ALICE, "/v1/models").status(), 200);
    let answer = ask(&server, BOB, "large");
    let usage = answer.json()["usage"].clone();
    let bob = used(&server, "bob");
    assert_eq!(bob["days"][0]["models"][0]["model"], "large");
    assert_eq!(bob["days"][0]["models"][0]["input_tokens"], usage["prompt_tokens"]);
    assert_eq!(bob["days"][0]["models"][0]["output_tokens"], usage["completion_tokens"]);
    assert_eq!(bob["days"][0]["requests"], 1);
    // A named key sees itself.
    let own = get(&server, BOB, "/v1/usage?days=7").json()["keys"].clone();
    assert_eq!((own.as_array().unwrap().len(), &own[0]["name"]), (1, &json!("bob")));
    let page = get(&server, OWN, "/metrics").text();
    for sample in [
        "pensieve_key_tokens_per_day{key=\"alice\"} 150",
        "pensieve_key_requests_running{key=\"bob\"} 0",
        "pensieve_key_requests_total{key=\"bob\",model=\"large\"} 1",
        &format!("pensieve_key_tokens_today{{key=\"alice\"}} {expected}"),
    ] {
        assert!(page.lines().any(|line| line == sample), "{sample} is not in {page}");
    }
    server.stop();

    server = case.start(&keys);
    assert_eq!(
        (used(&server, "alice")["tokens_today"].as_u64(), ask(&server, ALICE, "small").status()),
        (Some(expected), 429)
    );
    assert_eq!(ask(&server, BOB, "small").status(), 200);
    let before = used(&server, "bob")["tokens_today"].clone();
    // The file is written every second; a crash later than that loses nothing.
    thread::sleep(Duration::from_millis(2200));
    server.signal(libc::SIGKILL);
    server.ended(Duration::from_secs(20)).unwrap();
    // The end of a line that was being written.
    let written = fs::read_to_string(case.ledger()).unwrap();
    fs::write(case.ledger(), format!("{written}2026-01-0")).unwrap();

    server = case.start(&keys);
    assert_eq!((used(&server, "bob")["tokens_today"].clone(), ask(&server, ALICE, "small").status()), (before, 429));
    assert!(!server.log().contains("damaged"), "{}", server.log());
    // A new limit counts at once.
    let more = [entry("alice", ALICE, "tokens_per_day = 100_000"), entry("bob", BOB, "")].concat();
    case.change(&server, &more, "key 'alice' changed");
    assert_eq!(ask(&server, ALICE, "small").status(), 200);
}

#[test]
fn keys_are_replaced_while_answers_run_and_are_nowhere_to_be_read() {
    let case = Case::new();
    let server = case.start(&[entry("alice", ALICE, ""), entry("bob", BOB, "")].concat());
    let (of_alice, of_bob) = (stream(&server, ALICE, "longer"), stream(&server, BOB, "longer"));
    case.change(&server, &entry("alice", LATER, ""), "key 'bob' is removed; its running answers may finish");
    assert!(server.log().contains("configuration: key 'alice' changed"), "{}", server.log());
    let status = |key: &str| ask(&server, key, "small").status();
    assert_eq!((status(ALICE), status(BOB), status(LATER), status(OWN)), (401, 401, 200, 200));
    assert_eq!((text(of_alice), text(of_bob)), (longer(), longer()));
    // Two keys of one name, for those who are slow to change.
    let both = format!(
        "[[keys]]\nname = \"alice\"\nhash = [\"{}\", \"{}\"]\n",
        Key::new(LATER).hash(),
        Key::new(ALICE).hash()
    );
    let told = || server.log().matches("key 'alice' changed").count() == 2;
    case.change(&server, &both, "key 'alice' changed");
    until("changed again", told);
    assert_eq!((status(ALICE), status(LATER)), (200, 200));
    // A hash that is none changes nothing.
    case.change(&server, "[[keys]]\nname = \"alice\"\nhash = \"secret-by-mistake\"\n", "is not one, line");
    assert_eq!(status(LATER), 200);
    until("written", || case.ledger().is_file());
    let log = server.stop();
    let mut texts = vec![("the log".to_owned(), log.into_bytes())];
    for file in files(case.home.path()).iter().filter(|file| !file.ends_with("bin/pensieve")) {
        texts.push((file.clone(), fs::read(case.home.path().join(file)).unwrap_or_default()));
    }
    assert!(texts.iter().any(|(name, _)| name.contains("logs/")), "{:?}", files(case.home.path()));
    for key in [ALICE, BOB, LATER] {
        let holds = |bytes: &[u8]| bytes.windows(key.len()).any(|window| window == key.as_bytes());
        let found: Vec<_> = texts.iter().filter(|(_, bytes)| holds(bytes)).map(|(name, _)| name).collect();
        assert_eq!(found, Vec::<&String>::new(), "{key}");
    }
    assert!(
        texts
            .iter()
            .all(|(name, bytes)| name != "the log" || !String::from_utf8_lossy(bytes).contains("secret-by-mistake"))
    );
}

#[test]
fn a_ledger_that_cannot_be_read_or_written_keeps_no_answer() {
    let case = Case::new();
    let keys = entry("alice", ALICE, "tokens_per_day = 100_000");
    let server = case.start(&keys);
    assert_eq!(ask(&server, ALICE, "small").status(), 200);
    let spent = used(&server, "alice")["tokens_today"].clone();
    server.stop();
    let whole = fs::read(case.ledger()).unwrap();
    let damaged = [&whole[..], b"\x00\xff nonsense\n"].concat();
    fs::write(case.ledger(), &damaged).unwrap();
    let server = case.start(&keys);
    until("told", || server.log().contains("is damaged: 1 of "));
    assert!(server.log().contains("it is put aside as '"), "{}", server.log());
    assert_eq!((used(&server, "alice")["tokens_today"].clone(), ask(&server, ALICE, "small").status()), (spent, 200));
    assert_eq!(fs::read(case.ledger().with_extension("damaged")).unwrap(), damaged);
    server.stop();

    // As on a full disk: no file can be made, and none can grow.
    fs::remove_file(case.ledger()).unwrap();
    fs::create_dir(case.ledger().with_extension("new")).unwrap();
    let server = case.start(&keys);
    assert_eq!(ask(&server, ALICE, "small").status(), 200);
    until("said", || server.log().contains("the usage of keys cannot be written to"));
    assert_eq!((ask(&server, ALICE, "small").status(), text(stream(&server, ALICE, "long")).as_str()), (200, LONG));
    fs::remove_dir(case.ledger().with_extension("new")).unwrap();
    until("kept again", || server.log().contains("the usage of keys is kept again"));
    let spent = used(&server, "alice")["tokens_today"].clone();
    server.stop();
    assert_eq!(used(&case.start(&keys), "alice")["tokens_today"], spent);
}

#[test]
fn a_key_is_made_shown_once_and_accepted_by_a_running_server() {
    let case = Case::new();
    let server = case.start("");
    let desk = Desk::new();
    let file = case.home.path().join("pensieve.toml");
    let made = desk.run(&["keys", "new", "carol", "--models", "small", "--tokens-per-day", "5000", "--requests", "2"]);
    let (key, text) = made.stdout.split_once("\n\n").unwrap_or_else(|| panic!("{made:?}"));
    let hash = Key::new(key).hash();
    let expected = format!(
        "[[keys]]\nname = \"carol\"\nhash = \"{hash}\"\nmodels = [\"small\"]\ntokens_per_day = 5000\nrequests = 2\n"
    );
    assert_eq!((made.code, text), (Some(0), expected.as_str()));
    let shown = file.to_str().unwrap();
    let new = |name: &str| desk.run(&["keys", "new", name, "--write", "--config", shown]);
    let written = new("dave");
    assert_eq!(written.code, Some(0), "{written:?}");
    let dave = written.stdout.trim_end();
    until("known", || server.log().contains("configuration: key 'dave' is new"));
    assert_eq!(ask(&server, dave, "large").status(), 200);
    assert!(!fs::read_to_string(&file).unwrap().contains(dave));
    // What would spoil the file is not written.
    let before = fs::read_to_string(&file).unwrap();
    for (name, words) in
        [("dave", "two [[keys]] have the name 'dave'"), ("default", "stands for server.key"), ("a b", "letters")]
    {
        let refused = new(name);
        assert!(refused.code == Some(2) && refused.stderr.contains(words) && refused.stdout.is_empty(), "{refused:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let doctor = desk.run(&["doctor", "--config", shown]);
    assert!(doctor.stdout.contains("ok  keys           server.key, dave\n"), "{doctor:?}");
    assert!(!doctor.stdout.contains("sha256:"), "{doctor:?}");
    fs::write(&file, before.replace("sha256:", "md5:")).unwrap();
    let doctor = desk.run(&["doctor", "--config", shown]);
    assert!(doctor.stdout.contains("!!  configuration  ") && doctor.stdout.contains("'hash' of 'dave'"), "{doctor:?}");
    assert!(Path::new(shown).exists());
}
