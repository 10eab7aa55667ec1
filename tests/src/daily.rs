//! Daily life with a server: stopped and continued, its configuration changed while it runs, a full disk, and the verbs that
//! look after it.

use serde_json::{Value, json};
use std::{
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{
    artifacts::{plugin, program, test_plugin},
    http::{
        client::{Connection, Incoming, request},
        server::{Options, Server, home},
    },
    processes::under,
    scripted::checkpoint,
};

const MESSAGES: &str = "/v1/messages";
const LONG: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen";
const SCRIPT: [(&str, &str); 2] = [("long", LONG), ("hello", "Hello!")];

/// The configuration of models in these folders; `more` follows each.
fn models(root: &Path, ids: &[&str], more: &str) -> String {
    let entry = |id: &&str| {
        let source = root.join("one");
        let threads = "threads = 1\nkv_budget = \"4MiB\"\n";
        format!("[[models]]\nid = \"{id}\"\nsource = \"{}\"\n{threads}{more}\n", source.display())
    };
    ids.iter().map(entry).collect()
}

fn options(config: String) -> Options {
    Options { plugins: vec![test_plugin("scripted"), plugin("pensieve-samplers")], config, ..Options::default() }
}

fn scripts() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    checkpoint(&root.path().join("one"), &SCRIPT);
    root
}

fn body(model: &str, text: &str, stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": model, "max_tokens": 400, "stream": stream, "messages": messages})
}

fn ask(server: &Server, model: &str) -> (u16, Value) {
    let headers = [("content-type", "application/json")];
    let reply = request(server.address, "POST", MESSAGES, &headers, body(model, "hello", false).to_string().as_bytes());
    (reply.status(), reply.json())
}

fn health(server: &Server, id: &str) -> Value {
    let health = server.get("/health").json();
    let found = health["models"].as_array().unwrap().iter().find(|model| model["id"] == id).cloned();
    found.unwrap_or(Value::Null)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "not {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pids: impl IntoIterator<Item = u32>, signal: i32) {
    for pid in pids {
        // SAFETY: the call takes plain numbers; the processes are the test's own server and its children.
        assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
    }
}

fn run(server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env("PENSIEVE_HOME", server.home().path()).env("HOME", server.home().path());
    command.current_dir(server.home().path()).output().unwrap()
}

