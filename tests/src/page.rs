//! The page over plain HTTP: who gets which form of it, what its files may load, who may call the server from it, and the
//! route of live events. `slow::page` has it in a browser.

use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{library_name, plugin, test_plugin},
    http::{
        client::{Connection, Reply, get, post, request},
        server::{Options, Server},
    },
    scripted,
};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

fn serve(root: &std::path::Path, config: &str) -> Server {
    let source = root.join("scripted");
    let story = "and then another thing happened, ".repeat(60);
    let script = [("Count", "one two three four five six"), ("Tell a story", story.as_str()), ("", "All right.")];
    scripted::checkpoint(&source, &script);
    let config = format!("{config}\n[[models]]\nid = \"scripted\"\nsource = \"{}\"\nthreads = 1\n", source.display());
    Options { plugins: vec![test_plugin("scripted"), plugin("pensieve-samplers")], config, ..Options::default() }
        .start()
}

fn chat(text: &str) -> Value {
    json!({ "model": "scripted", "max_tokens": 8, "messages": [{ "role": "user", "content": text }] })
}

/// A reader of the live events.
struct Reader {
    connection: Connection,
    pending: String,
}

impl Reader {
    fn open(address: SocketAddr, headers: &[(&str, &str)]) -> Result<Self, u16> {
        let mut connection = Connection::open(address);
        connection.ask("GET", "/v1/live", headers, b"");
        let head = connection.head().expect("an answer");
        if head.status == 200 { Ok(Self { connection, pending: String::new() }) } else { Err(head.status) }
    }

    /// The next event of this name; `None` if the stream ends.
    fn next(&mut self, name: &str) -> Option<Value> {
        loop {
            while let Some((block, rest)) = self.pending.split_once("\n\n") {
                let block = block.to_owned();
                self.pending = rest.to_owned();
                let data = block.strip_prefix(&format!("event: {name}\ndata: "));
                if let Some(data) = data {
                    return Some(serde_json::from_str(data).unwrap());
                }
            }
            self.pending.push_str(&String::from_utf8(self.connection.piece()?).unwrap());
        }
    }
}

#[test]
fn browsers_get_a_page_and_other_programs_text() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "[server]\nkey = \"a-key-of-this-test\"\n");
    let text = get(server.address, "/");
    assert!(
        text.text().starts_with("This is Pensieve") && text.header("content-type").unwrap().starts_with("text/plain")
    );
    let page = request(server.address, "GET", "/", &[("accept", BROWSER)], b"");
    assert!(page.text().contains("<title>Pensieve</title>"), "{page:?}");
    let policy = page.header("content-security-policy").unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "connect-src 'self'"] {
        assert!(policy.contains(rule) && !policy.contains("unsafe"), "{policy}");
    }
    for (name, value) in [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")] {
        assert_eq!(page.header(name), Some(value));
    }
    // Everything that it names is there, without a key.
    let body = page.text();
    let names = body.split('"').filter(|part| part.starts_with("/page/"));
    let mut files: Vec<String> = names.map(str::to_owned).collect();
    let mut seen = 0;
    while seen < files.len() {
        let reply = get(server.address, &files[seen]);
        assert_eq!(reply.status(), 200, "{}", files[seen]);
        let more = reply.text();
        let imports = more.split('"').filter(|part| part.starts_with("/page/") && part.ends_with(".js"));
        let new: Vec<String> = imports.map(str::to_owned).filter(|name| !files.contains(name)).collect();
        files.extend(new);
        files.dedup();
        seen += 1;
    }
    assert!(files.len() > 10, "{files:?}");
    assert_eq!(get(server.address, "/page/nothing.js").status(), 404);
    assert_eq!(get(server.address, "/page/..%2Fmain.rs").status(), 404);
    let tag = page.header("etag").unwrap();
    let again = request(server.address, "GET", "/page/main.js", &[("if-none-match", tag)], b"");
    assert_eq!((again.status(), again.body.len()), (304, 0));
}

