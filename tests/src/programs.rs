//! Hostile programs from clients (grammars, expressions, formats of custom tools) cost only the request that sent them,
//! in a separate process, while the server and everybody else continue.

use serde_json::{Value, json};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Connection, Reply, get, post},
        server::{Options, Server},
    },
    memory::HEALTH_TIME_MAX,
    processes::{memory, under},
    prompts::merging,
    scripted,
};

const RESPONSES: [&str; 2] = ["/v1/responses", "/v1/responses/input_tokens"];
/// Growth of the server that an attack may cause.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// A model that calls `patch` with this text when told to patch.
fn start(root: &Path, patch: &str) -> Server {
    let source = root.join("good");
    let call = json!({ "name": "patch", "arguments": { "input": patch } });
    let call = format!("<tool_call>\n{call}\n</tool_call>");
    scripted::checkpoint(&source, &[("patch", &call), ("json", "{\"a\": 1}"), ("", "What?")]);
    let models: Vec<(String, PathBuf)> = vec![("good".into(), source)];
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, models, ..Options::default() }.start()
}

fn body(syntax: &str, definition: &str) -> Value {
    let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
    json!({ "model": "good", "input": "patch it", "tools": [{ "type": "custom", "name": "patch", "format": format }] })
}

fn chat(text: &str) -> Value {
    json!({ "model": "good", "max_tokens": 8, "messages": [{ "role": "user", "content": text }] })
}

fn others_are_served(server: &Server) {
    let began = Instant::now();
    let reply = post(server.address, "/v1/chat/completions", &chat("hello"));
    assert_eq!(reply.status(), 200, "{reply:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "another client waited {:?}", began.elapsed());
}

/// The text of a response's warning; empty without one.
fn warning(reply: &Reply) -> String {
    assert_eq!(reply.status(), 200, "{reply:?}");
    reply.header("warning").unwrap_or_default().to_owned()
}

/// The text that the tool was called with.
fn patched(reply: &Reply) -> String {
    let body = reply.json();
    let output = body["output"].as_array().unwrap_or_else(|| panic!("{reply:?}"));
    let call = output.iter().find(|item| item["type"] == "custom_tool_call").unwrap_or_else(|| panic!("{reply:?}"));
    call["input"].as_str().unwrap().to_owned()
}

/// A server's prompt processes, both kinds.
fn processes(server: &Server) -> HashSet<u32> {
    under("prompt", server.pid())
}

/// The server's peak memory, in bytes.
fn peak(server: &Server) -> u64 {
    memory(server.pid()).unwrap().peak
}

fn until_gone(server: &Server, before: &HashSet<u32>) {
    let began = Instant::now();
    while !processes(server).is_subset(before) {
        assert!(began.elapsed() < Duration::from_secs(10), "grammar processes stay");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The slowest health check while `attack` ran.
fn slowest_health(server: &Server, attack: impl FnOnce()) -> Duration {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(get(server.address, "/health").status(), 200);
                slowest = slowest.max(began.elapsed());
                thread::sleep(Duration::from_millis(20));
            }
            slowest
        });
        // However the attack ends.
        let over = Over(&over);
        attack();
        drop(over);
        watch.join().unwrap()
    })
}

fn bombs() -> [(&'static str, &'static str, String); 5] {
    let classes = format!("(?i){}", "[!-\u{10FFFF}]".repeat(1_000));
    [
        ("classes as an expression", "regex", classes.clone()),
        ("classes as a terminal", "lark", format!("start: /{classes}/")),
        ("classes in many terminals", "lark", format!("start: {}", "/(?i)[!-\u{10FFFF}]/ ".repeat(2_000))),
        ("letters as an expression", "regex", r"\PL".repeat(21_000)),
        ("letters in many terminals", "lark", format!("start: {}", r"/\PL\PL\PL/ ".repeat(4_000))),
    ]
}