fn said(server: &Server, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_server_that_was_stopped_goes_on_and_a_worker_that_hangs_is_still_ended() {
    let root = scripts();
    let config = format!(
        "[fleet]\nsilence_timeout = \"2s\"\n{}",
        models(root.path(), &["one"], "options = { token_us = 100_000 }")
    );
    let server = options(config).start();
    let stop = Duration::from_millis(3500);
    let mut incoming = Incoming::open(server.address, MESSAGES, &[], &body("one", "long", true));
    assert_eq!(incoming.event().unwrap().name, "message_start");
    until("loaded", || health(&server, "one")["state"] == "ready");
    let worker = || under("worker", server.pid());
    let before = worker();
    let everything = || before.iter().copied().chain([server.pid()]);
    // Ctrl-Z, and `docker pause`.
    signal(everything(), libc::SIGSTOP);
    thread::sleep(stop);
    signal(everything(), libc::SIGCONT);
    // The server alone: its worker goes on meanwhile.
    signal([server.pid()], libc::SIGSTOP);
    thread::sleep(stop);
    signal([server.pid()], libc::SIGCONT);
    let mut text = String::new();
    while let Some(event) = incoming.event() {
        assert_ne!(event.name, "error", "{event:?}");
        let data: Value = serde_json::from_str(&event.data).unwrap();
        text.push_str(data["delta"]["text"].as_str().unwrap_or_default());
    }
    assert_eq!((text.as_str(), worker()), (LONG, before.clone()));
    assert_eq!(health(&server, "one")["deaths"], 0);
    // A worker that alone does not run is no use to anyone.
    signal(before.iter().copied(), libc::SIGSTOP);
    until("ended", || health(&server, "one")["deaths"] == 1);
    assert!(server.log().contains("said nothing for 2 s and was ended"), "{}", server.log());
    assert_eq!(ask(&server, "one").0, 200);
}

#[test]
fn an_upload_goes_on_after_the_server_was_stopped() {
    let root = scripts();
    let config = format!("[server]\nbody_timeout = \"6s\"\n{}", models(root.path(), &["one"], ""));
    let server = options(config).start();
    assert_eq!(ask(&server, "one").0, 200);
    let body = body("one", "hello", false).to_string();
    let (head, tail) = body.as_bytes().split_at(body.len() / 2);
    let mut connection = Connection::open(server.address);
    let length = body.len().to_string();
    connection.ask("POST", MESSAGES, &[("content-type", "application/json"), ("content-length", &length)], head);
    thread::sleep(Duration::from_millis(100));
    // A body that short has a second.
    signal([server.pid()], libc::SIGSTOP);
    thread::sleep(Duration::from_secs(3));
    signal([server.pid()], libc::SIGCONT);
    thread::sleep(Duration::from_millis(100));
    connection.send(tail);
    assert_eq!(connection.reply("POST").map(|reply| reply.status()), Some(200), "{}", server.log());
    // A client that stalls by itself is still refused.
    let mut connection = Connection::open(server.address);
    connection.ask("POST", MESSAGES, &[("content-type", "application/json"), ("content-length", &length)], head);
    assert_eq!(connection.reply("POST").map(|reply| reply.status()), Some(408), "{}", server.log());
}

#[test]
fn a_changed_configuration_takes_effect_without_dropping_an_answer() {
    let root = scripts();
    let slow = "options = { token_us = 20_000 }";
    let unknown = "[fleet]\nunknown_models = \"refuse\"\n";
    let config = |ids: &[&str], more: &str| format!("{unknown}{}", models(root.path(), ids, more));
    let server = options(config(&["one", "two"], slow)).start();
    let file = server.home().path().join("pensieve.toml");
    let replace = |text: &str| {
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &file).unwrap();
    };
    let logged = |words: &str| until(words, || server.log().contains(words));
    assert_eq!((ask(&server, "two").0, ask(&server, "three").0), (200, 404));
    let mut running = Incoming::open(server.address, MESSAGES, &[], &body("two", "long", true));
    while running.event().unwrap().name != "content_block_delta" {}

    // On a change of the file: one is new, one is gone, one has another name besides.
    replace(&config(&["one", "three"], &format!("{slow}\n")).replacen("threads", "aliases = [\"uno\"]\nthreads", 1));
    logged("configuration: model 'two' is removed; its running answers may finish");
    logged("configuration: model 'three' is new; it loads on first request");
    logged("configuration: model 'one' changed (aliases)");
    assert_eq!((ask(&server, "three").0, ask(&server, "uno").0, ask(&server, "two").0), (200, 200, 404));
    let listed = server.get("/v1/models").json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, ["one", "uno", "three"]);
    let mut last = String::new();
    while let Some(event) = running.event() {
        last = event.name;
    }
    assert_eq!(last, "message_stop", "the removed model finishes");
    until("gone", || health(&server, "two").is_null());

    // A broken file changes nothing, and says why; on SIGHUP, too.
    replace("[[models]]\nid = \"one\"\nsorce = \"x\"\n");
    logged("not applied because of the above");
    assert!(server.log().contains("sorce"), "{}", server.log());
    assert_eq!((ask(&server, "three").0, ask(&server, "uno").0), (200, 200));

    let loads = health(&server, "one")["loads"].as_u64().unwrap();
    replace(&format!("[server]\nrequests_max = 7\n{}", config(&["one", "three"], "options = { token_us = 1 }")));
    server.signal(libc::SIGHUP);
    logged("configuration: server.requests_max changed, which takes effect at the next start");
    logged("it is loaded anew");
    assert_eq!(ask(&server, "one").0, 200);
    assert_eq!(health(&server, "one")["loads"].as_u64().unwrap(), loads + 1);
    server.signal(libc::SIGHUP);
    logged("configuration: nothing has changed");
    server.stop();
}

