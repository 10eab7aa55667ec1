//! Every command that the README, `docs/` and the examples' pages name is run by a test: by this one, beside a server of the
//! starter, or by the test that its row names. A command without a row fails, and so does a row without a command.
//!
//! Who writes a command into a page adds its line to `COMMANDS`, as the failure shows it.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use crate::{
    artifacts::{outside_plugin, program},
    cli::{Desk, said},
    hub::Hub,
    starter,
};

/// How a command is run.
enum Way {
    /// As it stands. It ends well and prints these words.
    Prints(&'static [&'static str]),
    /// In this form, as it names what only its reader has.
    As(&'static str, &'static [&'static str]),
    /// As it stands, and it serves until the next one that does; what comes after asks it.
    Serves,
    /// A test of this name does what it says.
    Test(&'static str),
    /// By hand, for this reason.
    ByHand(&'static str),
    /// It is no command: the program says it.
    Said,
}
use Way::{As, ByHand, Prints, Said, Serves, Test};

/// Every command, in the order in which they are run.
const COMMANDS: &[(&str, Way)] = &[
    // README.md
    ("cargo build --release && ./target/release/pensieve serve", Serves),
    (
        "curl http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -d '{\"model\": \"pensieve-starter\", \
         \"max_tokens\": 100, \"messages\": [{\"role\": \"user\", \"content\": \"list all files\"}]}'",
        Prints(&[r#"{\"cmd\": \"ls -la\"}"#]),
    ),
    (
        "export ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=pensieve-local-key",
        Test("claude_code_runs_what_the_starter_is_asked_for"),
    ),
    (
        "claude -p \"Use the Bash tool to run: echo hello\" --allowedTools Bash",
        Test("claude_code_runs_what_the_starter_is_asked_for"),
    ),
    ("./target/release/pensieve run \"how do I add a plugin?\"", Prints(&["~/.pensieve/plugins"])),
    ("./target/release/pensieve serve --model my-model=/path/to/model.gguf", Serves),
    ("pensieve pull hf:OWNER/REPO", Prints(&["model-Q8_0.gguf"])),
    ("./target/release/pensieve serve --model my-model=hf:OWNER/REPO", Serves),
    ("pensieve bench", As("pensieve bench --prompt 64 --generate 8 --concurrency 1 --rounds 1", &["pensieve-starter"])),
    ("pensieve doctor", Prints(&["ok  devices        cpu", "ok  device         'auto' takes "])),
    ("pensieve plugins check FILE", As("pensieve plugins check home/plugins/libpensieve_llama.*", &["llama"])),
    ("cargo test --workspace", Test("every_command_has_its_row")),
    (
        "cargo test --release -p pensieve-samplers --test stages -- --ignored --nocapture",
        Test("prints_milliseconds_on_a_vocabulary_of_128k"),
    ),
    // docs/
    ("pensieve --help", Prints(&["serve", "doctor"])),
    ("pensieve VERB --help", As("pensieve serve --help", &["--listen"])),
    ("pensieve man", Prints(&[".TH pensieve 1"])),
    ("pensieve man VERB", As("pensieve man serve", &[".TH"])),
    ("pensieve completions SHELL", As("pensieve completions zsh", &["#compdef pensieve"])),
    ("pensieve is listening on http://ADDRESS", Said),
    ("pensieve serve --in-process", Serves),
    ("pensieve serve", Serves),
    // examples/clients
    ("sh examples/clients/curl.sh", Prints(&["ls -la", "get_weather", "Lisbon", "data: [DONE]"])),
    ("pip install anthropic openai", Test("the_examples_in_python_run")),
    ("python examples/clients/messages.py", Test("the_examples_in_python_run")),
    ("python examples/clients/chat.py", Test("the_examples_in_python_run")),
    ("npm install @anthropic-ai/sdk openai", Test("the_examples_in_javascript_run")),
    ("node examples/clients/messages.mjs", Test("the_examples_in_javascript_run")),
    ("node examples/clients/chat.mjs", Test("the_examples_in_javascript_run")),
    ("claude --settings examples/clients/claude-code.json", Test("claude_code_runs_what_the_starter_is_asked_for")),
    // examples/starter
    ("pip install torch numpy safetensors tokenizers gguf transformers peft", ByHand(TRAINING)),
    ("python tokenizer.py", ByHand(TRAINING)),
    ("python train.py --seconds 1200 --out build/model.pt", ByHand(TRAINING)),
    ("python checkpoint.py --out build/model.pt", ByHand(TRAINING)),
    (
        "python train.py --resume build/model.pt --from-progress 0.5 --seconds 420 --peak 1.1e-3 --out build/model.pt",
        ByHand(TRAINING),
    ),
    ("python export.py build/model.pt", ByHand(TRAINING)),
    ("python style.py build/model.pt", ByHand(TRAINING)),
    ("python evaluate.py build/hf", ByHand(TRAINING)),
    ("python evaluate.py --check", As("python3 examples/starter/evaluate.py --check 300", &["0 of "])),
    (
        "python evaluate.py --server http://127.0.0.1:8000 --model pensieve-starter",
        As(
            "python3 examples/starter/evaluate.py --server http://127.0.0.1:8000 --model pensieve-starter --only talk",
            &["talk and Pensieve"],
        ),
    ),
    // examples/qwen2-plugin
    ("cargo test", Test("obeys_the_laws")),
    ("cargo build --release", Test("greedy_generation_is_that_of_transformers")),
    ("mkdir -p ~/.pensieve/plugins", Prints(&[])),
    ("cp target/release/libqwen2_plugin.* ~/.pensieve/plugins/", Prints(&[])),
    ("pensieve serve --model qwen=/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", Serves),
    (
        "curl -s http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -H 'anthropic-version: 2023-06-01' \
         -H 'x-api-key: pensieve-local-key' -d '{\"model\": \"qwen\", \"max_tokens\": 128, \"messages\": [{\"role\": \"user\", \
         \"content\": \"Hello\"}]}'",
        Test("greedy_generation_is_that_of_transformers"),
    ),
];

const TRAINING: &str = "it takes a GPU for half an hour, or transformers";

/// What a line of a shell begins with, where it is one.
const PROGRAMS: [&str; 21] = [
    "cargo", "pensieve", "curl", "export", "claude", "cp", "mv", "mkdir", "rm", "cd", "sh", "python", "python3", "pip",
    "npm", "node", "git", "echo", "hf", "unshare", "torchrun",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The README, what lies in `docs`, and the examples' pages.
fn pages() -> Vec<PathBuf> {
    let below = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let docs = below("docs").filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let examples = below("examples").map(|folder| folder.join("README.md")).filter(|page| page.is_file());
    [root().join("README.md")].into_iter().chain(docs).chain(examples).collect()
}

fn is_command(line: &str) -> bool {
    let is_setting = |word: &&str| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
    };
    let mut words = line.split_whitespace().skip_while(is_setting);
    let Some(program) = words.next() else { return false };
    let name = program.strip_prefix("./target/release/").unwrap_or(program);
    PROGRAMS.contains(&name) && (words.next().is_some() || name == "claude")
}

/// The commands of a page: lines of blocks of code, with those that go on joined, and the program's own in the text.
fn commands(page: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), String::new());
    let (mut fenced, mut indented, mut blank) = (false, false, true);
    for line in page.lines() {
        let text = line.split_once("  #").map_or(line, |(code, _)| code).trim();
        if text.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        indented = line.starts_with("    ") && (indented || blank) || indented && line.trim().is_empty();
        blank = line.trim().is_empty();
        if !fenced && !indented {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(
                spans
                    .filter(|span| {
                        is_command(span) && ["pensieve", "cargo", "curl"].iter().any(|own| span.starts_with(own))
                    })
                    .map(str::to_owned),
            );
            continue;
        }
        if !open.is_empty() {
            open.push(' ');
        }
        open.push_str(text);
        if let Some(head) = open.strip_suffix('\\') {
            open = head.trim_end().to_owned();
            continue;
        }
        // An open quote goes on as well.
        if open.matches('\'').count() % 2 == 1 && is_command(&open) {
            continue;
        }
        let whole = std::mem::take(&mut open);
        if is_command(&whole) {
            found.push(whole);
        }
    }
    found
}

#[test]
fn every_command_has_its_row() {
    let mut documented = BTreeSet::new();
    for page in pages() {
        let found = commands(&fs::read_to_string(&page).unwrap());
        for command in &found {
            let known = COMMANDS.iter().any(|(known, _)| known == command);
            assert!(
                known,
                "{} has a command that no test runs; give it a row in {}:\n{command}",
                page.display(),
                file!()
            );
        }
        documented.extend(found);
    }
    let source = sources();
    for (command, way) in COMMANDS {
        assert!(documented.contains(*command), "no page has this command any more: {command}");
        if let Test(name) = way {
            assert!(source.contains(&format!("fn {name}()")), "there is no test '{name}', which is to run {command}");
        }
    }
}

/// The text of all tests.
fn sources() -> String {
    let (mut text, mut open) = (String::new(), vec![root().join("tests/src"), root().join("plugins")]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

/// A server that a page starts.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command as a shell gets it, in a folder that looks like this repository with a release built.
fn shell(desk: &Desk, line: &str, server: Option<&Serving>) -> Command {
    let mut line = line.strip_prefix("cargo build --release && ").unwrap_or(line).to_owned();
    line = line.replace("/path/to/model.gguf", &desk.path("home/models/pensieve-starter.gguf").display().to_string());
    line = line.replace("hf:OWNER/REPO", "hf:owner/repo");
    let qwen = root().join("tests/fixtures/qwen2/tied").display().to_string();
    line = line.replace("/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", &qwen);
    if let Some(server) = server {
        line = line.replace("http://127.0.0.1:8000", &server.address);
    }
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec env {line}")]);
    desk.prepare(&mut command);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [desk.path("target/release")].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(paths).unwrap()).env("PENSIEVE_LISTEN", "127.0.0.1:0");
    command.env_remove("PENSIEVE_HOME");
    command.envs(server.map(|server| ("PENSIEVE_URL", &server.address)));
    command
}

fn serve(desk: &Desk, line: &str) -> Serving {
    let mut command = shell(desk, line, None);
    let mut child = command.stderr(fs::File::create(desk.path("log")).unwrap()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim_end().strip_prefix("pensieve is listening on ");
    let Some(address) = address.map(str::to_owned) else {
        let status = child.wait();
        panic!("{line}: {status:?}: {said}{}", fs::read_to_string(desk.path("log")).unwrap());
    };
    Serving { child, address }
}

#[test]
fn commands_do_what_the_pages_say() {
    let model = fs::read(root().join("examples/starter/pensieve-starter.gguf")).unwrap();
    let hub = Hub::serve(&[("model-Q8_0.gguf", model)]);
    let desk = Desk::with_hub(hub.endpoint());
    desk.install(&starter::PLUGINS);
    fs::create_dir_all(desk.path("target/release")).unwrap();
    let own = desk.path("target/release/pensieve");
    fs::hard_link(program(), &own).or_else(|_| fs::copy(program(), &own).map(drop)).unwrap();
    let qwen = outside_plugin("qwen2-plugin", "qwen2-plugin");
    fs::copy(&qwen, desk.path("target/release").join(qwen.file_name().unwrap())).unwrap();
    symlink(root().join("examples"), desk.path("examples")).unwrap();
    // Its home is the usual one.
    symlink("home", desk.path(".pensieve")).unwrap();
    let mut server: Option<Serving> = None;
    for (command, way) in COMMANDS {
        let (line, words) = match way {
            Prints(words) => (*command, *words),
            As(line, words) => (*line, *words),
            Serves => {
                drop(server.take());
                server = Some(serve(&desk, command));
                continue;
            }
            Test(_) | Said => continue,
            ByHand(why) => {
                println!("not run: {command} ({why})");
                continue;
            }
        };
        let said = said(shell(&desk, line, server.as_ref()).output().unwrap());
        assert_eq!(said.code, Some(0), "{command}: {said:?}");
        for words in words {
            assert!(said.stdout.contains(words), "{command} does not print {words:?}: {said:?}");
        }
    }
}
