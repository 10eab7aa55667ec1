//! Plugins that authors write: the examples, and the output of `pensieve new`. Each is built outside this tree, with another
//! toolchain if there is one, dropped into a running server's folder, and used through its API.

use pensieve_worker::plugin::LoadedPlugin;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{
    artifacts::{example, library, other_toolchain, outside, plugin},
    checkpoints,
    cli::Desk,
    http::{
        client::post,
        server::{Options, PATIENCE, Server},
    },
    reference::fixture,
};

/// Arguments of `pensieve new`. Two of the names also occur as words in the generated code.
const NEW: [(&str, &[&str]); 6] = [
    ("my-model", &["architecture", "my-model"]),
    ("my-eyes", &["vision", "my-eyes"]),
    ("my-rows", &["encoder", "my-rows"]),
    ("my-engine", &["architecture", "my-engine", "--in-c"]),
    ("sampler", &["sampler", "sampler"]),
    ("file", &["adapter", "file"]),
];
const EXAMPLES: [&str; 4] = ["qwen2-plugin", "my-sampler", "bigram", "c-engine"];

/// Paths of the projects: the examples, and the freshly generated ones.
fn projects(desk: &Desk) -> Vec<(&'static str, PathBuf)> {
    let mut projects: Vec<_> = EXAMPLES.iter().map(|name| (*name, example(name))).collect();
    for (name, arguments) in NEW {
        let said = desk.run(&[&["new"], arguments].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        projects.push((name, desk.path(name)));
    }
    projects
}

fn libraries() -> Vec<PathBuf> {
    let desk = Desk::new();
    let built = projects(&desk).into_iter();
    built.map(|(name, project)| library(&outside(&project, name), name)).collect()
}

#[test]
fn what_new_writes_passes_its_own_tests_as_it_is_written() {
    let desk = Desk::new();
    for (name, project) in projects(&desk) {
        if name == "bigram" {
            // The workspace's own tests check it against every law.
            continue;
        }
        let tests = library(&outside(&project, name), &format!("{name} tests"));
        let output = Command::new(tests).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("test result: ok. ") && !said.contains(" 0 passed"), "{name}: {said}");
    }
}

#[test]
fn plugins_of_authors_are_dropped_into_a_running_server_and_answer() {
    let libraries = libraries();
    if other_toolchain().is_some() {
        let built_by = |path: &Path| LoadedPlugin::open(path).unwrap().manifest().toolchain.clone();
        for library in &libraries {
            assert_ne!(built_by(library), built_by(&plugin("pensieve-llama")), "{}", library.display());
        }
    }
    served(&libraries);
}

#[test]
fn an_engine_in_c_travels_in_a_package_like_a_plugin_in_rust() {
    let desk = Desk::new();
    let file = library(&outside(&example("c-engine"), "c-engine"), "c-engine");
    let works = |arguments: &[&str]| {
        let said = desk.run(arguments);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    works(&["plugins", "key", "ada.key"]);
    let file = file.to_str().unwrap();
    let packed = works(&["plugins", "pack", file, "--publisher", "ada", "--key", "ada.key", "--license", "MIT"]);
    let package = packed.trim_end();
    assert!(package.ends_with(".pensieve"), "{package}");
    let added = works(&["plugins", "add", package]);
    let installed = desk.path("home/plugins").join(Path::new(file).file_name().unwrap());
    assert!(added.starts_with("added c-engine ") && installed.is_file(), "{added}");
    assert!(works(&["plugins", "list"]).contains("by 'ada'"));
}

/// A Llama under the name that a new architecture claims.
pub(super) fn claimed_by_a_new_architecture(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = fs::read(fixture("llama/gqa").join(file)).unwrap();
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => text.replace("LlamaForCausalLM", "MyModelForCausalLM").into_bytes(),
            Err(error) => error.into_bytes(),
        };
        fs::write(folder.join(file), bytes).unwrap();
    }
}