#[test]
fn ps_stop_pin_and_logs_look_after_a_running_server() {
    let root = scripts();
    let idle = "[fleet]\nidle_timeout = \"10min\"\n";
    let server = options(format!("{idle}{}", models(root.path(), &["one", "two"], ""))).start();
    let url = format!("http://{}", server.address);
    let ps = || said(&server, &["ps", "--url", &url]);
    assert!(ps().lines().any(|line| line.starts_with("one ") && line.contains(" idle ")), "{}", ps());
    assert_eq!(ask(&server, "one").0, 200);
    until("measured", || health(&server, "one")["measured_bytes"].is_u64());
    let shown = ps();
    assert!(shown.contains("ready") && shown.contains("cpu") && shown.contains("min without requests"), "{shown}");

    // Pinned, it is loaded without a request, and says so.
    assert_eq!(said(&server, &["pin", "two", "--url", &url]), "'two' stays loaded until it is unpinned or stopped\n");
    assert_eq!(health(&server, "two")["state"], "ready");
    assert!(ps().lines().any(|line| line.starts_with("two") && line.ends_with("pinned")), "{}", ps());
    let json: Value = serde_json::from_str(&said(&server, &["ps", "--json", "--url", &url])).unwrap();
    assert_eq!((&json["models"][1]["pinned"], &json["requests"]), (&json!(true), &json!([])));
    said(&server, &["pin", "--off", "two", "--url", &url]);
    assert_eq!(health(&server, "two")["pinned"], false);

    assert_eq!(said(&server, &["stop", "one", "--url", &url]), "'one' is unloaded\n");
    until("gone", || health(&server, "one")["workers"] == 0);
    assert_eq!(said(&server, &["stop", "one", "--url", &url]), "'one' is not loaded\n");
    assert_eq!(said(&server, &["stop", "--all", "--url", &url]), "'two' is unloaded\n");
    until("gone", || health(&server, "two")["workers"] == 0);
    assert_eq!(said(&server, &["stop", "--all", "--url", &url]), "no model is loaded\n");
    // What was measured is known after it has gone, too.
    assert!(ps().contains("(needs "), "{}", ps());
    assert_eq!(ask(&server, "one").0, 200, "a stopped model comes back");

    let unknown = run(&server, &["stop", "nothing", "--url", &url]);
    let stderr = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(3) && stderr.contains("there is no model 'nothing'"), "{unknown:?}");
    let nowhere = run(&server, &["ps", "--url", "http://127.0.0.1:9"]);
    assert_eq!(nowhere.status.code(), Some(3), "{nowhere:?}");

    // The log's file has what standard error has.
    let port = server.address.port().to_string();
    let lines = said(&server, &["logs", "--port", &port, "-n", "1000"]);
    assert!(lines.contains("ready on http://") && lines.contains("unloaded by request"), "{lines}");
    assert_eq!(said(&server, &["logs", "--port", &port, "-n", "1"]).lines().count(), 1);
    let absent = run(&server, &["logs", "--port", "1"]);
    assert_eq!(absent.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&absent.stderr).contains(&format!("serve-{port}.log")), "{absent:?}");
}

#[test]
fn a_pinned_model_is_loaded_again_after_a_restart_until_it_is_let_go() {
    let root = scripts();
    let (options, home) = (options(models(root.path(), &["one", "two"], "")), home());
    let pins = home.path().join("pins");
    let server = options.start_in(&home);
    let url = format!("http://{}", server.address);
    said(&server, &["pin", "two", "--url", &url]);
    until("loaded", || health(&server, "two")["state"] == "ready");
    server.stop();

    let server = options.start_in(&home);
    let url = format!("http://{}", server.address);
    until("loaded again", || health(&server, "two")["state"] == "ready");
    assert_eq!((&health(&server, "two")["pinned"], &health(&server, "one")["pinned"]), (&json!(true), &json!(false)));
    said(&server, &["stop", "two", "--url", &url]);
    assert!(!pins.exists());
    server.stop();

    let server = options.start_in(&home);
    assert_eq!(health(&server, "two")["pinned"], false);
    server.stop();

    // What was pinned stays so if it cannot be loaded for now.
    fs::write(&pins, "\"two\"\n").unwrap();
    fs::write(root.path().join("one/script.json"), "{").unwrap();
    let server = options.start_in(&home);
    assert!(!run(&server, &["pin", "two", "--url", &format!("http://{}", server.address)]).status.success());
    assert!(health(&server, "two")["pinned"] == true && pins.exists());
    server.stop();
}

