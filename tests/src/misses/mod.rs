//! Why a prompt was not cached: scripted conversations whose next request has to be computed for a known reason, in each
//! of four APIs. What the answer's usage says must be the true reason, and its counts must add up.

mod talk;

use serde_json::{Value, json};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::request,
        server::{Options, PATIENCE, Server},
    },
    processes, scripted, starter,
};
use talk::{APIS, Api, Said, Talk, Told};

const KEYS: [&str; 2] = ["key-of-ada-1234", "key-of-bob-1234"];

/// Some hundred characters that occur nowhere else, and as many tokens.
fn long(name: &str) -> String {
    let word = |place: u32| {
        let mut hasher = DefaultHasher::new();
        (name, place).hash(&mut hasher);
        let mut rest = hasher.finish();
        let letters = (0..8).map(|_| {
            let letter = char::from(b'a' + u8::try_from(rest % 26).unwrap());
            rest /= 26;
            letter
        });
        letters.chain([' ']).collect::<String>()
    };
    (0..40).map(word).collect()
}

fn user(text: impl Into<String>) -> Said {
    Said::User(text.into())
}

/// A template that leaves out the reasoning of every turn before the last question, as those of Qwen do.
fn forgets_reasoning(source: &Path) {
    let path = source.join("chat_template.jinja");
    let text = fs::read_to_string(&path).unwrap();
    let always = "{%- if message.reasoning_content %}";
    assert!(text.contains(always));
    let last = "{%- set ns = namespace(last=0) %}{%- for message in messages %}{%- if message.role == 'user' %}\
                {%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}\n";
    let recent = "{%- if message.reasoning_content and loop.index0 > ns.last %}";
    fs::write(path, format!("{last}{}", text.replace(always, recent))).unwrap();
}

fn config(root: &Path, context: u32) -> String {
    let source = |id: &str| root.join(id).display().to_string();
    let pirate = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/starter/adapters/pirate");
    let keys = KEYS.map(|key| format!("\"{key}\"")).join(", ");
    format!(
        "[server]\nkey = [{keys}]\n\n[fleet]\ndeaths_max = 100\n\n\
         [[models]]\nid = \"scripted\"\nsource = \"{}\"\nthreads = 1\nkv_budget = \"8MiB\"\ncontext = {context}\n\n\
         [[models]]\nid = \"small\"\nsource = \"{}\"\nthreads = 1\nkv_budget = \"64KiB\"\n\n\
         [[models]]\nid = \"forgetful\"\nsource = \"{}\"\nthreads = 1\nkv_budget = \"8MiB\"\n\n\
         [[models]]\nid = \"starter\"\nsource = \"starter\"\nthreads = 1\n\
         [models.adapters]\npirate = \"{}\"\n\n[cache]\nbudget = 0\n",
        source("scripted"),
        source("small"),
        source("forgetful"),
        pirate.display()
    )
}

fn serve(root: &Path) -> Server {
    serve_with(root, &config(root, 16_384))
}

fn serve_with(root: &Path, config: &str) -> Server {
    for id in ["scripted", "small", "forgetful"] {
        scripted::checkpoint(&root.join(id), &[("", "All right.")]);
    }
    forgets_reasoning(&root.join("forgetful"));
    let mut plugins = vec![test_plugin("scripted")];
    plugins.extend(starter::PLUGINS.iter().map(|package| plugin(package)));
    Options { plugins, config: config.to_owned(), ..Options::default() }.start()
}

/// One conversation with one API.
struct Case<'a> {
    server: &'a Server,
    root: &'a Path,
    api: Api,
    name: String,
}

