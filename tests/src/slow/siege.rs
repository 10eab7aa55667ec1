//! All known attacks at once, under the load of ordinary clients, for as long as one likes: ordinary clients are
//! served, no health check takes a second on an otherwise idle machine, and the server's memory ends where it settled
//! after the first minutes.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PENSIEVE_SIEGE_SECONDS` | duration | 20 |
//! | `PENSIEVE_SIEGE_SEED` | selects the order of attacks | 1 |
//!
//! Two hours: `PENSIEVE_SIEGE_SECONDS=7200 cargo test --release --workspace --test pensieve -- siege:: --nocapture`.

use serde_json::{Value, json};
use std::{
    env,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    http::client::{Connection, post},
    memory::{Attacked, Ending, HEALTH_TIME_MAX, JSON, MIB, chat, dense, memory, send, stored, unread},
    random::Random,
};

const SECONDS: &str = "PENSIEVE_SIEGE_SECONDS";
const ATTACKERS: u64 = 4;
const CLIENTS: u64 = 3;
/// Growth of the server's memory since it settled.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Time for the server to settle without attacks.
const REST: Duration = Duration::from_secs(8);

/// One round of an attacker, who may hang up at any time.
type Attack = fn(SocketAddr, &mut Random);

const ATTACKS: [(&str, Attack); 10] = [
    ("a Lark grammar of nested brackets", nested_grammar),
    ("a regular expression of large classes", large_classes),
    ("a schema that multiplies", multiplying_schema),
    ("values beside the request", ignored_values),
    ("values within the request", hidden_values),
    ("a stored response that is not read", unread_response),
    ("heads in a pipeline", pipelined_heads),
    ("a stream that repeats much and is not read", unread_stream),
    ("a conversation of many links", linked_responses),
    ("brackets without an end", deep_body),
];

fn number(variable: &str, unless: u64) -> u64 {
    env::var(variable).ok().map_or(unless, |text| text.parse().unwrap())
}

#[test]
fn all_attacks_at_once_leave_others_served_and_memory_where_it_was() {
    let time = Duration::from_secs(number(SECONDS, 20));
    let attacked = Attacked::start();
    // Memory that is kept by design soon reaches its limit.
    besiege(&attacked, time / 4, number("PENSIEVE_SIEGE_SEED", 1));
    let settled = at_rest(&attacked);
    besiege(&attacked, time * 3 / 4, number("PENSIEVE_SIEGE_SEED", 1) + 1000);
    let end = at_rest(&attacked);
    println!("{} MiB settled, {} MiB at the end", settled >> 20, end >> 20);
    attacked.has_kept_within_its_memory();
    let settled = settled.max(attacked.with_a_full_store());
    assert!(end < settled + GROWTH_BYTES_MAX, "{} MiB at the end, {} MiB before", end >> 20, settled >> 20);
}

/// The server's memory after a rest.
fn at_rest(attacked: &Attacked) -> u64 {
    thread::sleep(REST);
    memory(&attacked.server).resident
}

fn besiege(attacked: &Attacked, time: Duration, seed: u64) {
    let over = AtomicBool::new(false);
    let (served, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let address = attacked.server.address;
    let counts: Vec<AtomicU64> = ATTACKS.iter().map(|_| AtomicU64::new(0)).collect();
    let slowest = thread::scope(|scope| {
        let (over, counts, served, refused) = (&over, &counts, &served, &refused);
        for attacker in 0..ATTACKERS {
            scope.spawn(move || {
                let _ending = Ending(over);
                let mut random = Random(seed + attacker);
                while !over.load(Ordering::Relaxed) {
                    let place = random.below(ATTACKS.len());
                    ATTACKS[place].1(address, &mut random);
                    counts[place].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                let _ending = Ending(over);
                while !over.load(Ordering::Relaxed) {
                    let reply = post(address, "/v1/chat/completions", &chat("hello"));
                    // Attackers have the same key, so they use up everybody's share.
                    let count = if reply.status() == 200 { served } else { refused };
                    assert!([200, 429, 503].contains(&reply.status()), "{reply:?}");
                    count.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(50));
                }
            });
        }
        let health = scope.spawn(move || {
            let mut slowest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(attacked.server.get("/health").status(), 200);
                slowest = slowest.max(began.elapsed());
                thread::sleep(Duration::from_millis(100));
            }
            slowest
        });
        let ending = Ending(over);
        let began = Instant::now();
        // Any failure ends the siege.
        while began.elapsed() < time && !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        drop(ending);
        health.join().unwrap()
    });
    let counts: Vec<String> =
        ATTACKS.iter().zip(&counts).map(|((name, _), count)| format!("{name}: {count:?}")).collect();
    println!("served {served:?}, refused {refused:?}, slowest health answer {slowest:?}; {}", counts.join(", "));
    let is_alone = env::var_os(SECONDS).is_some();
    let most = if is_alone { Duration::from_secs(1) } else { HEALTH_TIME_MAX };
    assert!(slowest < most, "a health answer took {slowest:?}");
    assert!(served.load(Ordering::Relaxed) > 0, "nobody was served");
}

fn custom(syntax: &str, definition: &str) -> Value {
    let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
    let tools = json!([{ "type": "custom", "name": "patch", "format": format }]);
    json!({ "model": "m", "input": "hello", "max_output_tokens": 8, "tools": tools })
}

