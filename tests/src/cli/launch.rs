//! `pensieve serve SOURCE` and `pensieve launch`: a model without an id, and clients that are configured for it.

use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Desk, interrupt, said};
use crate::{
    artifacts::{test_plugin, write_script},
    http::client::get,
    scripted,
};

/// Time limit of anything here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A desk with the scripted model in `talker`.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.install(&["pensieve-samplers"]);
    let library = test_plugin("scripted");
    fs::copy(&library, desk.path("home/plugins").join(library.file_name().unwrap())).unwrap();
    scripted::checkpoint(&desk.path("talker"), &[("", "Hello.")]);
    desk
}

/// Installs a client that is this shell script, and returns the PATH that finds it.
fn client(desk: &Desk, name: &str, script: &str) -> String {
    let folder = desk.path("clients");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    write_script(&path, script);
    format!("{}:/usr/bin:/bin", folder.display())
}

fn models(address: &str) -> Vec<String> {
    let list: Value = get(address.parse().unwrap(), "/v1/models").json();
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

/// The addresses that a server reports listening on.
fn addresses(child: &mut Child, count: usize) -> Vec<String> {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().take(count);
    lines.map(|line| line.unwrap().strip_prefix("pensieve is listening on http://").unwrap().to_owned()).collect()
}

#[test]
fn a_source_needs_no_id_and_a_server_may_have_two_addresses() {
    let desk = desk();
    let mut child = desk.command(&["serve", "./talker", "--listen", "0", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let addresses = addresses(&mut child, 2);
    assert_ne!(addresses[0], addresses[1]);
    for address in &addresses {
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        assert_eq!(models(address), ["talker"]);
    }
    interrupt(child.id());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{log}");
    assert!(log.contains("serving model 'talker': scripted"), "{log}");
    assert!(log.contains("a second signal (Ctrl-C) ends them at once"), "{log}");

    let twice = desk.run(&["serve", "./talker", "--model", "talker=starter"]);
    assert_eq!(twice.code, Some(2), "{twice:?}");
    assert!(twice.stderr.contains("two models have the id 'talker'; rename one with --model ID=./talker"), "{twice:?}");
}

#[test]
fn a_model_that_cannot_work_is_an_error_at_the_start_unless_others_can() {
    let desk = desk();
    fs::create_dir(desk.path("broken")).unwrap();
    fs::write(desk.path("broken/config.json"), "{").unwrap();
    let refused = desk.run(&["serve", "broken", "--listen", "0"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(9), ""), "{refused:?}");
    assert!(refused.stderr.contains("pensieve: model 'broken' cannot be served: "), "{refused:?}");

    let mut child = desk.command(&["serve", "broken", "talker", "--listen", "0"]).spawn().unwrap();
    assert_eq!(models(&addresses(&mut child, 1)[0]), ["broken", "talker"]);
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = log.find(|line| line.contains("model 'broken' cannot be served")).expect("a line on the broken model");
    assert!(told.contains("ERROR"), "{told}");
    interrupt(child.id());
    // Drain the output, so that the server is not blocked.
    log.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_client_is_started_with_a_server_of_its_own_and_ends_with_its_code() {
    let desk = desk();
    let told = "echo \"$ANTHROPIC_MODEL $ANTHROPIC_AUTH_TOKEN ${ANTHROPIC_API_KEY-unset} $*\"";
    let script = format!("{told}; echo \"$ANTHROPIC_BASE_URL\" > base; while [ ! -e go ]; do sleep 0.1; done; exit 7");
    let path = client(&desk, "claude", &script);
    let mut command = desk.command(&["launch", "claude", "--model", "talker", "-p", "a question"]);
    // Nothing listens there.
    command.env("PENSIEVE_LISTEN", "127.0.0.1:9");
    let child = command.env("PATH", path).env("ANTHROPIC_API_KEY", "another").spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    let base = loop {
        let base = fs::read_to_string(desk.path("base")).unwrap_or_default();
        if base.ends_with('\n') {
            break base.trim().strip_prefix("http://").unwrap().to_owned();
        }
        assert!(Instant::now() < until, "the client did not start");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(models(&base), ["talker"]);
    fs::write(desk.path("go"), "").unwrap();
    let ended = said(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert_eq!(ended.stdout, "talker pensieve-local-key unset -p a question\n");
    assert!(ended.stderr.contains("home/launch.log"), "{ended:?}");
    assert!(std::net::TcpStream::connect(&base).is_err(), "the server went on after its client");
}

#[test]
fn a_server_that_runs_is_used_and_files_are_temporary() {
    let desk = desk();
    let mut serving = desk.command(&["serve", "talker", "--listen", "0"]).stderr(Stdio::null()).spawn().unwrap();
    let address = addresses(&mut serving, 1).remove(0);
    let path = client(&desk, "opencode", "echo \"${OPENCODE_CONFIG%/*}\"; cat \"$OPENCODE_CONFIG\"");
    let mut command = desk.command(&["launch", "opencode"]);
    let ended = said(command.env("PATH", path).env("PENSIEVE_LISTEN", &address).output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (folder, config) = ended.stdout.split_once('\n').unwrap();
    assert!(config.contains(&format!("\"baseURL\": \"http://{address}/v1\"")), "{config}");
    assert!(config.contains("\"model\": \"pensieve/talker\""), "{config}");
    assert!(!fs::exists(folder).unwrap(), "{folder} is still there");
    assert!(!ended.stderr.contains("launch.log"), "{ended:?}");
    interrupt(serving.id());
    serving.wait().unwrap();
}

#[test]
fn the_gemini_cli_is_started_with_settings_of_its_own() {
    let desk = desk();
    let told = "echo \"$GOOGLE_GEMINI_BASE_URL $GEMINI_API_KEY ${GOOGLE_API_KEY-unset} $*\"";
    let path = client(&desk, "gemini", &format!("{told}; cat \"$GEMINI_CLI_SYSTEM_SETTINGS_PATH\""));
    let mut command = desk.command(&["launch", "gemini", "--model", "talker", "--", "-p", "hi"]);
    command.env("PATH", path).env("PENSIEVE_LISTEN", "127.0.0.1:9").env("GOOGLE_API_KEY", "another");
    let ended = said(command.output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (line, settings) = ended.stdout.split_once('\n').unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert!(words[0].starts_with("http://127.0.0.1:"), "{line}");
    assert_eq!(words[1..], ["pensieve-local-key", "unset", "-m", "talker", "-p", "hi"]);
    let settings: Value = serde_json::from_str(settings).unwrap();
    assert_eq!(settings["security"]["auth"]["selectedType"], "gemini-api-key");
    // The script's model has 65,536 tokens, a sixteenth of what the client takes it to have.
    assert_eq!(settings["model"]["compressionThreshold"], 0.7 / 16.0);
}

/// A temporary folder in which another user has taken the predictable names.
fn taken(desk: &Desk) -> PathBuf {
    let (folder, victim) = (desk.path("tmp"), desk.path("victim"));
    fs::create_dir(&folder).unwrap();
    fs::write(&victim, "mine").unwrap();
    for name in ["pensieve-launch-opencode", "pensieve-launch"] {
        let planted = folder.join(name);
        fs::create_dir(&planted).unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(&victim, planted.join("opencode.json")).unwrap();
        // Only root can chown its files to others; otherwise the folder is foreign enough.
        let _ = std::os::unix::fs::lchown(&planted, Some(65_534), Some(65_534));
    }
    folder
}

/// A client that prints its file locations, permissions and a file's content.
const OPENCODE: &str = "folder=${OPENCODE_CONFIG%/*}; stat -c '%a %u' \"$folder\" \"$OPENCODE_CONFIG\"; echo \"$folder\"; cat \"$OPENCODE_CONFIG\"";

fn is_private(desk: &Desk, folder: &Path, said: &str) {
    // SAFETY: the call takes no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some(&*format!("700 {user}")), "{said}");
    assert_eq!(lines.next(), Some(&*format!("600 {user}")), "{said}");
    let home = Path::new(lines.next().unwrap());
    assert!(home.starts_with(folder) && said.contains("@ai-sdk/openai-compatible"), "{said}");
    assert_eq!(fs::read_to_string(desk.path("victim")).unwrap(), "mine");
}

#[test]
fn files_for_a_client_are_the_user_s_alone_whatever_others_have_made_beforehand() {
    let desk = desk();
    let folder = taken(&desk);
    let path = client(&desk, "opencode", OPENCODE);
    let mut command = desk.command(&["launch", "opencode", "--model", "talker"]);
    command.env("PATH", &path).env("TMPDIR", &folder).env("PENSIEVE_LISTEN", "127.0.0.1:9");
    let launched = said(command.output().unwrap());
    assert_eq!(launched.code, Some(0), "{launched:?}");
    is_private(&desk, &folder, &launched.stdout);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "the folder is not removed");

    let mut command = desk.command(&["launch", "opencode", "--model", "talker", "--print"]);
    let printed = said(command.env("TMPDIR", &folder).env("PENSIEVE_LISTEN", "127.0.0.1:9").output().unwrap());
    let run = |folder: &Path| {
        let mut shell = std::process::Command::new("/bin/sh");
        desk.prepare(&mut shell);
        said(shell.args(["-c", &printed.stdout]).env("PATH", &path).env("TMPDIR", folder).output().unwrap())
    };
    let ran = run(&folder);
    assert_eq!(ran.code, Some(0), "{printed:?} {ran:?}");
    is_private(&desk, &folder, &ran.stdout);
    // Without a folder nothing is written and nothing started.
    let failed = run(&desk.path("nowhere"));
    assert!(failed.code != Some(0) && failed.stdout.is_empty(), "{failed:?}");
}

#[test]
fn what_a_client_would_be_told_is_printed_and_a_missing_one_is_named() {
    let desk = desk();
    let printed = desk.run(&["launch", "opencode", "--model", "./talker", "--print"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    for words in ["export OPENCODE_CONFIG=", "cat > ", "http://127.0.0.1:8000/v1", "pensieve/talker", "\nopencode\n"] {
        assert!(printed.stdout.contains(words), "{words:?} is not in {printed:?}");
    }
    let mut command = desk.command(&["launch", "aider"]);
    let missing = said(command.env("PATH", desk.path("nothing")).output().unwrap());
    assert_eq!(missing.code, Some(3), "{missing:?}");
    assert!(missing.stderr.contains("'aider' is not in PATH") && missing.stderr.contains("pip install"), "{missing:?}");
}
