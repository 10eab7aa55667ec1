//! Links in untrusted checkpoints and adapters: if they lead out, nothing is opened and nothing is shown. Run as root,
//! which could read everything.

use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post},
        server::{Options, Server},
    },
    scripted, starter,
};

const SECRET: &str = "quokka";

/// A folder with checkpoints of the scripted model, and a private file.
struct Shelf(tempfile::TempDir);

impl Shelf {
    fn new() -> Self {
        let shelf = Self(tempfile::tempdir().unwrap());
        fs::create_dir(shelf.path("private")).unwrap();
        let secret = shelf.path("private/secret");
        fs::write(&secret, format!("{{# {SECRET} #}}{{{{ messages[0].content }}}}")).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        shelf
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A checkpoint that says hello, modified by `change`.
    fn checkpoint(&self, id: &str, change: impl FnOnce(&Path)) -> (String, PathBuf) {
        let folder = self.path(id);
        scripted::checkpoint(&folder, &[("", "Hello.")]);
        change(&folder);
        (id.to_owned(), folder)
    }
}

fn start(models: Vec<(String, PathBuf)>) -> Server {
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-llama"), plugin("pensieve-samplers")];
    Options { plugins, models, ..Options::default() }.start()
}

fn ask(server: &Server, id: &str) -> Reply {
    let body = json!({"model": id, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]});
    post(server.address, "/v1/chat/completions", &body)
}

fn show(server: &Server, id: &str) -> Reply {
    post(server.address, "/api/show", &json!({ "model": id }))
}

fn replace(path: &Path, target: impl AsRef<Path>) {
    let _ = fs::remove_file(path);
    symlink(target, path).unwrap();
}

#[test]
fn a_checkpoint_whose_links_lead_out_is_refused_before_anything_is_opened() {
    let shelf = Shelf::new();
    let secret = shelf.path("private/secret");
    let models = vec![
        shelf.checkpoint("root", |folder| replace(&folder.join("docs"), "/")),
        shelf.checkpoint("template", |folder| replace(&folder.join("chat_template.jinja"), &secret)),
        shelf.checkpoint("dots", |folder| replace(&folder.join("generation_config.json"), "../private/secret")),
        shelf.checkpoint("chain", |folder| {
            replace(&folder.join("sub"), "../private");
            replace(&folder.join("chat_template.jinja"), "sub/secret");
        }),
        shelf.checkpoint("twice", |folder| {
            replace(&folder.join("one"), &secret);
            replace(&folder.join("chat_template.jinja"), "one");
        }),
        shelf.checkpoint("folder", |folder| replace(&folder.join("tokenizer_config.json"), "..")),
        shelf.checkpoint("device", |folder| replace(&folder.join("generation_config.json"), "/dev/zero")),
        shelf.checkpoint("named\u{1b}]0;x\u{7}", |folder| replace(&folder.join("a\u{1b}]0;x\u{7}\u{202e}"), &secret)),
    ];
    let pipe = shelf.checkpoint("pipe", |folder| {
        assert!(Command::new("mkfifo").arg(folder.join("tokenizer.model")).status().unwrap().success());
    });
    let ids: Vec<String> =
        models.iter().map(|(id, _)| id.replace(|letter: char| !letter.is_alphanumeric(), "")).collect();
    let good = shelf.checkpoint("good", |_| ());
    let models = ids.iter().cloned().zip(models.into_iter().map(|(_, path)| path)).chain([pipe, good]).collect();
    let server = start(models);
    for id in ids.iter().map(String::as_str).chain(["pipe"]) {
        for reply in [ask(&server, id), show(&server, id)] {
            let text = reply.text();
            assert!(reply.status() >= 400 && !text.contains(SECRET), "{id}: {reply:?}");
            let what = if id == "pipe" { "not a regular file" } else { "is a link that leads to '" };
            assert!(text.contains(what) && text.contains("put the file itself there"), "{id}: {reply:?}");
        }
    }
    assert!(show(&server, "named0x").text().contains("a\\\\u{1b}]0;x\\\\u{7}\\\\u{202e}"));
    let loads =
        server.metrics().iter().filter(|(name, _)| name.contains("loads_total")).map(|(_, loads)| *loads).sum::<f64>();
    assert_eq!(loads, 0.0);
    let log = server.stop();
    assert!(!log.contains(SECRET) && !log.contains('\u{1b}') && !log.contains('\u{202e}'), "{log}");
}

