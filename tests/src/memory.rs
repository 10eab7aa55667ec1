//! The server's memory under requests designed to exhaust it: bodies that become a hundred times as large, stored
//! responses that nobody reads, conversations that grow from link to link. It always stays within three times the
//! memory configured for requests, plus the server's baseline, and comes back when the clients have gone.

use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Connection, Reply, post, request},
        server::{Options, Server},
    },
    processes::{self, Memory},
    scripted,
};

pub const MIB: usize = 1 << 20;
/// `bodies_max`, in MiB.
const REQUESTS_MIB: usize = 96;
/// `response_store`, in MiB.
const STORE_MIB: usize = 48;
/// Memory that requests have freed and the heap has not returned yet.
const FREED_BYTES_MAX: u64 = 64 << 20;
/// Tolerated growth of an idle server after an attack.
const LEFT_BYTES_MAX: u64 = 64 << 20;
/// Longest health check on a machine busy with other tests; a quiet one stays below one second.
pub const HEALTH_TIME_MAX: Duration = Duration::from_secs(4);
pub const JSON: (&str, &str) = ("content-type", "application/json");
/// A value of seven bytes that takes about 500 in memory.
const DENSE: &str = "{\"\":0}";

pub struct Attacked {
    pub server: Server,
    /// The server's memory before the attack, in bytes.
    before: u64,
    _root: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Attacks run one at a time: in parallel they would measure each other.
static ALONE: Mutex<()> = Mutex::new(());

impl Attacked {
    pub fn start() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("model");
        scripted::checkpoint(&source, &[("", "What?")]);
        let config = format!(
            "[server]\nbodies_max = \"{REQUESTS_MIB}MiB\"\nresponse_store = \"{STORE_MIB}MiB\"\nstall_timeout = \"20s\"\n"
        );
        let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
        let server = Options { plugins, models: vec![("m".into(), source)], config, ..Options::default() }.start();
        let reply = post(server.address, "/v1/chat/completions", &chat("hello"));
        assert_eq!(reply.status(), 200, "{reply:?}");
        let before = memory(&server).resident;
        Self { server, before, _root: root, _alone: alone }
    }

    /// Runs an attack. Throughout, the server has to answer others, stay within its memory, and free it afterwards.
    fn survives<T>(&self, attack: impl FnOnce(SocketAddr) -> T) -> T {
        let over = AtomicBool::new(false);
        let (result, slowest) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut slowest = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    assert_eq!(self.server.get("/health").status(), 200);
                    slowest = slowest.max(began.elapsed());
                    thread::sleep(Duration::from_millis(20));
                }
                slowest
            });
            let ending = Ending(&over);
            let result = attack(self.server.address);
            drop(ending);
            (result, watch.join().unwrap())
        });
        assert!(slowest < HEALTH_TIME_MAX, "others waited {slowest:?}");
        self.has_kept_within_its_memory();
        let rest = self.with_a_full_store() + LEFT_BYTES_MAX;
        let deadline = Instant::now() + Duration::from_secs(10);
        while memory(&self.server).resident > rest {
            let now = memory(&self.server).resident;
            assert!(Instant::now() < deadline, "{} MiB are left, of {} MiB before", now >> 20, self.before >> 20);
            thread::sleep(Duration::from_millis(100));
        }
        let reply = post(self.server.address, "/v1/chat/completions", &chat("hello"));
        assert_eq!(reply.status(), 200, "{reply:?}");
        result
    }
}

impl Attacked {
    /// Memory of a server that stores as many responses as it may, in bytes.
    pub fn with_a_full_store(&self) -> u64 {
        self.before + (STORE_MIB * MIB) as u64
    }

    pub fn has_kept_within_its_memory(&self) {
        let peak = memory(&self.server).peak;
        let most = self.with_a_full_store() + (3 * REQUESTS_MIB * MIB) as u64 + FREED_BYTES_MAX;
        println!("{} MiB before, {} MiB at the most", self.before >> 20, peak >> 20);
        assert!(peak < most, "it had {} MiB, more than {} MiB", peak >> 20, most >> 20);
    }
}

/// Signals the end of an attack, even if a test fails.
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub fn chat(text: &str) -> Value {
    json!({ "model": "m", "max_tokens": 8, "messages": [{ "role": "user", "content": text }] })
}

pub fn memory(server: &Server) -> Memory {
    processes::memory(server.pid()).unwrap()
}

pub fn send(address: SocketAddr, path: &str, body: &str) -> Reply {
    request(address, "POST", path, &[JSON], body.as_bytes())
}

