//! Adapters of a running server: attached and detached by requests, from the folders that the configuration allows.

use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use super::{
    client::{Incoming, Reply, post, request},
    server::{Options, Server},
};
use crate::{
    artifacts::plugin,
    hub::Hub,
    lora::bad_adapters,
    processes::{memory, under},
    reference::fixture,
};

/// A server with a tiny Llama and access to these folders.
fn options(folders: &[&Path], more: &str) -> Options {
    let base = fixture("llama/gqa");
    let server = if folders.is_empty() { String::new() } else { format!("[server]\nadapter_folders = {folders:?}\n") };
    let config = format!("{server}[[models]]\nid = \"base\"\nsource = {base:?}\n{more}");
    let plugins = vec![plugin("pensieve-llama"), plugin("pensieve-lora"), plugin("pensieve-samplers")];
    Options { plugins, ..Options::configured(&config) }
}

fn body(model: &str, extras: Value) -> Value {
    let prompt: Vec<u32> = (0..20).map(|token| token * 7 % 250 + 3).collect();
    json!({ "model": model, "prompt": prompt, "max_tokens": 30, "temperature": 0, "logprobs": 1, "pensieve": extras })
}

/// The model's answer with the log-probability of every token.
fn say(server: &Server, model: &str, extras: Value) -> Value {
    let reply = post(server.address, "/v1/completions", &body(model, extras));
    assert_eq!(reply.status(), 200, "{reply:?}");
    let mut choice = reply.json()["choices"][0].take();
    json!([choice["text"].take(), choice["logprobs"]["token_logprobs"].take()])
}

fn add(server: &Server, name: &str, source: &str) -> Reply {
    post(server.address, "/v1/models/base/adapters", &json!({ "name": name, "source": source }))
}

fn remove(server: &Server, name: &str) -> Reply {
    request(server.address, "DELETE", &format!("/v1/models/base/adapters/{name}"), &[], b"")
}

/// Checks that a reply refuses with this status and contains all of these texts.
fn check_refused(reply: &Reply, status: u16, said: &[&str]) {
    assert_eq!(reply.status(), status, "{reply:?}");
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.iter().all(|word| message.contains(word)), "{message:?} does not say {said:?}");
}

/// Checks the same, and which part of the request is blamed.
fn check_blamed(reply: &Reply, status: u16, part: &str, said: &[&str]) {
    check_refused(reply, status, said);
    assert_eq!(reply.json()["error"]["param"], part, "{reply:?}");
}