#[test]
fn links_within_a_folder_and_a_snapshot_of_the_hub_and_a_file_that_is_named_are_followed() {
    let shelf = Shelf::new();
    let snapshot = shelf.path("hub/models--o--r/snapshots/0123");
    scripted::checkpoint(&snapshot, &[("", "Hello.")]);
    fs::create_dir(shelf.path("hub/models--o--r/blobs")).unwrap();
    for (name, blob) in [("config.json", "aa"), ("tokenizer.json", "bb"), ("chat_template.jinja", "cc")] {
        fs::rename(snapshot.join(name), shelf.path("hub/models--o--r/blobs").join(blob)).unwrap();
        symlink(Path::new("../../blobs").join(blob), snapshot.join(name)).unwrap();
    }
    let inside = shelf.checkpoint("inside", |folder| {
        fs::rename(folder.join("chat_template.jinja"), folder.join("template")).unwrap();
        replace(&folder.join("chat_template.jinja"), "template");
        replace(&folder.join("nothing"), "nowhere");
    });
    symlink(&inside.1, shelf.path("linked")).unwrap();
    let starter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/starter/pensieve-starter.gguf");
    for folder in ["named", "beside"] {
        fs::create_dir(shelf.path(folder)).unwrap();
        symlink(&starter, shelf.path(folder).join("m.gguf")).unwrap();
    }
    replace(&shelf.path("beside/tokenizer.json"), shelf.path("private/secret"));
    let server = start(vec![
        ("snapshot".into(), snapshot),
        inside,
        ("linked".into(), shelf.path("linked")),
        ("named".into(), shelf.path("named/m.gguf")),
        ("beside".into(), shelf.path("beside/m.gguf")),
    ]);
    for id in ["snapshot", "inside", "linked", "named"] {
        let reply = ask(&server, id);
        assert_eq!(reply.status(), 200, "{id}: {reply:?}");
        assert!(show(&server, id).json()["template"].as_str().is_some_and(|text| !text.is_empty()), "{id}");
    }
    // A tokenizer beside a file is an untrusted link, too.
    let refused = ask(&server, "beside");
    assert!(
        refused.status() >= 400 && refused.text().contains("tokenizer.json' is a link that leads to"),
        "{refused:?}"
    );
}

#[test]
fn a_link_that_comes_later_is_refused_with_what_was_known_of_the_checkpoint() {
    let shelf = Shelf::new();
    let model = shelf.checkpoint("later", |_| ());
    let folder = model.1.clone();
    let server = start(vec![model]);
    assert_eq!(show(&server, "later").status(), 200);
    replace(&folder.join("docs"), "/");
    // For two seconds the card is not checked again; it shows nothing new.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let reply = ask(&server, "later");
    assert!(reply.status() >= 400 && reply.text().contains("docs' is a link that leads to '/'"), "{reply:?}");
}

#[test]
fn adapters_are_held_to_the_same_rule() {
    let shelf = Shelf::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/starter/adapters/pirate");
    for name in ["good", "bad"] {
        fs::create_dir(shelf.path(name)).unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(fixture.join(file), shelf.path(name).join(file)).unwrap();
        }
    }
    replace(&shelf.path("bad/notes"), "/");
    let plugins = starter::PLUGINS.iter().map(|package| plugin(package)).collect();
    let adapters = format!("good = {:?}\nbad = {:?}\n", shelf.path("good"), shelf.path("bad"));
    let config = format!("[[models]]\nid = \"m\"\nsource = \"starter\"\n[models.adapters]\n{adapters}");
    let server = Options { plugins, config, ..Options::default() }.start();
    let ask = |name: &str| -> Reply {
        let body: Value = json!({"model": format!("m:{name}"), "prompt": "x", "max_tokens": 2});
        post(server.address, "/v1/completions", &body)
    };
    assert_eq!(ask("good").status(), 200, "{}", server.log());
    let refused = ask("bad");
    assert!(refused.status() >= 400 && refused.text().contains("notes' is a link that leads to '/'"), "{refused:?}");
    // An adapter that becomes part of the model follows the model's rules.
    let merged = format!("bad = {{ source = {:?}, merge = true }}\n", shelf.path("bad"));
    let config = format!("[[models]]\nid = \"m\"\nsource = \"starter\"\n[models.adapters]\n{merged}");
    let plugins = starter::PLUGINS.iter().map(|package| plugin(package)).collect();
    let (status, log) = Options { plugins, config, ..Options::default() }.fail();
    assert!(!status.success() && log.contains("notes' is a link that leads to '/'"), "{log}");
}
