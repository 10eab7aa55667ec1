//! Every command in the README, in `docs/` and on the examples' pages is run by a test: by this one, beside a server of
//! the starter, or by the test that its row names. A command without a row fails, and so does a row without a command.
//!
//! If you add a command to a page, add its row to `commands` as the failure shows it.

mod commands;
mod site;
mod snippets;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use crate::{
    artifacts::{outside_plugin, place_program, plugin},
    cli::{Desk, said},
    hub::Hub,
    starter,
};
use commands::{COMMANDS, Way};

/// First words of shell commands.
const PROGRAMS: [&str; 22] = [
    "cargo", "pensieve", "curl", "export", "claude", "cp", "mv", "mkdir", "rm", "cd", "sh", "python", "python3", "pip",
    "npm", "node", "git", "echo", "hf", "gemini", "unshare", "torchrun",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The README, the pages in `docs`, and the examples' pages.
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

/// Extracts a page's commands: lines of code blocks, with continuation lines joined, and inline uses of the program.
pub fn commands(page: &str) -> Vec<String> {
    let (mut found, mut prose, mut open) = (Vec::new(), String::new(), String::new());
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
            prose.push_str(line);
            prose.push(if blank { '\n' } else { ' ' });
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
        // An open quote continues the command, too.
        if open.matches('\'').count() % 2 == 1 && is_command(&open) {
            continue;
        }
        let whole = std::mem::take(&mut open);
        if is_command(&whole) {
            found.push(whole);
        }
    }
    let own = ["pensieve ", "cargo ", "curl "];
    for paragraph in prose.lines() {
        let spans = paragraph.split('`').skip(1).step_by(2);
        let spans = spans.filter(|span| is_command(span) && own.iter().any(|own| span.starts_with(own)));
        found.extend(spans.map(str::to_owned));
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
                "{} has a command that no test runs; give it a row in tests/src/docs/commands.rs:\n{command}",
                page.display(),
            );
        }
        documented.extend(found);
    }
    let source = sources();
    for (command, way) in COMMANDS {
        assert!(documented.contains(*command), "no page has this command any more: {command}");
        if let Way::Test(name) = way {
            assert!(source.contains(&format!("fn {name}()")), "there is no test '{name}', which is to run {command}");
        }
    }
}

/// The source of all tests.
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

/// A server started from a page.
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

/// A command with this system's names of libraries.
pub fn of_this_system(line: &str) -> String {
    line.replace(".so", std::env::consts::DLL_SUFFIX)
}

/// A command as a shell runs it, in a folder that looks like this repository with a release build.
fn shell(desk: &Desk, line: &str, server: Option<&Serving>) -> Command {
    let mut line = of_this_system(line);
    line = line.replace("/path/to/model.gguf", &desk.path("home/models/pensieve-starter.gguf").display().to_string());
    let adapter = root().join("examples/starter/adapters/pirate").display().to_string();
    line = line.replace("/path/to/adapter", &adapter).replace("hf:OWNER/REPO", "hf:owner/repo");
    let qwen = root().join("tests/fixtures/qwen2/tied").display().to_string();
    line = line.replace("/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", &qwen);
    if let Some(server) = server {
        line = line.replace("http://127.0.0.1:8000", &server.address);
    }
    let mut command = Command::new("sh");
    command.args(["-c", &line]);
    desk.prepare(&mut command);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [desk.path("target/release")].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(paths).unwrap()).env("PENSIEVE_LISTEN", "127.0.0.1:0");
    command.env_remove("PENSIEVE_HOME");
    command.envs(server.map(|server| ("PENSIEVE_URL", &server.address)));
    command
}

fn serve(desk: &Desk, line: &str) -> Serving {
    // The prefix was done by the tests' build.
    let line = line.strip_prefix("cargo build --release && ").unwrap_or(line);
    let mut command = shell(desk, &format!("exec {line}"), None);
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
    place_program(&own);
    fs::create_dir_all(desk.path("target/debug")).unwrap();
    for (library, folder) in [(outside_plugin("qwen2-plugin"), "target/release"), (plugin("bigram"), "target/debug")] {
        fs::copy(&library, desk.path(folder).join(library.file_name().unwrap())).unwrap();
    }
    symlink(root().join("examples"), desk.path("examples")).unwrap();
    // Its home is in the default location.
    symlink("home", desk.path(".pensieve")).unwrap();
    let mut server: Option<Serving> = None;
    for (command, way) in COMMANDS {
        let (line, words) = match way {
            Way::Prints(words) => (*command, *words),
            Way::As(line, words) => (*line, *words),
            Way::Serves => {
                drop(server.take());
                server = Some(serve(&desk, command));
                continue;
            }
            Way::Test(_) | Way::Said => continue,
            Way::ByHand(why) => {
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