#[test]
fn an_adapter_that_comes_over_http_is_a_model_until_it_goes() {
    let lora = fixture("lora");
    let server = options(&[&lora], "").start();
    let plain = say(&server, "base", json!({}));
    let added = add(&server, "a", "rank16").json();
    assert_eq!((&added["id"], &added["state"], &added["format"]), (&json!("base:a"), &json!("loaded"), &json!("peft")));
    assert_eq!((&added["pairs"], &added["source"]), (&json!(14), &json!("rank16")));
    let bytes = added["bytes"].as_u64().unwrap();
    let listed = server.get("/v1/models/base/adapters").json();
    assert_eq!(listed["data"], json!([added]));
    let ids: Vec<Value> =
        server.get("/v1/models").json()["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["base", "base:a"]);
    assert_eq!(server.get("/v1/models/base:a").json()["id"], "base:a");
    let metrics = server.metrics();
    assert_eq!(metrics["pensieve_adapter_bytes{model=\"base\",adapter=\"a\"}"], bytes as f64);
    assert_eq!(metrics["pensieve_adapters{model=\"base\"}"], 1.0);
    assert!(server.log().contains("adapter 'a' is there"), "{}", server.log());

    let adapted = say(&server, "base:a", json!({}));
    assert_ne!(adapted, plain);
    assert_eq!(say(&server, "base", json!({"adapter": "a"})), adapted);
    let half = say(&server, "base:a", json!({"adapter_scale": 0.5}));
    assert!(half != adapted && half != plain);
    assert_eq!(say(&server, "base", json!({"adapter": "a", "adapter_scale": 0.5})), half);
    assert_eq!(say(&server, "base", json!({})), plain);
    let unknown = post(server.address, "/v1/completions", &body("base", json!({"adapter": "b"})));
    check_refused(&unknown, 404, &["has no adapter 'b' (it has: a)"]);
    let alone = post(server.address, "/v1/completions", &body("base", json!({"adapter_scale": 2})));
    check_refused(&alone, 400, &["pensieve.adapter_scale"]);

    check_blamed(&add(&server, "a", "rank1"), 409, "name", &["name: ", "has an adapter 'a' already"]);
    // A stream that uses it continues to its end.
    let long = json!({"model": "base:a", "prompt": "x", "max_tokens": 200, "temperature": 0, "stream": true});
    let mut stream = Incoming::open(server.address, "/v1/completions", &[], &long);
    stream.event().unwrap();
    let gone = remove(&server, "a");
    assert_eq!((gone.status(), &gone.json()["deleted"]), (200, &json!(true)));
    let rest = stream.events();
    assert!(rest.last().is_some_and(|event| event.data == "[DONE]"), "{rest:?}");
    check_blamed(&remove(&server, "a"), 404, "name", &["has no adapter 'a'", "/v1/models/base/adapters lists them"]);
    let reply = post(server.address, "/v1/completions", &body("base:a", json!({})));
    check_refused(&reply, 404, &["model 'base' has no adapter 'a' (it has: none)"]);
    assert_eq!(server.get("/v1/models").json()["data"].as_array().unwrap().len(), 1);
    // The name is free for another adapter, which finds nothing of the first in the cache.
    assert_eq!(add(&server, "a", "rslora").status(), 200);
    let other = say(&server, "base:a", json!({}));
    assert!(other != adapted && other != plain);
}

#[test]
fn adapters_come_from_open_folders_and_the_hub_alone() {
    let home = tempfile::tempdir().unwrap();
    let (open, secret) = (home.path().join("open"), home.path().join("secret"));
    fs::create_dir_all(open.join("leaky")).unwrap();
    fs::create_dir(&secret).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(fixture("lora/rank16").join(file), secret.join(file)).unwrap();
        symlink(secret.join(file), open.join("leaky").join(file)).unwrap();
    }
    symlink(&secret, open.join("link")).unwrap();
    let text = |path: &Path| path.display().to_string();

    let files = ["adapter_config.json", "adapter_model.safetensors"];
    let files = files.map(|name| (name, fs::read(fixture("lora/rank16").join(name)).unwrap()));
    let hub = Hub::serve(&[
        files[0].clone(),
        files[1].clone(),
        ("model.safetensors", vec![0; 100]),
        ("config.json", b"{}".to_vec()),
    ]);
    let with_hub = |options: Options| Options { variables: vec![("HF_ENDPOINT".into(), hub.endpoint())], ..options };
    let more = "[models.adapters]\nown = \"hf:owner/repo\"\n[[models]]\nid = \"muse\"\nbase = \"base\"\n";
    let server = with_hub(options(&[&open], more)).start();
    assert!(server.get("/v1/models/base:own").status() == 200 && !hub.asked("adapter_config.json").is_empty());
    say(&server, "base:own", json!({}));
    let outside = ["does not lie in a folder that adapters may come from", "adapter_folders"];
    for source in ["../secret", "link", "leaky/../../secret", "/etc/passwd", &text(&secret), "/no/such/place"] {
        check_refused(&add(&server, "a", source), 403, &outside);
    }
    check_refused(&add(&server, "a", "leaky"), 403, &["is a link that leads out"]);
    check_blamed(&add(&server, "a", "nothing"), 404, "source", &["source: there is nothing at 'nothing'"]);
    check_blamed(&add(&server, "a", ""), 400, "source", &["source: should not be empty"]);
    check_blamed(&add(&server, "a", &"x".repeat(2000)), 400, "source", &["1024 at most"]);
    let bare = post(server.address, "/v1/models/base/adapters", &json!({"name": "a"}));
    check_blamed(&bare, 400, "source", &["source: this field is required"]);
    check_blamed(&add(&server, "", "leaky"), 400, "name", &["name: should not be empty"]);
    for name in ["a b", "a:b", "../a", "a/b", &"x".repeat(129)] {
        let said = "name: cannot follow a model's id; it takes 1 to 128 letters, digits and -_. signs";
        check_blamed(&add(&server, name, "leaky"), 400, "name", &[said]);
    }
    let more = json!({"name": "a", "source": "b", "merge": true});
    check_refused(&post(server.address, "/v1/models/base/adapters", &more), 400, &["merge: unknown field"]);
    let other = json!({"name": "a", "source": "hf:owner/repo"});
    let reply = post(server.address, "/v1/models/gpt-9/adapters", &other);
    check_blamed(&reply, 404, "model", &["there is no model 'gpt-9'"]);
    check_blamed(&server.get("/v1/models/gpt-9/adapters"), 404, "model", &["there is no model 'gpt-9'"]);
    let reply = request(server.address, "DELETE", "/v1/models/muse/adapters/a", &[], b"");
    check_blamed(&reply, 404, "model", &["'muse' is another name for model 'base'", "name 'base' instead"]);
    assert_eq!(request(server.address, "PUT", "/v1/models/base/adapters", &[], b"").status(), 405);

    let added = add(&server, "a", "hf:owner/repo");
    assert_eq!((added.status(), &added.json()["source"]), (200, &json!("hf:owner/repo")), "{added:?}");
    assert!(hub.asked("model.safetensors").iter().all(|asked| asked.path.contains("adapter_")), "only the adapter");
    say(&server, "base:a", json!({}));
    check_blamed(&add(&server, "b", "hf:owner/../x"), 400, "source", &["is not a name on the hub"]);
    check_blamed(&add(&server, "b", "hf:owner/other"), 404, "source", &[]);
    let variables = vec![("HF_ENDPOINT".to_owned(), "http://127.0.0.1:9".to_owned())];
    let lonely = Options { variables, ..options(&[], "") }.start();
    let reply = add(&lonely, "a", "hf:owner/repo");
    check_refused(&reply, 502, &["127.0.0.1:9"]);

    let closed = with_hub(options(&[], "")).start();
    check_refused(&add(&closed, "a", "rank16"), 403, &["no folder is open to adapters", "adapter_folders of [server]"]);
    let refusing = Options::configured("[server]\nadapter_downloads = \"refuse\"\nkey = \"secret\"\n").start();
    let ask = |key: &str| {
        let headers = [("content-type", "application/json"), ("x-api-key", key)];
        let body = json!({"name": "a", "source": "hf:owner/repo"}).to_string();
        request(refusing.address, "POST", "/v1/models/nothing/adapters", &headers, body.as_bytes())
    };
    assert_eq!(ask("wrong").status(), 401);
    check_refused(&ask("secret"), 403, &["may not be downloaded", "adapter_downloads"]);
}