/// Opens connections that send a request and do not read the response.
pub fn unread(address: SocketAddr, count: usize, ask: impl Fn(&mut Connection) + Sync) -> Vec<Connection> {
    thread::scope(|scope| {
        let open = || {
            let mut connection = Connection::open(address);
            ask(&mut connection);
            connection
        };
        let opened: Vec<_> = (0..count).map(|_| scope.spawn(open)).collect();
        opened.into_iter().map(|opened| opened.join().unwrap()).collect()
    })
}

pub fn dense(count: usize) -> String {
    format!("[{}]", vec![DENSE; count].join(","))
}

#[test]
fn unread_fields_of_a_body_take_no_memory() {
    let attacked = Attacked::start();
    let plain = chat("hello").to_string();
    let ignored = format!("{},\"ignored\":{}}}", plain.strip_suffix('}').unwrap(), dense(300_000));
    let hidden = plain.replace("\"role\"", &format!("\"ignored\":{},\"role\"", dense(300_000)));
    let (taken, refused) = attacked.survives(|address| {
        let all = |body: &String| {
            thread::scope(|scope| {
                let asked: Vec<_> =
                    (0..32).map(|_| scope.spawn(|| send(address, "/v1/chat/completions", body).status())).collect();
                asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<u16>>()
            })
        };
        (all(&ignored), all(&hidden))
    });
    assert!(taken.iter().all(|status| [200, 429].contains(status)) && taken.contains(&200), "{taken:?}");
    // In a field that is read it counts, and exceeds the limit.
    assert!(refused.iter().all(|status| *status == 429), "{refused:?}");
    let fair = plain.replace("\"role\"", &format!("\"ignored\":{},\"role\"", dense(10_000)));
    assert_eq!(send(attacked.server.address, "/v1/chat/completions", &fair).status(), 200);
}

/// Stores a response that repeats this many bytes, and returns its id; `None` if there is no memory for it.
pub fn stored(address: SocketAddr, bytes: usize) -> Option<String> {
    let body =
        json!({ "model": "m", "input": "hello", "max_output_tokens": 8, "metadata": { "a": "x".repeat(bytes) } });
    let reply = post(address, "/v1/responses", &body);
    assert!([200, 429, 503].contains(&reply.status()), "{}", reply.text().chars().take(300).collect::<String>());
    Some(reply.json()["id"].as_str()?.to_owned())
}

/// Stores a response whose conversation has an item of this many bytes that no model sees, after a small one.
fn stored_items(address: SocketAddr, bytes: usize) -> Option<String> {
    let items = json!([{ "role": "user", "content": "hello" }, { "type": "unknown", "data": "x".repeat(bytes) }]);
    let reply = post(address, "/v1/responses", &json!({ "model": "m", "input": items, "max_output_tokens": 8 }));
    Some(reply.json()["id"].as_str()?.to_owned())
}

#[test]
fn stored_responses_that_are_asked_for_and_not_read_take_no_more_than_requests_may() {
    let attacked = Attacked::start();
    let large = stored(attacked.server.address, 20 * MIB).unwrap();
    attacked.survives(|address| {
        let path = format!("/v1/responses/{large}?stream=true");
        let streams = unread(address, 64, |connection| connection.ask("GET", &path, &[], b""));
        let path = format!("/v1/responses/{large}");
        let pipelined = unread(address, 8, |connection| {
            for _ in 0..100 {
                connection.ask("HEAD", &path, &[], b"");
            }
        });
        thread::sleep(Duration::from_secs(2));
        drop((streams, pipelined));
    });
    // A response evicted to make room still counts while clients read it.
    attacked.survives(|address| {
        let begun = |id: String| {
            let path = format!("/v1/responses/{id}");
            unread(address, 4, |connection| connection.ask("GET", &path, &[], b""))
        };
        let replaced: Vec<_> = (0..6).filter_map(|_| stored(address, 12 * MIB)).map(begun).collect();
        assert!(replaced.len() > 1);
        let listed: Vec<_> = (0..6)
            .filter_map(|_| stored_items(address, 12 * MIB))
            .map(|id| {
                let path = format!("/v1/responses/{id}/input_items?limit=1&order=asc");
                unread(address, 4, |connection| connection.ask("GET", &path, &[], b""))
            })
            .collect();
        drop((replaced, listed));
    });
    let address = attacked.server.address;
    let kept = stored(address, 1000).unwrap();
    let whole = attacked.server.get(&format!("/v1/responses/{kept}")).json();
    let events = attacked.server.get(&format!("/v1/responses/{kept}?stream=true")).text();
    let last = events.lines().rfind(|line| line.starts_with("data: ")).unwrap();
    let last: Value = serde_json::from_str(&last["data: ".len()..]).unwrap();
    assert_eq!((&last["response"], &whole["metadata"]["a"]), (&whole, &json!("x".repeat(1000))));
}