#[test]
fn an_empty_prompt_of_ollama_s_loads_a_model_and_a_time_of_0_unloads_it() {
    let root = scripts();
    let broken = root.path().join("broken");
    checkpoint(&broken, &SCRIPT);
    fs::write(broken.join("script.json"), "{").unwrap();
    let more = format!("[[models]]\nid = \"broken\"\nsource = \"{}\"\n", broken.display());
    let server = options(models(root.path(), &["one"], "") + &more).start();
    let ask = |path: &str, more: Value| {
        let mut body = json!({"model": "one"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let headers = [("content-type", "application/json")];
        let reply = request(server.address, "POST", path, &headers, body.to_string().as_bytes());
        (reply.status(), reply.json())
    };
    for (path, load) in [("/api/generate", json!({})), ("/api/chat", json!({"messages": [], "keep_alive": "5m"}))] {
        let (status, loaded) = ask(path, load);
        assert_eq!((status, &loaded["done"], &loaded["done_reason"]), (200, &json!(true), &json!("load")), "{loaded}");
        // It waits until the model is there.
        assert_eq!(health(&server, "one")["state"], "ready");
        let (_, unloaded) = ask(path, json!({"keep_alive": 0}));
        assert_eq!(unloaded["done_reason"], "unload", "{unloaded}");
        until("gone", || health(&server, "one")["workers"] == 0);
        // That was once: later requests are as configured.
        let (_, again) = ask(path, json!({"keep_alive": 0}));
        assert_eq!(again["done_reason"], "unload", "{again}");
    }
    let (_, answer) = ask("/api/generate", json!({"prompt": "hello", "stream": false}));
    assert_eq!(answer["response"], "Hello!");
    assert_eq!(health(&server, "one")["state"], "ready");
    let (status, refused) = ask("/api/generate", json!({"model": "broken"}));
    assert!(status >= 400 && refused["error"].is_string(), "{status} {refused}");
    let pinned = run(&server, &["pin", "broken", "--url", &format!("http://{}", server.address)]);
    assert!(!pinned.status.success() && pinned.stdout.is_empty() && !pinned.stderr.is_empty(), "{pinned:?}");
    assert_eq!(health(&server, "broken")["pinned"], false, "what cannot load is not pinned");
    server.stop();
}

#[test]
fn a_followed_log_goes_on_in_the_next_file() {
    let home = home();
    let path = home.path().join("logs/serve-7.log");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "one\ntwo\n").unwrap();
    let mut command = Command::new(program());
    command.args(["logs", "-f", "-n", "1", "--port", "7"]).env("PENSIEVE_HOME", home.path());
    let mut child = command.current_dir(home.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "two");
    // As the server rotates its log.
    let append = |text: &str| OpenOptions::new().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
    append("three\n");
    fs::rename(&path, path.with_extension("log.1")).unwrap();
    fs::write(&path, "four\n").unwrap();
    assert_eq!([next(), next()], ["three", "four"]);
    append("five\n");
    assert_eq!(next(), "five");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_long_prompt_shows_how_far_it_is_and_a_client_that_goes_leaves_its_counts() {
    let root = scripts();
    let server = options(models(root.path(), &["one"], "options = { token_us = 8_000 }")).start();
    let url = format!("http://{}", server.address);
    let text = format!("{} long", "a b c d e f g ".repeat(400));
    let mut incoming = Incoming::open(server.address, MESSAGES, &[], &body("one", &text, true));
    assert_eq!(incoming.event().unwrap().name, "message_start");
    let running = || server.get("/v1/usage").json()["running"][0].clone();
    until("reading", || running()["state"] == "reading" && running()["seconds_left"].is_u64());
    let shown = running();
    let (read, all) = (shown["read_tokens"].as_u64().unwrap(), shown["input_tokens"].as_u64().unwrap());
    assert!(read > 0 && read < all, "{shown}");
    assert_eq!(incoming.head.header("pensieve-prompt-tokens"), Some(all.to_string().as_str()));
    assert_eq!(incoming.head.header("pensieve-cached-tokens"), Some("0"));
    let line = said(&server, &["statusline", "--url", &url]);
    assert!(line.starts_with("one: reading ") && line.contains(" tokens"), "{line}");
    assert!(said(&server, &["ps", "--url", &url]).contains("on one: reading "));
    // The log tells of it every ten seconds.
    let is_told = |line: &str| line.contains("reading ") && line.contains(" tokens") && line.contains(" left");
    until("told", || server.log().lines().any(is_told));
    assert!(server.log().lines().find(|line| is_told(line)).is_some_and(|line| line.contains("request{")));
    drop(incoming);
    until("logged", || server.log().contains("the client has gone"));
    let log = server.log();
    let gone = log.lines().find(|line| line.contains("the client has gone")).unwrap();
    assert!(gone.contains(&format!("prompt_tokens={all}")) && gone.contains("read_tokens="), "{gone}");
    until("over", || running().is_null());
}

#[test]
fn a_full_disk_is_named_and_plugins_come_once_there_is_room() {
    let root = scripts();
    let home = home();
    let cache = home.path().join("cache");
    fs::create_dir(&cache).unwrap();
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(&cache).output();
    match mount(&["-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs"]) {
        Ok(output) if output.status.success() => {}
        // Only root may mount; `a_copy_without_room_names_the_folder_and_what_is_missing` needs no disk.
        other => return eprintln!("SKIPPED: a small disk cannot be mounted: {other:?}"),
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0).status();
        }
    }
    let _unmount = Unmount(&cache);
    fs::write(cache.join("large"), vec![0; 5 << 20]).unwrap();
    let server = options(models(root.path(), &["one"], "")).start_in(&home);
    let (status, refused) = ask(&server, "one");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(status >= 400 && message.contains("finds no room in '") && message.contains(" are free"), "{refused}");
    let log = server.log();
    assert!(log.contains("is refused: the private copy of plugin '"), "{log}");
    let doctor = run(&server, &["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("finds no room in '"), "{doctor:?}");
    // Room is made, and what was refused is tried again.
    fs::remove_file(cache.join("large")).unwrap();
    assert!(mount(&["-o", "remount,size=2g"]).unwrap().status.success());
    until("served", || ask(&server, "one").0 == 200);
}

#[test]
fn claude_code_is_set_up_in_the_users_own_settings_and_back() {
    let root = scripts();
    let server = options(models(root.path(), &["one"], "context = 3000")).start();
    let url = format!("http://{}", server.address);
    let settings = server.home().path().join(".claude/settings.json");
    let own = "{\n  \"model\": \"opus\",\n  \"env\": {\n    \"FOO\": \"1\"\n  }\n}\n";
    fs::create_dir(settings.parent().unwrap()).unwrap();
    fs::write(&settings, own).unwrap();
    let refused = run(&server, &["setup", "claude", "--url", &url]);
    assert_eq!((refused.status.code(), fs::read_to_string(&settings).unwrap().as_str()), (Some(2), own));
    let shown = said(&server, &["setup", "claude", "--url", &url, "--yes"]);
    assert!(shown.contains(&format!("+ env.ANTHROPIC_BASE_URL: \"{url}\"")), "{shown}");
    let written: Value = serde_json::from_str(&fs::read_to_string(&settings).unwrap()).unwrap();
    assert_eq!(
        (&written["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], &written["env"]["FOO"]),
        (&json!("3000"), &json!("1"))
    );
    assert_eq!((&written["env"]["ANTHROPIC_MODEL"], &written["model"]), (&json!("one"), &json!("opus")));
    assert!(said(&server, &["setup", "claude", "--url", &url, "--yes"]).contains("is set up already"));
    said(&server, &["setup", "claude", "--undo", "--yes"]);
    assert_eq!(fs::read_to_string(&settings).unwrap(), own);
    assert_eq!(run(&server, &["setup", "claude", "--undo", "--yes"]).status.code(), Some(3));
    // What the user has deleted in the meantime is not written anew.
    said(&server, &["setup", "claude", "--url", &url, "--yes"]);
    fs::remove_file(&settings).unwrap();
    assert!(said(&server, &["setup", "claude", "--undo", "--yes"]).contains("does not exist any more"));
    assert!(!settings.exists());
}