#[test]
fn a_bad_adapter_is_refused_by_the_name_of_its_tensor_and_the_model_serves_on() {
    let bad = bad_adapters();
    let folders: Vec<&Path> = bad.iter().map(|(_, _, folder)| folder.path()).collect();
    let configured = format!("[models.adapters]\nbroken = {:?}\n", folders[2]);
    let server = options(&folders, &configured).start();
    let plain = say(&server, "base", json!({}));
    for (name, said, folder) in &bad {
        check_refused(&add(&server, name, &folder.path().display().to_string()), 400, said);
    }
    // A configured adapter is listed, and a request for it is told why it is not loaded.
    let reply = post(server.address, "/v1/completions", &body("base:broken", json!({})));
    check_refused(&reply, 400, &["adapter 'broken'", "k_proj.lora_A", "NaN"]);
    let listed = server.get("/v1/models/base/adapters").json();
    assert_eq!((&listed["data"][0]["name"], &listed["data"][0]["state"]), (&json!("broken"), &json!("refused")));
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(say(&server, "base", json!({})), plain);
    assert_eq!(server.metrics()["pensieve_worker_deaths_total{model=\"base\"}"], 0.0);
}

/// Resident memory of the server's only worker, in KiB.
fn worker_kib(server: &Server) -> u64 {
    let workers = Vec::from_iter(under("worker", server.pid()));
    let [worker] = workers[..] else { panic!("not one worker: {workers:?}") };
    memory(worker).unwrap().resident >> 10
}