/// Sends a request and hangs up after a while, more often than not at once.
fn ask_and_leave(address: SocketAddr, path: &str, body: &str, random: &mut Random) {
    let mut connection = Connection::open(address);
    connection.ask("POST", path, &[JSON], body.as_bytes());
    if random.below(3) == 0 {
        // Whatever the response, it ends.
        let _ = connection.reply("POST");
    }
}

fn nested_grammar(address: SocketAddr, random: &mut Random) {
    let (rules, brackets) = (1 + random.below(64), 1 + random.below(64));
    let rule = |place: usize| {
        let (name, next) = if place == 0 { ("start".to_owned(), 1) } else { (format!("r{place}"), place + 1) };
        let inner = if place + 1 == rules { "\"x\"".to_owned() } else { format!("r{next}") };
        format!("{name}: {}{inner}{}\n", "(".repeat(brackets), ")".repeat(brackets))
    };
    let grammar: String = (0..rules).map(rule).collect();
    let path = if random.below(2) == 0 { "/v1/responses" } else { "/v1/responses/input_tokens" };
    ask_and_leave(address, path, &custom("lark", &grammar).to_string(), random);
}

fn large_classes(address: SocketAddr, random: &mut Random) {
    let classes = format!("(?i){}", "[!-\u{10ffff}]".repeat(100 + random.below(900)));
    let body = match random.below(3) {
        0 => custom("regex", &classes),
        1 => custom("lark", &format!("start: /{classes}/")),
        _ => custom("regex", &"\\PL".repeat(5_000)),
    };
    ask_and_leave(address, "/v1/responses", &body.to_string(), random);
}

fn multiplying_schema(address: SocketAddr, random: &mut Random) {
    let mut schema = json!({ "type": "string" });
    for level in 0..8 + random.below(4) {
        let part = |name: &str| json!({ "type": "object", "properties": { format!("{name}{level}"): schema } });
        schema = json!({ "allOf": [part("a"), part("b")] });
    }
    let mut body = chat("json");
    let schema = json!({ "name": "x", "schema": schema, "strict": true });
    body["response_format"] = json!({ "type": "json_schema", "json_schema": schema });
    ask_and_leave(address, "/v1/chat/completions", &body.to_string(), random);
}

fn ignored_values(address: SocketAddr, random: &mut Random) {
    let plain = chat("hello").to_string();
    let body = format!("{},\"ignored\":{}}}", plain.strip_suffix('}').unwrap(), dense(300_000));
    ask_and_leave(address, "/v1/chat/completions", &body, random);
}

fn hidden_values(address: SocketAddr, random: &mut Random) {
    let more = format!("\"ignored\":{},\"role\"", dense(1_000 + random.below(300_000)));
    ask_and_leave(address, "/v1/chat/completions", &chat("hello").to_string().replace("\"role\"", &more), random);
}

fn unread_response(address: SocketAddr, random: &mut Random) {
    let Some(id) = stored(address, 1 + random.below(16 * MIB)) else { return };
    let query = ["", "?stream=true"][random.below(2)];
    let path = format!("/v1/responses/{id}{query}");
    let waiting = unread(address, 16, |connection| connection.ask("GET", &path, &[], b""));
    thread::sleep(Duration::from_millis(random.below(1000) as u64));
    drop(waiting);
}

fn pipelined_heads(address: SocketAddr, random: &mut Random) {
    let Some(id) = stored(address, 1 + random.below(8 * MIB)) else { return };
    let path = format!("/v1/responses/{id}");
    let waiting = unread(address, 4, |connection| {
        for _ in 0..100 {
            connection.ask("HEAD", &path, &[], b"");
        }
    });
    thread::sleep(Duration::from_millis(random.below(500) as u64));
    drop(waiting);
}

fn unread_stream(address: SocketAddr, random: &mut Random) {
    let metadata = json!({ "a": "x".repeat(random.below(24 * MIB)) });
    let body = json!({ "model": "m", "input": "hello", "stream": true, "max_output_tokens": 8, "metadata": metadata });
    let body = body.to_string();
    let waiting = unread(address, 4, |connection| connection.ask("POST", "/v1/responses", &[JSON], body.as_bytes()));
    thread::sleep(Duration::from_millis(random.below(2000) as u64));
    drop(waiting);
}

fn linked_responses(address: SocketAddr, random: &mut Random) {
    let mut previous = "null".to_owned();
    let item = format!("{{\"type\":\"unknown\",\"content\":{}}}", dense(10_000));
    for _ in 0..random.below(8) {
        let body = format!(
            "{{\"model\":\"m\",\"max_output_tokens\":8,\"previous_response_id\":{previous},\
             \"input\":[{item},{{\"role\":\"user\",\"content\":\"hello\"}}]}}"
        );
        let reply = send(address, "/v1/responses", &body);
        if reply.status() != 200 {
            return;
        }
        previous = reply.json()["id"].to_string();
    }
}

fn deep_body(address: SocketAddr, random: &mut Random) {
    let brackets = ["[", "{\"a\":", "[{\"a\":"][random.below(3)].repeat(200_000);
    let plain = chat("hello").to_string();
    let name = ["messages", "tools", "ignored", "pensieve"][random.below(4)];
    let body = format!("{},\"{name}\":{brackets}", plain.strip_suffix('}').unwrap());
    ask_and_leave(address, "/v1/chat/completions", &body, random);
}