#[test]
fn its_own_page_may_call_the_server_and_no_other_page_may() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let own = format!("http://{}", server.address);
    let unload = |origin: &str| {
        request(server.address, "POST", "/v1/models/scripted/unload", &[("origin", origin)], b"").status()
    };
    assert_eq!(unload(&own), 200);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", &format!("{own}.evil.example")] {
        assert_eq!(unload(origin), 403, "{origin}");
    }
    let live = |headers: &[(&str, &str)]| Reader::open(server.address, headers).map(drop);
    assert_eq!(live(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]), Err(403));
    assert_eq!(live(&[("origin", "http://evil.example")]), Err(403));
    assert_eq!(live(&[("host", "evil.example")]), Err(403), "a name that leads here by DNS");
    assert_eq!(live(&[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")]), Ok(()));
}

#[test]
fn live_events_tell_what_happens_and_end_with_the_server() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let mut reader = Reader::open(server.address, &[]).unwrap();
    let first = reader.next("server").unwrap();
    assert_eq!((&first["models"][0]["id"], &first["models"][0]["state"]), (&json!("scripted"), &json!("idle")));
    assert!(first["plugins"].as_array().unwrap().iter().any(|plugin| plugin["id"] == "samplers"));
    assert_eq!(reader.next("requests").unwrap(), json!({"running": [], "ended": []}));
    // Long enough to be worth a reason.
    let reply = post(server.address, "/v1/chat/completions", &chat(&"Count for me. ".repeat(20)));
    assert_eq!(reply.status(), 200, "{reply:?}");
    let ended = loop {
        let requests = reader.next("requests").unwrap();
        if let Some(ended) = requests["ended"].as_array().unwrap().first() {
            break ended.clone();
        }
    };
    assert_eq!((&ended["id"], &ended["stop_reason"]), (&json!(reply.header("request-id").unwrap()), &json!("length")));
    assert_eq!(ended["pensieve"]["cache_miss"]["kind"], "first_time");
    fs::write(server.plugins().join(library_name("broken")), "nothing").unwrap();
    let refused = loop {
        let state = reader.next("server").unwrap();
        let plugins = state["plugins"].as_array().unwrap();
        if let Some(refused) = plugins.iter().find(|plugin| plugin["state"] == "rejected") {
            break refused.clone();
        }
    };
    assert!(refused["file"].as_str().unwrap().contains("broken"), "{refused}");
    let listed = get(server.address, "/v1/requests").json();
    assert_eq!(listed["data"][0]["id"], ended["id"]);
    let began = Instant::now();
    server.signal(libc::SIGTERM);
    while reader.next("server").is_some() {}
    assert!(began.elapsed() < Duration::from_secs(5), "a reader holds the server up for {:?}", began.elapsed());
}

#[test]
fn a_reader_sees_the_requests_of_its_own_key_alone() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "[server]\nkey = [\"key-of-ada-1234\", \"key-of-bob-1234\"]\n");
    assert_eq!(Reader::open(server.address, &[]).map(drop), Err(401));
    let key = |key: &str| format!("Bearer {key}");
    let (ada, bob) = (key("key-of-ada-1234"), key("key-of-bob-1234"));
    let ask = |key: &str| -> Reply {
        let headers = [("content-type", "application/json"), ("authorization", key)];
        request(server.address, "POST", "/v1/chat/completions", &headers, chat("hello").to_string().as_bytes())
    };
    let own = ask(&ada).header("request-id").unwrap().to_owned();
    ask(&bob);
    let mut reader = Reader::open(server.address, &[("authorization", &ada)]).unwrap();
    let requests = reader.next("requests").unwrap();
    let ids: Vec<&str> =
        requests["ended"].as_array().unwrap().iter().map(|ended| ended["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [own.as_str()]);
}

#[test]
#[cfg(target_os = "linux")]
fn fifty_readers_of_an_idle_server_cost_less_than_a_hundredth_of_a_core() {
    use crate::processes::processor_time;
    use std::thread::sleep;
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    // With a model in memory, whose worker is asked, too.
    assert_eq!(post(server.address, "/v1/chat/completions", &chat("hello")).status(), 200);
    let mut readers: Vec<Reader> = (0..50).map(|_| Reader::open(server.address, &[]).unwrap()).collect();
    readers.iter_mut().for_each(|reader| drop(reader.next("server").unwrap()));
    sleep(Duration::from_secs(3));
    let (before, began) = (processor_time(server.pid()), Instant::now());
    sleep(Duration::from_secs(20));
    let used = (processor_time(server.pid()) - before).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("50 idle readers cost {:.2} % of a core", used * 100.0);
    assert!(used < 0.01, "{used}");
    // A stream beside them is as quick as without them.
    let streamed = || {
        let began = Instant::now();
        let body = json!({
            "model": "scripted", "max_tokens": 400, "stream": true,
            "messages": [{ "role": "user", "content": "Tell a story" }],
        });
        assert_eq!(post(server.address, "/v1/chat/completions", &body).status(), 200);
        began.elapsed()
    };
    let watched = (0..3).map(|_| streamed()).min().unwrap();
    drop(readers);
    let alone = (0..3).map(|_| streamed()).min().unwrap();
    println!("a stream took {watched:?} beside 50 readers, and {alone:?} alone");
    assert!(watched < alone + alone / 2 + Duration::from_millis(200), "{watched:?} and {alone:?}");
}
