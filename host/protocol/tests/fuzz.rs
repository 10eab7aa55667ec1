//! Frames from processes that run plugin code and headers of checkpoints can be anything; only valid messages and names are
//! accepted, in bounded memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use pensieve_fuzz::{Target, files};
use pensieve_protocol::{
    checkpoint::CheckpointName,
    conversation::{Conversation, Part, Role, Tool, Turn},
    grammar::Spec,
    job::{Event, Failure, FailureCode, Finish, Job, StageSpec, Tokens, Usage},
    prompt::{Answer, Numbered, Question, STACK_BYTES},
    wire::{self, Command, Report},
};
use serde::{Serialize, de::DeserializeOwned};

fn body<T: Serialize>(message: &T) -> Vec<u8> {
    wire::encode(message).unwrap()[wire::HEADER_BYTES..].to_vec()
}

/// Decodes a message, and checks that it encodes and decodes to the same value.
fn read<T: Serialize + DeserializeOwned>(kind: &str, bytes: &[u8]) -> String {
    match wire::decode::<T>(bytes) {
        Ok(message) => {
            let again = body(&message);
            let same = wire::decode::<T>(&again).map(|message| body(&message));
            assert_eq!(same.unwrap(), again);
            format!("{kind}, variant {}", char::from(b'a' + bytes[0] % 26))
        }
        Err(error) => format!("{kind}: {error:?}"),
    }
}

fn reports() -> Vec<Vec<u8>> {
    let failure = Failure::new(FailureCode::Plugin, "it failed").with_help("replace it").at("samplers");
    let usage = Usage { prompt: 1, reused: 2, generated: 3 };
    let tokens = Tokens { ids: vec![1, 2, 3], bytes: b"abc".to_vec(), ..Tokens::default() };
    let events = vec![
        (1, Event::Tokens(tokens)),
        (2, Event::Finished { reason: Finish::Length, usage }),
        (3, Event::Failed(failure.clone())),
    ];
    let loaded = wire::Loaded { device: "cpu".into(), ..wire::Loaded::default() };
    [
        Report::Hello { protocol: wire::PROTOCOL },
        Report::Progress { done: 1, total: 2, what: "weights".into() },
        Report::Log { level: wire::Level::Warn, message: "hello".into() },
        Report::Loaded(Box::new(loaded)),
        Report::LoadFailed(failure.clone()),
        Report::Events(events),
        Report::Attached { attempt: 1, result: Err(failure.clone()) },
        Report::Stats(Box::default()),
        Report::Drained,
        Report::Dying(failure),
    ]
    .iter()
    .map(body)
    .collect()
}

#[test]
fn damaged_frames_of_workers_and_prompt_processes_are_messages_or_errors() {
    let turn = Turn {
        role: Role::Assistant,
        parts: vec![
            Part::Text("hello".into()),
            Part::ToolCall { id: "1".into(), name: "f".into(), arguments: serde_json::json!({"a": [1, null]}) },
            Part::ToolResult { id: "1".into(), text: "done".into(), images: Vec::new(), is_error: true },
        ],
    };
    let tools = vec![Tool { name: "f".into(), ..Tool::default() }];
    let conversation = Conversation { turns: vec![turn], tools, ..Conversation::default() };
    let stages = vec![StageSpec::default()];
    let job = Job { tokens: vec![1, 2, 3], stages, grammar: Some(Spec::default()), ..Job::default() };
    let mut corpus = reports();
    corpus.extend([Command::Submit(job), Command::Cancel { id: 7 }, Command::Drain].iter().map(body));
    corpus.push(body(&Question::Conversation {
        conversation: Box::new(conversation),
        items: vec!["<image>".into()],
        tools_in_words: None,
        salt: vec![7; 32],
    }));
    corpus.push(body(&Answer::Tokens(vec![1, 1000, 1_000_000])));
    corpus.push(body(&Numbered { number: 300, message: Answer::Expression(Ok("a+".into())) }));
    let target = Target { name: "frames", corpus, memory_max: 64 << 20, input_max: 64 << 10 };
    target.run(|bytes| {
        let all = [
            read::<Report>("report", bytes),
            read::<Answer>("answer", bytes),
            read::<Numbered<Answer>>("numbered", bytes),
        ];
        all.join("; ")
    });
    // Grammars nest. Only the server sends them, and never deep ones; damaged ones need a stack like that of prompt processes.
    target.run_on(STACK_BYTES, |bytes| {
        [read::<Command>("command", bytes), read::<Question>("question", bytes)].join("; ")
    });
}

/// The result as text, without the path.
fn outcome(path: &Path) -> String {
    match CheckpointName::read(path) {
        Ok(_) => "found".to_owned(),
        Err(error) => error.replace(&path.display().to_string(), ""),
    }
}

#[test]
fn the_name_in_a_damaged_checkpoint_is_found_or_missed() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let folder = pensieve_fuzz::folder();
    let config = folder.path().join("config.json");
    let corpus = files(&fixtures.join("llama"), "config.json");
    Target { name: "config-name", corpus, memory_max: 16 << 20, input_max: 64 << 10 }.run(|bytes| {
        fs::write(&config, bytes).unwrap();
        outcome(folder.path())
    });
    let file = folder.path().join("model.gguf");
    let corpus = files(&fixtures.join("tokenizers"), "llama-spm.gguf");
    Target { name: "gguf-name", corpus, memory_max: 16 << 20, input_max: 256 << 10 }.run(|bytes| {
        fs::write(&file, bytes).unwrap();
        outcome(&file)
    });
}