fn nested(rules: usize, brackets: usize) -> String {
    let rule = |number: usize| {
        let (name, next) = if number == 0 { ("start".into(), 1) } else { (format!("r{number}"), number + 1) };
        format!("{name}: {}r{next}{}\n", "(".repeat(brackets), ")".repeat(brackets))
    };
    (0..rules).map(rule).collect::<String>() + &format!("r{rules}: \"x\"\n")
}

#[test]
fn rules_within_brackets_within_rules_are_a_warning() {
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), "anything");
    others_are_served(&server);
    let before = peak(&server);
    for (rules, brackets) in [(40, 40), (60, 30), (64, 64), (1, 10_000), (2_000, 1)] {
        for route in RESPONSES {
            let reply = post(server.address, route, &body("lark", &nested(rules, brackets)));
            let warning = warning(&reply);
            assert!(warning.contains("nested more than 128 deep"), "{rules} × {brackets} at {route}: {reply:?}");
        }
    }
    // A neighbour that is nested, too, but less deeply.
    let reply = post(server.address, RESPONSES[0], &body("lark", &nested(12, 8)));
    assert_eq!((warning(&reply).as_str(), patched(&reply).as_str()), ("", "x"));
    others_are_served(&server);
    assert!(peak(&server) - before < GROWTH_BYTES_MAX);
}

#[test]
fn the_grammar_of_codex_is_enforced_and_one_that_cannot_be_is_a_warning() {
    let root = tempfile::tempdir().unwrap();
    // The first line lacks its asterisks.
    let server = start(root.path(), " Begin Patch\n*** Add File: a.txt\n+b\n*** End Patch\n");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/codex/apply_patch.lark");
    let apply_patch = fs::read_to_string(fixture).unwrap();
    let enforced = body("lark", &apply_patch);
    let reply = post(server.address, RESPONSES[0], &enforced);
    assert_eq!(warning(&reply), "");
    assert_eq!(patched(&reply), "*** Begin Patch\n*** Add File: a.txt\n+b\n*** End Patch\n");
    let recursive = body("lark", "start: \"(\" start \")\" | \"x\"");
    let reply = post(server.address, RESPONSES[0], &recursive);
    assert!(warning(&reply).contains("'start' is recursive"), "{reply:?}");
    assert!(patched(&reply).starts_with(" Begin"), "{reply:?}");
    // The count matches what would be read.
    let count = |body: &Value| post(server.address, RESPONSES[1], body).json()["input_tokens"].as_u64().unwrap();
    let used =
        |body: &Value| post(server.address, RESPONSES[0], body).json()["usage"]["input_tokens"].as_u64().unwrap();
    for body in [enforced, recursive, body("regex", "[a-z]+")] {
        assert_eq!(count(&body), used(&body));
    }
}

#[test]
fn an_expression_that_takes_seconds_to_read_holds_nobody_up_and_ends_with_its_client() {
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), "anything");
    others_are_served(&server);
    let (before, known) = (peak(&server), processes(&server));
    for (name, syntax, definition) in bombs() {
        let bytes = body(syntax, &definition).to_string().into_bytes();
        let slowest = slowest_health(&server, || {
            for round in 0..12 {
                let mut connection = Connection::open(server.address);
                connection.ask("POST", RESPONSES[round % 2], &[("content-type", "application/json")], &bytes);
                // Some clients leave while they wait, some while their process reads.
                thread::sleep(Duration::from_millis(15 * (round as u64 % 5)));
                connection.leave();
            }
            others_are_served(&server);
        });
        assert!(slowest < HEALTH_TIME_MAX, "{name}: a health check took {slowest:?}");
        until_gone(&server, &known);
    }
    // A client that stays gets a warning.
    for (name, syntax, definition) in bombs() {
        let began = Instant::now();
        let reply = post(server.address, RESPONSES[1], &body(syntax, &definition));
        // A fast machine may finish in time.
        let told = warning(&reply);
        assert!(told.is_empty() || told.contains("is shown to the model, but not enforced: "), "{name}: {reply:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{name} took {:?}", began.elapsed());
    }
    let grown = peak(&server) - before;
    assert!(grown < GROWTH_BYTES_MAX, "the server has grown by {} MiB", grown >> 20);
    let reply = post(server.address, RESPONSES[0], &body("regex", "[a-z]{3}"));
    assert_eq!((warning(&reply).as_str(), patched(&reply).len()), ("", 3));
}