impl Case<'_> {
    /// A text that no other case has.
    fn text(&self, what: &str) -> String {
        long(&format!("{what} of {}", self.name))
    }

    /// A conversation that nothing else begins like.
    fn talk(&self) -> Talk {
        let system = format!("Session of {}.\nBe kind.\n{}", self.name, self.text("system"));
        let tools = ["read", "write"].map(|tool| (tool.to_owned(), self.text(tool)));
        let said = vec![user(self.text("question")), Said::Answer(self.text("answer")), user(self.text("second"))];
        Talk { model: "scripted".into(), key: KEYS[0].into(), system, tools: tools.into(), said, own: Value::Null }
    }

    fn ask(&self, talk: &Talk) -> Told {
        let told = talk.ask(self.server.address, self.api);
        assert!(told.memory + told.disk + told.computed > 0, "{}: {told:?}", self.name);
        told
    }

    fn post(&self, path: &str) {
        let key = format!("Bearer {}", KEYS[0]);
        let reply = request(self.server.address, "POST", path, &[("authorization", &key)], b"");
        assert_eq!(reply.status(), 200, "{reply:?}");
    }

    fn health(&self, model: &str) -> Value {
        let key = format!("Bearer {}", KEYS[0]);
        let reply = request(self.server.address, "GET", "/health", &[("authorization", &key)], b"").json();
        reply["models"].as_array().unwrap().iter().find(|entry| entry["id"] == model).unwrap().clone()
    }

    fn until(&self, model: &str, holds: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(&self.health(model)) {
            assert!(Instant::now() < deadline, "{}", self.server.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

type Scene = fn(&Case<'_>) -> (Told, Option<&'static str>);

/// The reason that a change of a conversation's next request has.
fn changed(case: &Case<'_>, change: impl FnOnce(&mut Talk)) -> Told {
    let mut talk = case.talk();
    case.ask(&talk);
    change(&mut talk);
    talk.said.extend([Said::Answer(case.text("reply")), user(case.text("third"))]);
    case.ask(&talk)
}

const SCENES: [(&str, Scene); 25] = [
    ("a new conversation", |case| (case.ask(&case.talk()), Some("first_time"))),
    ("a conversation that goes on", |case| (changed(case, |_| {}), None)),
    ("the same again", |case| {
        case.ask(&case.talk());
        (case.ask(&case.talk()), None)
    }),
    ("the time in the system prompt", |case| {
        let at = |time: &str| format!("Be kind.\nThe time is {time} now.\n{}", case.text("rules"));
        let first = Talk { system: at("12:00"), ..case.talk() };
        case.ask(&first);
        let told = case.ask(&Talk { system: at("12:01"), ..first });
        assert_eq!(told.miss["text"], "The time is 12:01 now.", "{told:?}");
        (told, Some("changed_system"))
    }),
    ("the time in the middle of the system prompt", |case| {
        let at = |time: &str| format!("{}\nToday is {time}.\n{}", case.text("rules"), case.text("rules"));
        let first = Talk { system: at("Monday"), ..case.talk() };
        case.ask(&first);
        let told = case.ask(&Talk { system: at("Tuesday"), ..first });
        assert!(told.miss["at_token"].as_u64() > Some(200) && told.memory > 200, "{told:?}");
        (told, Some("changed_system"))
    }),
    ("a line in the first message that changes", |case| {
        let at = |line: &str| user(format!("{}\n{line}\n{}", case.text("before"), case.text("behind")));
        let line = |time: &str| format!("The time is {time} now.");
        let first = Talk { said: vec![at(&line("12:00"))], ..case.talk() };
        case.ask(&first);
        let told = case.ask(&Talk { said: vec![at(&line("12:01"))], ..first });
        assert_eq!((&told.miss["message"], &told.miss["text"]), (&json!(0), &json!(line("12:01"))), "{told:?}");
        assert!(told.miss["at_token"].as_u64() > Some(200) && told.memory > 200, "{told:?}");
        (told, Some("rewritten_history"))
    }),
    ("a session's id in the system prompt", |case| {
        let told = changed(case, |talk| talk.system = talk.system.replace("Session of", "Another session of"));
        (told, Some("changed_system"))
    }),
    ("Claude Code's rotating line", |case| {
        let line = |hash: &str| format!("x-anthropic-billing-header: cc_version=2.1.0; cch={hash};");
        let mut talk = case.talk();
        let system = talk.system.clone();
        talk.system = format!("{}\n{system}", line("1c8b4"));
        case.ask(&talk);
        talk.system = format!("{}\n{system}", line("99f02"));
        // Only Claude Code's own API knows it and leaves it out.
        (case.ask(&talk), (case.api != Api::Messages).then_some("changed_system"))
    }),
    ("a tool that is added", |case| {
        (changed(case, |talk| talk.tools.push(("search".into(), case.text("search")))), None)
    }),
    ("a tool for another", |case| {
        (changed(case, |talk| talk.tools[0] = ("list".into(), case.text("list"))), Some("changed_tools"))
    }),
    ("a tool's description", |case| {
        (changed(case, |talk| talk.tools[0].1.push_str("It reads files.")), Some("changed_tools"))
    }),
    ("an edited question", |case| {
        let told = changed(case, |talk| talk.said[2] = user(case.text("edited question")));
        assert_eq!(told.miss["message"], 2, "{told:?}");
        (told, Some("rewritten_history"))
    }),
    ("a compacted history", |case| {
        let told = changed(case, |talk| talk.said[1] = Said::Answer(case.text("summary")));
        assert_eq!(told.miss["message"], 1, "{told:?}");
        (told, Some("rewritten_history"))
    }),
    ("a cleared result of a tool", |case| {
        let with = |result: String| {
            let said =
                vec![user(case.text("a question")), Said::Call("a.txt".into(), result), user(case.text("and now?"))];
            Talk { said, ..case.talk() }
        };
        case.ask(&with(case.text("content")));
        (case.ask(&with("[cleared]".into())), Some("rewritten_history"))
    }),
    ("another conversation with the same system prompt", |case| {
        case.ask(&case.talk());
        let told = case.ask(&Talk { said: vec![user(case.text("an unrelated question"))], ..case.talk() });
        assert!(told.memory > 400, "{told:?}");
        (told, Some("first_time"))
    }),
    ("a subagent", |case| {
        case.ask(&case.talk());
        let system = format!("You are a subagent.\n{}", case.text("subagent"));
        (case.ask(&Talk { system, said: vec![user(case.text("a task"))], ..case.talk() }), Some("first_time"))
    }),
    ("another client's conversation", |case| {
        case.ask(&case.talk());
        (case.ask(&Talk { key: KEYS[1].into(), ..case.talk() }), Some("first_time"))
    }),
    ("another adapter", |case| {
        let talk = Talk { model: "starter".into(), tools: Vec::new(), ..case.talk() };
        case.ask(&talk);
        let told = case.ask(&Talk { model: "starter:pirate".into(), ..talk.clone() });
        // The same adapter again is cached.
        assert_eq!(case.ask(&Talk { model: "starter:pirate".into(), ..talk }).kind(), None);
        (told, Some("other_adapter"))
    }),
    ("a template that forgets reasoning", |case| {
        let thought = Said::Thought(case.text("I have thought about it"), "Yes.".into());
        let call = Said::Call("b.txt".into(), case.text("content"));
        let said = vec![user(case.text("question")), thought, call];
        let mut talk = Talk { model: "forgetful".into(), said, ..case.talk() };
        case.ask(&talk);
        talk.said.extend([Said::Answer(case.text("answer")), user("next")]);
        (case.ask(&talk), Some("rewritten_by_template"))
    }),
    ("evicted for a request of the same client", |case| {
        let talk = Talk { model: "small".into(), tools: Vec::new(), ..case.talk() };
        case.ask(&talk);
        let others: Vec<String> = (0..8).map(|other| filler(case, other, KEYS[0]).id).collect();
        let told = case.ask(&talk);
        let by = &told.miss["evicted"];
        assert_eq!(by["by"], "request", "{told:?}");
        assert!(others.iter().any(|other| by["request"] == other.as_str()), "{told:?}: {others:?}");
        assert!(by["seconds_ago"].as_f64().is_some_and(|ago| ago < 120.0), "{told:?}");
        (told, Some("evicted"))
    }),
    ("evicted for another client", |case| {
        let talk = Talk { model: "small".into(), tools: Vec::new(), ..case.talk() };
        case.ask(&talk);
        (0..8).for_each(|other| drop(filler(case, other, KEYS[1])));
        let told = case.ask(&talk);
        assert_eq!(told.miss["evicted"]["by"], "another_client", "{told:?}");
        assert!(told.miss["evicted"].get("request").is_none(), "{told:?}");
        (told, Some("evicted"))
    }),
    ("unloaded by request", |case| {
        case.ask(&case.talk());
        case.post("/v1/models/scripted/unload");
        case.until("scripted", |model| model["state"] == "idle");
        let told = case.ask(&case.talk());
        assert_eq!(
            (&told.miss["evicted"]["by"], &told.miss["evicted"]["reason"]),
            (&json!("unload"), &json!("unloaded"))
        );
        (told, Some("evicted"))
    }),
    ("a worker that died", |case| {
        case.ask(&case.talk());
        let pid = case.health("scripted")["pid"].as_i64().unwrap();
        // SAFETY: no memory is involved; the process is a child of the server that this test started.
        assert_eq!(unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) }, 0);
        // Another one is started at once.
        case.until("scripted", |model| model["pid"] != pid);
        let told = case.ask(&case.talk());
        assert_eq!(told.miss["evicted"]["reason"], "worker_died", "{told:?}");
        (told, Some("evicted"))
    }),
    ("a context of another length", |case| {
        case.ask(&case.talk());
        let path = case.server.home().path().join("pensieve.toml");
        let is_long = fs::read_to_string(&path).unwrap().contains("context = 16384");
        fs::write(&path, config(case.root, if is_long { 12_288 } else { 16_384 })).unwrap();
        case.server.signal(libc::SIGHUP);
        case.until("scripted", |model| model["state"] == "idle");
        (case.ask(&case.talk()), Some("other_context"))
    }),
    ("the template's variables", |case| {
        let told = changed(case, |talk| talk.own = json!({ "template": { "enable_thinking": false } }));
        // This template writes them at the end alone, where nothing is lost.
        (told, None)
    }),
];

/// Fills the small model's memory with something else.
fn filler(case: &Case<'_>, number: usize, key: &str) -> Told {
    let system: String = (0..12).map(|part| case.text(&format!("filler {number} {part}"))).collect();
    let said = vec![user("Go on.")];
    case.ask(&Talk { model: "small".into(), key: key.into(), system, tools: Vec::new(), said, own: Value::Null })
}

#[test]
fn the_reason_that_is_told_is_the_true_one_on_every_api() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut wrong = Vec::new();
    for api in APIS {
        for (name, scene) in SCENES {
            let case = Case { server: &server, root: root.path(), api, name: format!("{name} by {api:?}") };
            let (told, expected) = scene(&case);
            if told.kind() != expected {
                wrong.push(format!("{}: {told:?} instead of {expected:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", server.log());
    // The metrics and the log tell them as well.
    let key = format!("Bearer {}", KEYS[0]);
    let metrics = request(server.address, "GET", "/metrics", &[("authorization", &key)], b"").text();
    let log = server.log();
    for kind in ["first_time", "changed_system", "changed_tools", "other_adapter", "other_context", "evicted"] {
        let label = format!("kind=\"{kind}\"");
        let mut counted = metrics.lines().filter(|line| line.starts_with("pensieve_cache_misses_total{"));
        assert!(counted.any(|line| line.contains(&label)), "{kind}: {metrics}");
        assert!(log.contains(&format!("cache_miss=\"{kind} at token ")), "{kind}: {log}");
    }
}

#[test]
fn tokens_that_are_read_from_disk_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let server = serve_with(root.path(), &config(root.path(), 16_384).replace("budget = 0", "budget = \"64MiB\""));
    for api in APIS {
        let case = Case { server: &server, root: root.path(), api, name: format!("disk by {api:?}") };
        let talk = Talk { model: "starter".into(), ..case.talk() };
        let first = case.ask(&talk);
        case.post("/v1/models/starter/unload");
        case.until("starter", |model| model["state"] == "idle");
        // Until it has ended, its blocks are still put on disk.
        case.until("starter", |_| processes::under("worker", server.pid()).is_empty());
        let again = case.ask(&talk);
        assert!(again.disk > 0 && again.disk >= first.computed * 9 / 10, "{api:?}: {first:?}, {again:?}");
        assert_eq!(again.kind(), None, "{again:?}");
    }
}

#[test]
fn messages_that_name_an_earlier_answer_hear_how_they_differ_from_its_request() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let key = format!("Bearer {}", KEYS[0]);
    let headers = [("content-type", "application/json"), ("authorization", key.as_str())];
    let ask = |line: &str, previous: &Value| {
        let body = json!({
            "model": "scripted", "max_tokens": 4, "system": format!("{line}\n{}", long("diagnosed")),
            "messages": [{ "role": "user", "content": "Go on." }], "diagnostics": { "previous_message_id": previous },
        });
        request(server.address, "POST", "/v1/messages", &headers, body.to_string().as_bytes()).json()
    };
    let first = ask("It is noon.", &Value::Null);
    assert!(first["id"].is_string() && first["diagnostics"].is_null(), "{first}");
    let changed = ask("It is one.", &first["id"]);
    let reason = &changed["diagnostics"]["cache_miss_reason"];
    assert_eq!(reason["type"], "system_changed", "{changed}");
    assert!(reason["cache_missed_input_tokens"].as_u64() > Some(0), "{changed}");
    assert!(ask("It is one.", &changed["id"])["diagnostics"].is_null());
    let unknown = ask("It is one.", &json!("msg_of_nobody"));
    assert_eq!(unknown["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found", "{unknown}");
}
