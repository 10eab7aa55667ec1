//! The vendors' own SDKs, for Python and for npm, against the real program: each runs a table of calls
//! (`tests/clients`), and everything that an SDK's types or stream parser do not accept is a failure there. The
//! examples in `examples/clients` run here, too.
//!
//! The packages are installed once per target folder, in the versions that `tests/clients` pins. If they cannot be
//! installed (no interpreter, no network), the tests skip themselves with a line that says so;
//! `PENSIEVE_REQUIRE_CLIENTS=1` makes that a failure.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::server::{Options, Server},
    reference::fixture,
    rows, scripted, starter,
};

const REQUIREMENTS: &str = "requirements.txt";
/// Longer than a table takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The model's script for the tables: the first entry whose first text is in the last turn applies.
const SCRIPT: [(&str, &str); 11] = [
    ("<tool_response>\n21 degrees", "It is 21 degrees in Oslo."),
    ("Say hello", "Hello there, blåbær friend 🫐."),
    (
        "Call for the weather",
        concat!("<tool_call>\n", r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#, "\n</tool_call>"),
    ),
    (
        "Call for both",
        concat!(
            "<tool_call>\n",
            r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#,
            "\n</tool_call>\n<tool_call>\n",
            r#"{"name": "time", "arguments": {"city": "Bergen"}}"#,
            "\n</tool_call>",
        ),
    ),
    (
        "Patch the file",
        concat!(
            "<tool_call>\n",
            r#"{"name": "patch", "arguments": {"input": "say \"hi\"\n-bye\n"}}"#,
            "\n</tool_call>"
        ),
    ),
    (
        "Apply the change",
        concat!(
            "<tool_call>\n",
            r#"{"name": "apply_patch", "arguments": {"input": " Begin Patch\n*** Add File: a \"b\".txt\n+one\\two\n+\n*** End Patch\n"}}"#,
            "\n</tool_call>"
        ),
    ),
    (
        "Give a number",
        concat!("<tool_call>\n", r#"{"name": "number", "arguments": {"input": "7 or 8"}}"#, "\n</tool_call>"),
    ),
    ("Answer in JSON", r#"{"city": "Oslo", "degrees": 21}"#),
    ("Think first", "<think>\nLet me see.\n</think>\n\nForty-two."),
    ("Count", "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"),
    ("Once upon", " a time."),
];

#[test]
fn openais_python_sdk_runs_unchanged() {
    python("with_openai.py");
}

#[test]
fn the_responses_api_runs_through_openais_python_sdk() {
    python("with_responses.py");
}

#[test]
fn ollamas_python_client_runs_unchanged() {
    python("with_ollama.py");
}

#[test]
fn googles_python_sdk_runs_unchanged() {
    python("with_gemini.py");
}

#[test]
fn anthropics_python_sdk_runs_unchanged() {
    python("with_anthropic.py");
}

#[test]
fn embeddings_and_ranks_run_through_the_vendors_sdks_and_langchain() {
    match installed("embeddings", "embeddings.txt", install_python) {
        Ok(packages) => {
            let root = tempfile::tempdir().unwrap();
            let mut options = rows::options(root.path());
            options.plugins.push(plugin("pensieve-bert"));
            for (id, name) in [("encoder", "bert"), ("ranker", "bert_rank")] {
                options.models.push((id.into(), fixture(&format!("encoders/{name}"))));
            }
            table(&options.start(), &packages.join("bin/python"), "with_embeddings.py", &packages);
        }
        Err(why) => skip("with_embeddings.py", &why),
    }
}

#[test]
fn images_run_through_the_vendors_sdks() {
    match installed("python", REQUIREMENTS, install_python) {
        Ok(packages) => {
            let plugins = vec![plugin("pensieve-qwen"), plugin("pensieve-samplers")];
            let models = vec![("eyes".into(), fixture("vision/qwen3_vl"))];
            let server = Options { plugins, models, ..Options::default() }.start();
            table(&server, &packages.join("bin/python"), "with_images.py", &packages);
        }
        Err(why) => skip("with_images.py", &why),
    }
}

#[test]
fn openais_npm_sdk_runs_unchanged() {
    node("with_openai.mjs");
}

#[test]
fn anthropics_npm_sdk_runs_unchanged() {
    node("with_anthropic.mjs");
}

/// Required output of every example, in order.
const PRINTED: [&str; 3] = [r#"{"cmd": "ls -la"}"#, "local inference host", "21 degrees and sunny in Lisbon"];

#[test]
fn the_examples_in_python_run() {
    match installed("python", REQUIREMENTS, install_python) {
        Ok(packages) => examples(&packages.join("bin/python"), &["messages.py", "chat.py"], None),
        Err(why) => skip("examples/clients", &why),
    }
}

#[test]
fn the_examples_in_javascript_run() {
    match installed("node", "package.json", install_node) {
        Ok(packages) => examples(Path::new("node"), &["messages.mjs", "chat.mjs"], Some(&packages)),
        Err(why) => skip("examples/clients", &why),
    }
}

/// Runs the examples beside the starter, those for Node in the folder of their packages.
fn examples(interpreter: &Path, names: &[&str], packages: Option<&Path>) {
    let server = starter::serve();
    for name in names {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/clients").join(name);
        let script = packages.map_or_else(|| shipped.clone(), |packages| packages.join(name));
        if script != shipped {
            fs::copy(&shipped, &script).unwrap();
        }
        let mut command = Command::new(interpreter);
        command.arg(script).env_clear().env("PYTHONDONTWRITEBYTECODE", "1");
        command.envs(["PATH", "TMPDIR", "LD_LIBRARY_PATH"].iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.env("PENSIEVE_URL", format!("http://{}", server.address));
        let said = finish(&mut command, PATIENCE).unwrap_or_else(|said| panic!("{name}: {said}\n{}", server.log()));
        let places: Vec<Option<usize>> = PRINTED.iter().map(|words| said.find(words)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {said}");
    }
}

fn python(table: &str) {
    match installed("python", REQUIREMENTS, install_python) {
        Ok(packages) => run(&packages.join("bin/python"), table, &packages),
        Err(why) => skip(table, &why),
    }
}

fn node(table: &str) {
    match installed("node", "package.json", install_node) {
        Ok(packages) => run(Path::new("node"), table, &packages),
        Err(why) => skip(table, &why),
    }
}

pub(super) fn skip(table: &str, why: &str) {
    let required = env::var_os("PENSIEVE_REQUIRE_CLIENTS").is_some_and(|value| value == "1");
    assert!(!required, "PENSIEVE_REQUIRE_CLIENTS=1, but {table} cannot run: {why}");
    println!("skipped {table}: {why}");
}

/// Runs a table against a new server.
fn run(interpreter: &Path, table: &str, packages: &Path) {
    let root = tempfile::tempdir().unwrap();
    self::table(&serve(root.path()), interpreter, table, packages);
}

/// Runs a table against a server.
fn table(server: &Server, interpreter: &Path, table: &str, packages: &Path) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(interpreter);
    command.arg(folder().join(table)).env_clear();
    // The clients must not see the keys, proxies and settings of the person who runs the tests.
    command.envs(["PATH", "TMPDIR", "LD_LIBRARY_PATH"].iter().filter_map(|name| Some((name, env::var_os(name)?))));
    command.env("HOME", home.path()).env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1");
    command.env("PENSIEVE_URL", format!("http://{}", server.address)).env("PENSIEVE_PACKAGES", packages);
    let said = finish(&mut command, PATIENCE).unwrap_or_else(|said| panic!("{table}: {said}\n{}", server.log()));
    println!("{table}: {said}");
    assert!(said.contains(" calls, 0 failed"), "{table} ended early: {said}");
}

fn serve(root: &Path) -> Server {
    let source = root.join("scripted");
    scripted::checkpoint(&source, &SCRIPT);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start()
}

/// The folder that packages are installed in, once for each list of them.
pub(super) fn installed(
    name: &str,
    list: &str,
    install: fn(&Path, &str) -> Result<(), String>,
) -> Result<PathBuf, String> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _guard = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(name);
    let wanted = fs::read_to_string(folder().join(list)).unwrap();
    let record = packages.join("installed");
    if fs::read_to_string(&record).is_ok_and(|found| found == wanted) {
        return Ok(packages);
    }
    // What another list or a failed attempt has left is useless.
    let _ = fs::remove_dir_all(&packages);
    fs::create_dir_all(&packages).unwrap();
    install(&packages, list)?;
    fs::write(record, wanted).unwrap();
    Ok(packages)
}

pub(super) fn install_python(packages: &Path, list: &str) -> Result<(), String> {
    finish(Command::new("python3").args(["-m", "venv"]).arg(packages), PATIENCE)?;
    let mut pip = Command::new(packages.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
    ]);
    pip.args(["--retries", "2", "--timeout", "20", "--requirement"]).arg(folder().join(list));
    finish(&mut pip, PATIENCE).map(drop)
}

pub(super) fn install_node(packages: &Path, list: &str) -> Result<(), String> {
    finish(Command::new("node").arg("--version"), PATIENCE)?;
    fs::copy(folder().join(list), packages.join("package.json")).unwrap();
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]);
    npm.args(["--fetch-retries=2", "--fetch-timeout=20000"]).current_dir(packages);
    finish(&mut npm, PATIENCE).map(drop)
}

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// A command's output, whether it succeeds or not.
pub(super) fn finish(command: &mut Command, patience: Duration) -> Result<String, String> {
    let mut said = tempfile::tempfile().unwrap();
    let output = || Stdio::from(said.try_clone().unwrap());
    let started = command.stdin(Stdio::null()).stdout(output()).stderr(output()).spawn();
    let mut child = started.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut text = String::new();
    std::io::Seek::rewind(&mut said).unwrap();
    std::io::Read::read_to_string(&mut said, &mut text).unwrap();
    if status.success() { Ok(text) } else { Err(format!("{command:?}: {status}: {text}")) }
}