#[test]
fn adapters_come_and_go_two_hundred_times_while_eight_streams_run() {
    let lora = fixture("lora");
    let kept = format!("[models.adapters]\nkept = {:?}\n", lora.join("rank1"));
    let server = options(&[&lora], &kept).start();
    let names = ["base", "base:kept"];
    let expected = names.map(|name| say(&server, name, json!({})));
    let over = AtomicBool::new(false);
    let (early, late) = thread::scope(|scope| {
        let streams: Vec<_> = (0..8)
            .map(|place| {
                let (server, expected, over) = (&server, &expected, &over);
                scope.spawn(move || {
                    let mut rounds = 0;
                    while rounds == 0 || !over.load(Relaxed) {
                        assert_eq!(say(server, names[place % 2], json!({})), expected[place % 2], "stream {place}");
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let mut early = 0;
        for round in 0..200 {
            let added = add(&server, "passing", if round % 2 == 0 { "rank64" } else { "rank16" });
            assert_eq!(added.status(), 200, "round {round}: {added:?}");
            assert_eq!(remove(&server, "passing").status(), 200);
            if round == 60 {
                early = worker_kib(&server);
            }
        }
        let late = worker_kib(&server);
        over.store(true, Relaxed);
        let rounds: Vec<usize> = streams.into_iter().map(|stream| stream.join().unwrap()).collect();
        println!("streams went round {rounds:?} times; {early} KiB after 60 adapters, {late} after 200");
        (early, late)
    });
    assert!(late < early + (8 << 10), "140 adapters left {} KiB behind", late - early);
    let listed = server.get("/v1/models/base/adapters").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn a_merged_adapter_is_the_model_and_a_quantized_model_cannot_have_one() {
    let (lora, quantized) = (fixture("lora/rank16"), fixture("llama/gqa/q8_0.gguf"));
    let merged = format!(
        "[models.adapters]\nstyle = {lora:?}\n[[models]]\nid = \"merged\"\nsource = {:?}\n\
         adapters.style = {{ source = {lora:?}, merge = true }}\n[[models]]\nid = \"quantized\"\nsource = {quantized:?}\n\
         adapters.style = {{ source = {lora:?}, merge = true }}\n",
        fixture("llama/gqa")
    );
    let server = options(&[], &merged).start();
    let [text, likelihoods] = ["base:style", "merged"].map(|name| say(&server, name, json!({})));
    assert_eq!(text[0], likelihoods[0]);
    let numbers = |said: &Value| said[1].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    for (beside, within) in numbers(&text).into_iter().zip(numbers(&likelihoods)) {
        assert!((beside - within).abs() < 1e-3, "{beside} and {within}");
    }
    let listed = server.get("/v1/models/merged/adapters").json();
    assert_eq!((&listed["data"][0]["state"], &listed["data"][0]["id"]), (&json!("merged"), &json!("merged")));
    let ids: Vec<Value> =
        server.get("/v1/models").json()["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["base", "base:style", "merged", "quantized"]);
    let reply = post(server.address, "/v1/completions", &body("merged:style", json!({})));
    check_refused(&reply, 404, &["'style' is merged into model 'merged'"]);
    let reply = request(server.address, "DELETE", "/v1/models/merged/adapters/style", &[], b"");
    check_refused(&reply, 400, &["merged into the weights"]);
    let reply = post(server.address, "/v1/completions", &body("quantized", json!({})));
    check_refused(&reply, 400, &["_proj'", "is quantized (Q8_0)", "leave 'merge' out"]);
}
