//! `pensieve run` with the scripted model.

use serde_json::Value;
use std::{fs, io::Write, process::Stdio};

use super::{Desk, said};
use crate::{artifacts::test_plugin, scripted};

const SCRIPT: [(&str, &str); 3] =
    [("weather", "It is sunny."), ("count", "one two three four five six seven eight nine ten"), ("", "Hello.\n")];

/// A desk with the scripted model in `model`.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.install(&["pensieve-samplers"]);
    let library = test_plugin("scripted");
    fs::copy(&library, desk.path("home/plugins").join(library.file_name().unwrap())).unwrap();
    scripted::checkpoint(&desk.path("model"), &SCRIPT);
    desk
}

#[test]
fn answers_and_nothing_else_go_to_standard_output() {
    let desk = desk();
    let said = desk.run(&["run", "--model", "model", "what is the", "weather"]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "It is sunny.\n", ""));
    // Only one line break is added.
    assert_eq!(desk.run(&["run", "--model", "./model/", "hi"]).stdout, "Hello.\n");
}

#[test]
fn a_checkpoint_before_the_question_is_the_model() {
    let desk = desk();
    let said = desk.run(&["run", "./model", "what is the", "weather"]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "It is sunny.\n", ""));
    let missing = desk.run(&["run", "missing.gguf", "what is the weather"]);
    assert!(missing.code == Some(3) && missing.stderr.contains("no checkpoint at '"), "{missing:?}");
    let silent = desk.run(&["run", "--json", "./model"]);
    assert!(silent.code == Some(2) && silent.stderr.contains("need a question"), "{silent:?}");
}

#[test]
fn reads_the_question_from_standard_input() {
    let desk = desk();
    let mut child = desk.command(&["run", "--model", "model", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"how is the weather?\n").unwrap();
    let said = said(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "It is sunny.\n"), "{said:?}");
}

#[test]
fn a_script_gets_one_line_of_json() {
    let desk = desk();
    let answer = |arguments: &[&str]| -> Value {
        let said = desk.run(&[&["run", "--model", "model", "--json"], arguments].concat());
        assert_eq!(said.stdout.lines().count(), 1, "{said:?}");
        serde_json::from_str(&said.stdout).unwrap()
    };
    let whole = answer(&["weather"]);
    assert_eq!(
        (&whole["text"], &whole["finish"], &whole["model"]),
        (&"It is sunny.".into(), &"end".into(), &"model".into())
    );
    assert!(whole["prompt_tokens"].as_u64().unwrap() > 5 && whole["first_token_ms"].is_u64(), "{whole}");
    let cut = answer(&["--max-tokens", "5", "--temperature", "0", "--seed", "7", "count"]);
    assert_eq!((&cut["finish"], &cut["generated_tokens"]), (&"max_tokens".into(), &5.into()));
    let longer = answer(&["--system", "a system text that is long enough to be seen in the count", "weather"]);
    assert!(longer["prompt_tokens"].as_u64() > whole["prompt_tokens"].as_u64(), "{longer}");
}

#[test]
fn without_a_question_every_line_is_a_turn_of_a_chat() {
    let desk = desk();
    let chat = |lines: &str| {
        let mut child = desk.command(&["run", "--model", "model"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        said(child.wait_with_output().unwrap())
    };
    let spoken = chat("hi\nthe weather?\nhi\n/exit\nthe weather?\n");
    assert_eq!(spoken.stdout, "Hello.\nIt is sunny.\nHello.\n", "{spoken:?}");
    assert_eq!(spoken.code, Some(0));
    let spoken = chat("/hlep\nhi");
    assert_eq!((spoken.code, spoken.stdout.as_str()), (Some(0), "Hello.\n"), "it ends with its input: {spoken:?}");
    assert!(spoken.stderr.contains("no command '/hlep'") && spoken.stderr.contains("/exit"), "{spoken:?}");
    for flag in ["--raw", "--json"] {
        let refused = desk.run(&["run", "--model", "model", flag]);
        assert_eq!(refused.code, Some(2), "{flag} needs a question: {refused:?}");
    }
}

#[test]
fn a_turn_of_a_chat_brings_the_turns_before_it_to_the_model() {
    let desk = desk();
    // This template writes all turns into the one that the scripted model looks at.
    let template = "<|im_start|>user\n{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}<|im_end|>\n{{ '<|im_start|>assistant\n' }}";
    let whole =
        "system: Be brief.\nuser: I am Ada\nassistant: Hello, Ada.\nuser: and now?\nassistant: Hm.\nuser: who am I?";
    scripted::checkpoint(
        &desk.path("model"),
        &[(whole, "You are Ada."), ("and now?", "Hm."), ("I am Ada", "Hello, Ada."), ("who am I?", "Hm.")],
    );
    fs::write(desk.path("model/chat_template.jinja"), template).unwrap();
    let mut child =
        desk.command(&["run", "--model", "model", "--system", "Be brief."]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"I am Ada\nand now?\nwho am I?\n/clear\nwho am I?\n").unwrap();
    let said = said(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "Hello, Ada.\nHm.\nYou are Ada.\nHm.\n"), "{said:?}");
}

#[test]
fn a_configured_name_is_a_model() {
    let desk = desk();
    let config = "[[models]]\nid = \"talker\"\nsource = \"model\"\n[[models]]\nid = \"muse\"\nbase = \"talker\"\nsamplers = [\"greedy\"]\n";
    fs::write(desk.path("pensieve.toml"), config).unwrap();
    for arguments in
        [&["run", "weather"][..], &["run", "--model", "talker", "weather"], &["run", "--model", "muse", "weather"]]
    {
        let said = desk.run(arguments);
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), "It is sunny.\n"), "{said:?}");
    }
    fs::write(desk.path("pensieve.toml"), config.replace("greedy", "nonesuch")).unwrap();
    let said = desk.run(&["run", "--model", "muse", "weather"]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("nonesuch") && said.stdout.is_empty(), "{said:?}");
}