#[test]
fn a_conversation_that_grows_from_response_to_response_counts_whole() {
    let attacked = Attacked::start();
    let statuses = attacked.survives(|address| {
        let item = format!("{{\"type\":\"unknown\",\"content\":{}}}", dense(40_000));
        let mut previous = "null".to_owned();
        for _ in 0..6 {
            let input = format!("[{item},{{\"role\":\"user\",\"content\":\"hello\"}}]");
            let body = format!(
                "{{\"model\":\"m\",\"max_output_tokens\":8,\"previous_response_id\":{previous},\"input\":{input}}}"
            );
            let reply = send(address, "/v1/responses", &body);
            if reply.status() != 200 {
                assert_ne!(previous, "null", "not even one is stored: {reply:?}");
                // There is no memory for a longer one.
                assert_eq!(reply.status(), 503, "{reply:?}");
                break;
            }
            previous = reply.json()["id"].to_string();
        }
        let body = format!(
            "{{\"model\":\"m\",\"max_output_tokens\":8,\"previous_response_id\":{previous},\"input\":\"go on\"}}"
        );
        thread::scope(|scope| {
            let asked: Vec<_> =
                (0..40).map(|_| scope.spawn(|| send(address, "/v1/responses", &body).status())).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<u16>>()
        })
    });
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    // A conversation of several turns continues.
    let address = attacked.server.address;
    let mut previous = Value::Null;
    for turn in 1..=4 {
        let body = json!({ "model": "m", "input": "hello", "max_output_tokens": 8, "previous_response_id": previous });
        let reply = post(address, "/v1/responses", &body);
        assert_eq!(reply.status(), 200, "{reply:?}");
        previous = reply.json()["id"].clone();
        let path = format!("/v1/responses/{}/input_items?order=asc", previous.as_str().unwrap());
        let items = attacked.server.get(&path).json();
        assert_eq!(items["data"].as_array().unwrap().len(), 2 * turn - 1, "{items}");
        assert_eq!((&items["first_id"], &items["has_more"]), (&items["data"][0]["id"], &json!(false)));
    }
}

#[test]
fn what_answers_repeat_is_shared_and_counts_until_they_are_read() {
    let attacked = Attacked::start();
    let metadata = "x".repeat(20 * MIB);
    let body = |stored: bool| {
        format!(
            "{{\"model\":\"m\",\"input\":\"hello\",\"stream\":true,\"store\":{stored},\"max_output_tokens\":8,\
             \"metadata\":{{\"a\":\"{metadata}\"}}}}"
        )
    };
    attacked.survives(|address| {
        for stored in [false, true] {
            let body = body(stored);
            let ask = |connection: &mut Connection| {
                connection.ask("POST", "/v1/responses", &[JSON], body.as_bytes());
            };
            let waiting = unread(address, 24, ask);
            thread::sleep(Duration::from_secs(3));
            drop(waiting);
        }
    });
    let reply = send(attacked.server.address, "/v1/responses", &body(false));
    assert_eq!(reply.status(), 200);
    let text = reply.text();
    let repeated = text.matches(&metadata).count();
    assert_eq!(repeated, 3, "the first two events and the last one have it");
}

#[test]
fn metadata_that_is_deep_is_found_again() {
    let attacked = Attacked::start();
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    let body = format!("{{\"model\":\"m\",\"input\":\"hello\",\"max_output_tokens\":8,\"metadata\":{{\"a\":{deep}}}}}");
    let reply = send(attacked.server.address, "/v1/responses", &body);
    assert_eq!(reply.status(), 200, "{reply:?}");
    let text = reply.text();
    let (_, id) = text.split_once("\"id\":\"").unwrap();
    let (id, _) = id.split_once('"').unwrap();
    let found = attacked.server.get(&format!("/v1/responses/{id}"));
    assert_eq!((found.status(), found.text()), (200, text.clone()));
    let next = json!({ "model": "m", "input": "on", "max_output_tokens": 8, "previous_response_id": id });
    assert_eq!(post(attacked.server.address, "/v1/responses", &next).status(), 200);
    assert!(attacked.server.get(&format!("/v1/responses/{id}?stream=true")).text().contains(&deep));
}
