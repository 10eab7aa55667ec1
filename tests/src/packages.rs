//! A plugin's way from its author to a running server, by the commands of `docs/publishing.md`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    artifacts::{library_name, plugin, program},
    checkpoints,
    http::{
        client::{post, soon},
        server::{self, Options, Server},
    },
    reference::fixture,
};

/// An author, an index and a user in one folder; the user's home is below it.
struct Desk {
    root: TempDir,
    home: Arc<TempDir>,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { root: tempfile::tempdir().unwrap(), home: server::home() };
        let library = desk.path("target/release").join(library_name("my_sampler"));
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::copy(plugin("bigram"), &library).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn pensieve(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(self.root.path());
        command.env("PENSIEVE_HOME", self.home.path()).env_remove("PENSIEVE_CONFIG").output().unwrap()
    }

    /// Runs a command that succeeds; returns what it printed, and what it said on standard error.
    fn works(&self, command: &str) -> (String, String) {
        let arguments: Vec<&str> = command.split(' ').collect();
        let output = self.pensieve(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    }

    /// Runs a command that ends with this code and these words.
    fn fails(&self, command: &str, code: i32, words: &str) {
        let arguments: Vec<&str> = command.split(' ').collect();
        let output = self.pensieve(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}: {said}");
        assert!(said.contains(words), "{command}: '{words}' is not in: {said}");
    }

    /// Packs and publishes the plugin.
    fn publish(&self) {
        let library = format!("target/release/{}", library_name("my_sampler"));
        self.works("plugins key ada.key");
        let pack = format!("plugins pack {library} --publisher ada --key ada.key --license MIT");
        self.works(&pack);
        self.works("plugins key index.key");
        self.works("plugins publish --folder ./index --key index.key --new-index team");
        let publish = format!("plugins publish {PACKAGE} --folder ./index --key index.key");
        self.fails(&publish, 4, "no certificate for bigram");
        let checkpoint = checkpoints::bigram(300, 512);
        let model = checkpoint.path().display();
        self.works(&format!("plugins check {library} --model {model} --certify bigram.json --key ada.key"));
        self.fails(&format!("{pack} --certificate index.key"), 3, "index.key.minisig");
        self.works(&format!("{pack} --certificate bigram.json"));
        self.fails(&publish, 4, "no certificate with a reference for bigram");
        // No other program computes this plugin's family.
        let publish = format!("{publish} --uncertified");
        let (_, dry) = self.works(&format!("{publish} --dry-run"));
        assert!(dry.contains("could be published with serial 2"), "{dry}");
        self.works(&publish);
    }
}

/// The bigram plugin's package: its version is the workspace's.
const PACKAGE: &str = concat!("bigram-", env!("CARGO_PKG_VERSION"), ".pensieve");

/// The state of the library in the user's folder, once it is this one.
fn state(server: &Server, wanted: &str) -> Value {
    let find = || {
        let list = server.get("/v1/plugins").json();
        let of = |plugin: &&Value| plugin["file"].as_str().is_some_and(|file| file.contains("libmy_sampler"));
        list["data"].as_array().unwrap().iter().find(of).cloned().unwrap_or_default()
    };
    for _ in 0..1200 {
        let state = find();
        if state["state"] == wanted {
            return state;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it is not {wanted}: {}", find());
}

fn ask(server: &Server) -> Value {
    let body = json!({"model": "m", "prompt": "1 2 3", "max_tokens": 2});
    soon(|| post(server.address, "/v1/completions", &body)).json()
}

#[test]
fn a_package_goes_from_its_author_to_a_running_server_and_is_revoked() {
    let desk = Desk::new();
    desk.publish();
    let folder = checkpoints::bigram(300, 512);
    let models = vec![("m".to_owned(), folder.path().to_owned())];
    let config = format!("[plugins.indexes]\nteam = \"{}\"\n", desk.path("index").display());
    let plugins = vec![plugin("pensieve-samplers")];
    let server = Options { plugins, models, config, ..Options::default() }.start_in(&desk.home);
    assert!(ask(&server)["error"]["message"].as_str().unwrap().contains("no plugin claims"), "there is no plugin yet");

    // The search shows the index to this machine, whose hint the server then has.
    let (found, said) = desk.works("plugins search BigramForCausalLM");
    assert!(found.starts_with("bigram ") && said.contains("first use of the index"), "{found}{said}");
    assert!(found.contains("certified: ") && found.contains(" on cpu, "), "{found}");
    let found: Value = serde_json::from_str(&desk.works("plugins search bigram --json").0).unwrap();
    let manifest = &found[0]["manifest"];
    assert_eq!(manifest["contract"], "1.0", "{manifest}");
    assert!(manifest["extensions"].as_array().unwrap().contains(&json!("draft/sampler-parameters/1")), "{manifest}");
    let hint = ask(&server)["error"]["message"].to_string();
    assert!(hint.contains("the index 'team' has one that does: pensieve plugins add bigram"), "{hint}");
    let (added, said) = desk.works("plugins add bigram");
    assert!(
        added.starts_with("added bigram") && added.contains("by 'ada', MIT, cpu") && said.is_empty(),
        "{added}{said}"
    );
    let ready = state(&server, "ready");
    let answer = ask(&server);
    assert!(answer["choices"][0]["text"].is_string(), "it is served without a restart: {answer}");
    assert!(desk.works("plugins add bigram").0.contains("is installed already"));
    let (list, _) = desk.works("plugins list");
    assert!(list.contains("by 'ada'\n  certified: ") && list.contains(" on cpu, "), "{list}");
    assert!(desk.works("plugins outdated").1.contains("are the newest"));

    // A library that is changed behind the lock's back is not mapped.
    let library = desk.home.path().join("plugins").join(library_name("my_sampler"));
    let mut bytes = fs::read(&library).unwrap();
    bytes.push(0);
    fs::write(&library, &bytes).unwrap();
    let refused = state(&server, "rejected");
    assert!(refused.to_string().contains("not-locked"), "{refused}");
    desk.works("plugins add");
    state(&server, "ready");

    // Revoked, it goes from the running server as soon as the user hears of it, and doctor and log say why.
    let sha256 = ready["sha256"].as_str().unwrap();
    desk.works(&format!("plugins publish --folder ./index --key index.key --revoke {sha256}=wrong-results"));
    desk.works("plugins outdated");
    let revoked = state(&server, "rejected");
    assert!(revoked.to_string().contains("was revoked: wrong-results"), "{revoked}");
    let said = desk.pensieve(&["doctor"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("was revoked: wrong-results"), "{said}");
    let log = server.log();
    assert!(log.contains("was revoked: wrong-results"), "{log}");
    let (found, _) = desk.works("plugins search bigram");
    assert!(found.contains("cannot be added: ") && found.contains("is revoked: wrong-results"), "{found}");
    // Its index takes that back.
    desk.works(&format!("plugins publish --folder ./index --key index.key --reinstate {sha256}"));
    desk.works("plugins outdated");
    state(&server, "ready");
    desk.works(&format!("plugins publish --folder ./index --key index.key --revoke {sha256}=wrong"));
    desk.works("plugins remove bigram");
    desk.fails("plugins add bigram", 4, "is revoked: wrong");
    assert!(!library.exists());
}

#[test]
fn files_and_urls_are_added_and_each_refusal_has_its_exit_code() {
    let desk = Desk::new();
    desk.publish();
    let (_, said) = desk.works(&format!("plugins add ./{PACKAGE}"));
    assert!(said.contains("first package of 'ada'"), "{said}");
    let (json, _) = desk.works(&format!("plugins add ./{PACKAGE} --json"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["name"], &json["is_new"]), (&json!("bigram"), &json!(false)));
    desk.works("plugins remove bigram");

    let package = fs::read(desk.path(PACKAGE)).unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(desk.path(name), bytes).unwrap();
    put("cut.pensieve", &package[..package.len() / 2]);
    desk.fails("plugins add ./cut.pensieve", 7, "not a whole package");
    desk.fails("plugins add ./nowhere.pensieve", 3, "nowhere.pensieve");
    desk.fails("plugins add bigram@9.0.0 --index ./index", 3, "no index has 'bigram' 9.0.0");
    desk.fails("plugins add http://example.org/a.pensieve", 2, "not an https:// URL");
    desk.fails("plugins add https://127.0.0.1:1/a.pensieve", 5, "no answer from");
    desk.fails(&format!("plugins add ./{PACKAGE} --variant cuda"), 9, "has no library for");
    desk.fails("plugins add Bigram", 2, "not 1 to 64 of a-z");
    desk.fails("plugins key ada.key", 1, "ada.key");
    desk.fails("plugins update bigram --index ./index", 3, "was not added from an index");
    let own = desk.home.path().join("plugins").join(library_name("my_sampler"));
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "the user's own").unwrap();
    desk.fails(&format!("plugins add ./{PACKAGE}"), 8, "is there already");
    fs::remove_file(&own).unwrap();

    // Another key in the same publisher's name.
    desk.works("plugins key mallory.key");
    let library = format!("target/release/{}", library_name("my_sampler"));
    let command = format!("plugins pack {library} --publisher ada --key mallory.key --license MIT --out ./index/..");
    desk.works(&command);
    desk.fails(&format!("plugins add ./{PACKAGE}"), 4, "the key of 'ada' is");
    desk.fails("plugins pack Cargo.toml --publisher ada --key ada.key --license MIT", 3, "Cargo.toml");
    assert!(!own.exists() && is_empty(&desk.home.path().join("plugins")), "nothing is left behind");
}

/// The whole way of a family whose certificate has a reference.
#[test]
fn a_family_with_a_reference_is_published_with_its_certificate() {
    let desk = Desk::new();
    let (library, model) = (plugin("pensieve-llama"), fixture("llama/gqa"));
    let reference = model.join("reference.safetensors");
    let checkpoint = desk.path("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    for entry in fs::read_dir(&model).unwrap().map(Result::unwrap) {
        if entry.file_name() != "reference.safetensors" {
            fs::copy(entry.path(), checkpoint.join(entry.file_name())).unwrap();
        }
    }
    for key in ["ada.key", "index.key"] {
        desk.works(&format!("plugins key {key}"));
    }
    desk.works("plugins publish --folder ./index --key index.key --new-index team");
    let (library, reference) = (library.display(), reference.display());
    let check = format!("plugins check {library} --model ./checkpoint --reference {reference} --key ada.key --certify");
    desk.works(&format!("{check} llama.json"));
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(desk.path(name)).unwrap()).unwrap() };
    let certificate = read("llama.json");
    let difference = certificate["difference"].as_f64().unwrap_or_else(|| panic!("no difference: {certificate}"));
    assert!((0.0..1e-3).contains(&difference), "{certificate}");
    assert!(certificate["tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{certificate}");
    assert_eq!(certificate["checkpoint"].as_str().map(str::len), Some(64), "{certificate}");
    let pack = format!("plugins pack {library} --publisher ada --key ada.key --license MIT --certificate llama.json");
    let (package, _) = desk.works(&pack);
    desk.works(&format!("plugins publish {} --folder ./index --key index.key", package.trim()));
    let (found, _) = desk.works("plugins search llama --index ./index");
    assert!(found.contains("logits within 0.01 % of the reference's range, "), "{found}");
    assert!(found.contains(" tokens/s"), "{found}");

    // Another byte of a tensor is another checkpoint.
    let weights = checkpoint.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    desk.works(&format!("plugins check {library} --model ./checkpoint --certify other.json --key ada.key"));
    assert_ne!(read("other.json")["checkpoint"], certificate["checkpoint"]);
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}
