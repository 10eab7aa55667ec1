//! Untrusted text on a terminal: file names, plugins' texts and a hub's answers cannot move the cursor or reverse text.

use serde_json::Value;
use std::{env::consts::DLL_SUFFIX, fs, process::Stdio};

use super::{Desk, said};
use crate::{
    artifacts::test_plugin,
    http::{client::get, server::Options},
};

/// Names of files without their ends. A title for the terminal, a colour in one byte, text from right to left, a forged line, and invisible characters.
const HOSTILE: &str = "lib\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}so\u{2066}\n!!  forged\u{200b}";
const SHOWN: &str = "lib\\u{1b}]0;owned\\u{7}\\u{9b}31m\\u{202e}so\\u{2066}\\n!!  forged\\u{200b}";
/// An ordinary one.
const HARMLESS: &str = "größer 模型 👩\u{200d}💻";

fn is_harmless(what: &str, text: &str) {
    let steers = |letter: char| {
        letter.is_control() && !matches!(letter, '\n' | '\t') || "\u{202e}\u{2066}\u{200b}".contains(letter)
    };
    assert!(!text.contains(steers), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("!!  forged")), "{what}: {text:?}");
}

#[test]
fn names_of_files_steer_no_terminal() {
    let desk = Desk::new();
    let folder = desk.path("home/plugins");
    fs::create_dir_all(&folder).unwrap();
    let long = "ä".repeat(120);
    let [hostile, shown, harmless, long] = [HOSTILE, SHOWN, HARMLESS, &long].map(|name| format!("{name}{DLL_SUFFIX}"));
    for name in [&hostile, &harmless, &long] {
        fs::write(folder.join(name), "no plugin").unwrap();
    }
    let check = folder.join(&hostile).to_str().unwrap().to_owned();
    for arguments in
        [&["plugins", "list"][..], &["plugins", "list", "--json"], &["doctor"], &["plugins", "check", &check]]
    {
        let said = desk.run(arguments);
        is_harmless(&arguments.join(" "), &said.stdout);
        is_harmless(&arguments.join(" "), &said.stderr);
        let all = said.stdout.clone() + &said.stderr;
        if arguments.contains(&"--json") {
            let list: Value = serde_json::from_str(&said.stdout).unwrap();
            let files: Vec<&str> =
                list.as_array().unwrap().iter().map(|state| state["file"].as_str().unwrap()).collect();
            assert!(files.iter().any(|file| file.ends_with(&hostile)), "{list:#}");
        } else {
            assert!(all.contains(&shown), "{arguments:?}: {all}");
        }
        if arguments[1..].first() == Some(&"list") || arguments == ["doctor"] {
            assert!(all.contains(&harmless) && all.contains(&long), "{arguments:?}: {all}");
        }
    }
}

#[test]
fn a_server_says_names_of_files_in_json_and_in_its_log_alike() {
    let options = Options { config: "[server]\nlog = \"debug\"\n".into(), ..Options::default() };
    let home = crate::http::server::home();
    fs::create_dir(home.path().join("given")).unwrap();
    let hostile = format!("{HOSTILE}{DLL_SUFFIX}");
    fs::write(home.path().join("given").join(&hostile), "no plugin").unwrap();
    let server = options.start_in(&home);
    let plugins = get(server.address, "/v1/plugins");
    let files: Vec<Value> = plugins.json()["data"].as_array().unwrap().clone();
    assert!(files.iter().any(|file| file["file"].as_str().is_some_and(|file| file.ends_with(&hostile))), "{files:#?}");
    is_harmless("the log", &server.stop());
}

#[test]
fn a_model_s_answer_steers_no_terminal_and_is_exact_in_a_pipe() {
    let desk = Desk::new();
    desk.install(&["pensieve-samplers"]);
    let library = test_plugin("scripted");
    fs::copy(&library, desk.path("home/plugins").join(library.file_name().unwrap())).unwrap();
    crate::scripted::checkpoint(&desk.path("talker"), &[("", "\u{1b}[31mred\u{7} über 模型\n\tend")]);
    let piped = desk.run(&["run", "--model", "talker", "x"]);
    assert_eq!((piped.code, &*piped.stdout), (Some(0), "\u{1b}[31mred\u{7} über 模型\n\tend\n"), "{piped:?}");
    let (mut reader, writer) = super::terminal::terminal();
    let mut command = desk.command(&["run", "--model", "talker", "x"]);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    // Reading from a terminal whose other end is closed is an error here.
    let _ = std::io::Read::read_to_end(&mut reader, &mut shown);
    assert_eq!(said(child.wait_with_output().unwrap()).code, Some(0));
    assert_eq!(String::from_utf8(shown).unwrap().replace("\r\n", "\n"), "[31mred über 模型\n\tend\n");
}
