//! Every kind of failure has an exit code and a line that says what to do.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use super::{Desk, Said, files, interrupt, said};
use crate::{
    checkpoints,
    hub::{Fault, Hub},
};

/// Checks that a run ended with this code and these words, and printed nothing to standard output.
fn check(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    for words in words {
        assert!(said.stderr.contains(words), "{said:?} does not say {words:?}");
    }
    assert_eq!(said.stdout, "", "{said:?}");
    // One line per mistake, and no more.
    assert!(said.stderr.lines().all(|line| line.starts_with("pensieve: ")), "{said:?}");
}

/// A server, and what it printed when it was ready.
struct Serving {
    child: Child,
    line: String,
}

impl Serving {
    fn start(desk: &Desk, arguments: &[&str]) -> Self {
        let mut command = desk.command(arguments);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { child, line: line.trim().to_owned() }
    }

    /// Interrupts it as a user would; returns its exit code.
    fn end(mut self) -> Option<i32> {
        interrupt(self.child.id());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_taken_port_is_8() {
    let desk = Desk::new();
    let model = checkpoints::bigram(300, 512);
    let model = format!("m={}", model.path().display());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = desk.run(&["serve", "--listen", &address, "--model", &model]);
    check(&said, 8, &[&address, "taken", "--listen"]);
}

#[test]
fn a_missing_checkpoint_is_3() {
    let desk = Desk::new();
    let said = desk.run(&["serve", "--listen", "127.0.0.1:0", "--model", "m=nowhere/model.gguf"]);
    check(&said, 3, &["there is no checkpoint at 'nowhere/model.gguf'", "name a .gguf file"]);
    check(&desk.run(&["bench", "--model", "nowhere.gguf"]), 3, &["'nowhere.gguf'"]);
    let words = ["there is no adapter 'poet' at 'nowhere/poet'", "name a folder with adapter_config.json"];
    for verb in [&["serve", "--listen", "127.0.0.1:0"][..], &["run", "hello"]] {
        check(&desk.run(&[verb, &["--adapter", "poet=nowhere/poet"]].concat()), 3, &words);
    }
}

#[test]
fn no_plugin_for_an_architecture_is_9() {
    let desk = Desk::new();
    let model = checkpoints::bigram(300, 512);
    let model = model.path().display().to_string();
    let words = ["no plugin claims architecture 'BigramForCausalLM' (installed: none)", "drop one into plugins/"];
    check(&desk.run(&["bench", "--model", &model, "--prompt", "4", "--generate", "2"]), 9, &words);
    check(&desk.run(&["run", "--model", &model, "hello"]), 9, &words);
}

#[test]
fn no_space_for_the_starter_is_6() {
    let desk = Desk::new();
    desk.run(&["--version"]);
    for verb in ["serve", "run hello"] {
        let mut command = Command::new("sh");
        // A file size limit simulates a full disk: 512 blocks of 512 or 1024 bytes, depending on the shell.
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f 512; exec bin/pensieve {verb}")]);
        desk.prepare(&mut command);
        let said = said(command.env("PENSIEVE_LISTEN", "127.0.0.1:0").output().unwrap());
        check(&said, 6, &["the starter model: '", "pensieve-starter.gguf'"]);
        // Nothing is left of the attempt.
        assert!(files(&desk.path("home/models")).is_empty());
    }
}

#[test]
fn a_wrong_configuration_is_2_and_named_with_its_line() {
    let desk = Desk::new();
    fs::write(desk.path("pensieve.toml"), "[server]\nlisen = \"127.0.0.1:1\"\ndrain = 3\n").unwrap();
    let words = [
        "pensieve.toml: unknown key 'lisen' in [server], line 2; did you mean 'listen'?",
        "pensieve.toml: 'drain' in [server] is 3, line 3; it takes a duration",
    ];
    for verb in [&["serve"][..], &["run", "x"], &["models", "list"], &["bench"]] {
        check(&desk.run(verb), 2, &words);
    }
    check(&desk.run(&["serve", "--config", "other.toml"]), 2, &["'other.toml' cannot be read"]);
    let desk = Desk::new();
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/pensieve.toml"), "x = 1").unwrap();
    check(&desk.run(&["serve"]), 2, &["unknown key 'x', line 1"]);
}

#[test]
fn wrong_flags_and_variables_are_2() {
    let desk = Desk::new();
    check(&desk.run(&["serve", "--listen", "here"]), 2, &["--listen here: it has no port"]);
    check(
        &desk.run(&["serve", "--listen", "81234"]),
        2,
        &["--listen 81234: 81234 is not a port; ports go up to 65535"],
    );
    check(&desk.run(&["serve", "--device", "gpu"]), 2, &["--device gpu: a device is auto"]);
    check(&desk.run(&["run", ""]), 2, &["the question is empty"]);
    check(&desk.run(&["run", "--model", "hf:x", "hello"]), 2, &["'hf:x' is not a name on the hub"]);
    let mut command = desk.command(&["serve"]);
    let said = said(command.env("PENSIEVE_MEMORY", "lots").output().unwrap());
    check(&said, 2, &["the variable PENSIEVE_MEMORY 'lots' is wrong: it takes bytes"]);
    for arguments in [
        &["serve", "--model", "x"][..],
        &["bench", "--concurrency", "0"],
        &["pull", "x"],
        &["nonsense"],
        &["serve", "--listne", "x"],
        &["run", "--temperature", "-1", "hello"],
    ] {
        let said = desk.run(arguments);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.starts_with("error: "), "{said:?}");
    }
    assert!(desk.run(&["serve", "--listne", "x"]).stderr.contains("'--listen'"));
    let cold = desk.run(&["run", "--temperature", "-1", "hello"]).stderr;
    assert!(cold.contains("'-1' for '--temperature") && cold.contains("a number from 0 to 100"), "{cold}");
}

#[test]
fn an_address_for_everybody_without_a_key_is_2() {
    let desk = Desk::new();
    let model = checkpoints::bigram(300, 512);
    let model = format!("m={}", model.path().display());
    check(
        &desk.run(&["serve", "--listen", "0.0.0.0:0", "--model", &model]),
        2,
        &["0.0.0.0 can be reached from other machines", "server.key"],
    );
}

#[test]
fn serving_from_the_hub_pulls_first_and_then_needs_no_network() {
    let model = br#"{"architectures": ["BigramForCausalLM"], "vocab_size": 300, "max_position_embeddings": 512}"#;
    let hub = Hub::serve(&[("config.json", model.to_vec()), ("model.safetensors", b"x".to_vec())]);
    hub.fail("/resolve/", Fault::Cut(10));
    let mut desk = Desk::with_hub(hub.endpoint());
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--model", "m=hf:owner/repo"];
    let serving = Serving::start(&desk, &arguments);
    assert!(serving.line.starts_with("pensieve is listening on http://127.0.0.1:"), "{}", serving.line);
    assert_eq!(serving.end(), Some(0));
    assert!(!files(&desk.path(".cache/huggingface/hub")).is_empty());
    let asked = hub.asked("").len();
    desk.endpoint = None;
    let serving = Serving::start(&desk, &arguments);
    assert!(serving.line.starts_with("pensieve is listening on "), "{}", serving.line);
    assert_eq!(serving.end(), Some(0));
    assert_eq!(hub.asked("").len(), asked);
    let absent = ["serve", "--listen", "127.0.0.1:0", "--model", "m=hf:owner/repo/other.gguf"];
    check(&desk.run(&absent), 5, &["no answer from http://127.0.0.1:9"]);
}

#[test]
fn the_table_of_codes_is_documented() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md")).unwrap();
    let source = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../host/src/cli/error.rs")).unwrap();
    let (_, codes) = source.split_once("pub(super) enum Exit {").unwrap();
    let (codes, _) = codes.split_once('}').unwrap();
    let codes: Vec<&str> =
        codes.lines().filter_map(|line| Some(line.trim().strip_suffix(',')?.split_once(" = ")?.1)).collect();
    assert_eq!(codes.len(), 9);
    for code in codes {
        assert!(page.contains(&format!("\n| {code} | ")), "docs/cli.md has no line for {code}");
    }
}

#[test]
fn warns_of_a_key_file_that_others_can_read() {
    let desk = Desk::new();
    let model = checkpoints::bigram(300, 512);
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nkey = \"secret\"\n[[models]]\nid = \"m\"\nsource = \"{}\"\n",
        model.path().display()
    );
    fs::write(desk.path("pensieve.toml"), text).unwrap();
    let mut child = desk.command(&["serve"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    interrupt(child.id());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("'pensieve.toml' holds a key, and other users may read it; run: chmod go-rwx 'pensieve.toml'"),
        "{stderr}"
    );
    assert!(!stderr.contains("secret"), "{stderr}");
}