fn with_schema(schema: &Value) -> Value {
    let mut body = chat("json");
    body["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    body
}

#[test]
fn a_schema_that_is_merged_over_and_over_is_a_400_of_its_own_request() {
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), "anything");
    let fine = |title: usize| {
        with_schema(
            &json!({ "title": format!("{title}"), "type": "object", "properties": { "a": { "type": "integer" } },
            "required": ["a"] }),
        )
    };
    assert_eq!(post(server.address, "/v1/chat/completions", &fine(0)).status(), 200);
    let before = peak(&server);
    let mut schema: Value = serde_json::from_str(&merging()).unwrap();
    let slowest = slowest_health(&server, || {
        thread::scope(|scope| {
            for number in 0..4 {
                schema["title"] = json!(number);
                let (body, server) = (with_schema(&schema), &server);
                scope.spawn(move || {
                    let reply = post(server.address, "/v1/chat/completions", &body);
                    assert_eq!(reply.status(), 400, "{reply:?}");
                });
            }
            others_are_served(&server);
        });
    });
    assert!(slowest < HEALTH_TIME_MAX, "a health check took {slowest:?}");
    assert_eq!(post(server.address, "/v1/chat/completions", &fine(1)).status(), 200);
    assert!(peak(&server) - before < GROWTH_BYTES_MAX);
}

#[test]
fn a_grammar_process_that_is_killed_costs_its_question_alone() {
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), "anything");
    others_are_served(&server);
    let known = processes(&server);
    let bomb = bombs().into_iter().next().map(|(_, _, definition)| definition).unwrap();
    thread::scope(|scope| {
        let asked = scope.spawn(|| post(server.address, RESPONSES[0], &body("regex", &bomb)));
        let began = Instant::now();
        let victim = loop {
            if let Some(pid) = processes(&server).difference(&known).next() {
                break *pid;
            }
            assert!(began.elapsed() < Duration::from_secs(5), "no grammar process comes");
        };
        // SAFETY: no memory is involved; the process is a child of the server that this test started.
        assert_eq!(unsafe { libc::kill(victim.cast_signed(), libc::SIGKILL) }, 0);
        let reply = asked.join().unwrap();
        assert!(warning(&reply).contains("SIGKILL"), "{reply:?}");
    });
    let reply = post(server.address, RESPONSES[0], &body("regex", "[a-z]{3}"));
    assert_eq!((warning(&reply).as_str(), patched(&reply).len()), ("", 3));
}

/// Schemas that the server itself walks to read calls, each of which would take minutes if done naively.
#[test]
fn a_tool_whose_schema_leads_everywhere_holds_nobody_up() {
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), "anything");
    others_are_served(&server);
    let again = vec![json!({ "$ref": "#/$defs/a" }); 100];
    let circle = json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/a" } },
        "$defs": { "a": { "anyOf": again, "type": ["string", "null"] } } });
    let names: Vec<String> = (0..8_000).map(|number| format!("p{number}")).collect();
    let properties: serde_json::Map<_, _> =
        names.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
    let required = json!({ "type": "object", "properties": properties, "required": names });
    let slowest = slowest_health(&server, || {
        for schema in [circle, required] {
            let began = Instant::now();
            let mut body = chat("hello");
            body["tools"] = json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
            let reply = post(server.address, "/v1/chat/completions", &body);
            assert!([200, 400].contains(&reply.status()), "{reply:?}");
            assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
        }
    });
    assert!(slowest < HEALTH_TIME_MAX, "a health check took {slowest:?}");
}