/// Models for every plugin: Qwen2's, a bigram's, one for the C engine, a Llama, and the same Llama under the name that
/// a new architecture claims.
fn configure(root: &Path, bigram: &TempDir, gru: &TempDir) -> String {
    let (llama, fresh) = (fixture("llama/gqa"), root.join("fresh"));
    claimed_by_a_new_architecture(&fresh);
    // A change to the output layer, in a format that no installed plugin knows.
    let a: Vec<f32> = (0..64).map(|place| (place as f32).sin()).collect();
    let b: Vec<[f32; 1]> = (0..264).map(|place| [(place as f32 * 1.7).cos()]).collect();
    let adapter = json!({"pairs": [{"target": "lm_head", "scale": 0.5, "a": [a], "b": b}]});
    fs::write(root.join("tuned.file.json"), adapter.to_string()).unwrap();
    let model = |id: &str, source: &Path| format!("[[models]]\nid = \"{id}\"\nsource = \"{}\"\n", source.display());
    [
        model("base", &llama),
        format!("[models.adapters]\ntuned = \"{}\"\n", root.join("tuned.file.json").display()),
        model("qwen", &fixture("qwen2/tied")),
        model("bigram", bigram.path()),
        model("gru", gru.path()),
        model("fresh", &fresh),
    ]
    .concat()
}

fn ask(server: &Server, model: &str, extras: &Value) -> (u16, Value) {
    let body = json!({
        "model": model, "max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": "1 2 3"}],
        "pensieve": extras,
    });
    let reply = post(server.address, "/v1/messages", &body);
    (reply.status(), reply.json())
}

fn answer(server: &Server, model: &str, extras: &Value) -> String {
    let (status, message) = ask(server, model, extras);
    assert_eq!(status, 200, "{model}, {extras}: {message}\n{}", server.log());
    assert!(message["usage"]["output_tokens"].as_u64().unwrap() > 0, "{model}: {message}");
    message["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

/// Drops the plugins in, one by one, while the server answers, and sends requests to each.
fn served(libraries: &[PathBuf]) {
    let (root, bigram, gru) = (tempfile::tempdir().unwrap(), checkpoints::bigram(300, 512), checkpoints::gru(300, 512));
    let config = configure(root.path(), &bigram, &gru);
    let plugins = vec![plugin("pensieve-llama"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    let nothing = json!({});
    let base = answer(&server, "base", &nothing);
    for model in ["qwen", "bigram", "gru", "fresh", "base:tuned"] {
        let (status, message) = ask(&server, model, &nothing);
        assert!(status >= 400, "{model} needs no plugin: {message}");
    }
    for library in libraries {
        let (partial, name) = (server.home().path().join("partial"), library.file_name().unwrap());
        fs::copy(library, &partial).unwrap();
        fs::rename(partial, server.plugins().join(name)).unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    let ready = || {
        let list = server.get("/v1/plugins").json();
        let entries = list["data"].as_array().unwrap().iter();
        entries.filter(|entry| entry["state"] == "ready").count() == libraries.len() + 2
    };
    while !ready() {
        assert!(Instant::now() < deadline, "{:#}", server.get("/v1/plugins").json());
        sleep(Duration::from_millis(50));
    }
    for model in ["qwen", "bigram", "gru"] {
        assert_eq!(answer(&server, model, &nothing), answer(&server, model, &nothing), "{model}");
    }
    goes_on(&server);
    assert_eq!(answer(&server, "fresh", &nothing), base, "the same weights by two plugins");
    assert_ne!(answer(&server, "base:tuned", &nothing), base, "the adapter changes nothing");
    for sampler in ["my_sampler", "sampler"] {
        let drawn = |n: f32| {
            let chain = json!([{"sampler": sampler, "n": n}, "seeded"]);
            answer(&server, "base", &json!({"samplers": chain, "seed": 7}))
        };
        assert_eq!(drawn(0.0), base, "{sampler} leaves the best alone");
        assert_ne!(drawn(100.0), base, "{sampler} leaves everything");
        let wrong = json!({"samplers": [{"sampler": sampler, "n": -1}]});
        let (status, message) = ask(&server, "base", &wrong);
        assert!(status == 400 && message.to_string().contains("'n' = -1"), "{status} {message}");
    }
    assert_eq!(answer(&server, "base", &nothing), base);
}

/// The C engine keeps sequences itself, and the host repeatedly makes it continue from a copy.
fn goes_on(server: &Server) {
    let complete = |prompt: &str| {
        let body = json!({"model": "gru", "max_tokens": 5, "temperature": 0, "prompt": prompt});
        post(server.address, "/v1/completions", &body).json()
    };
    let prompt = (1..=120).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    let first = complete(&prompt);
    let next = format!("{prompt}{} 7 8", first["choices"][0]["text"].as_str().unwrap());
    for _ in 0..2 {
        let again = complete(&next);
        let reused = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(reused.is_some_and(|tokens| tokens >= 115), "{again}");
    }
}
