//! Faults of grammar processes: scripts that answer, die, return garbage or hang.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, time::Instant};

use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::chat::Client;
use pensieve_protocol::{
    card::State,
    grammar::{Grammar, Part, Rule, Spec, Then},
    prompt::{Numbered, Syntax},
    vocabulary::Alphabet,
    wire,
};

/// A program that records its process id whenever it is started.
pub(super) struct Program {
    pub(super) folder: TempDir,
}

impl Program {
    /// Runs `script` in its folder, which contains these answers as files of frames: `1`, `2`, …
    pub(super) fn new(script: &str, answers: &[&[Numbered<Answer>]]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (place, answers) in answers.iter().enumerate() {
            let frames: Vec<u8> = answers.iter().flat_map(|answer| wire::encode(answer).unwrap()).collect();
            fs::write(folder.path().join(format!("{}", place + 1)), frames).unwrap();
        }
        let path = folder.path().join("program");
        let text = format!("#!/bin/sh\ncd '{}'\necho $$ >> started\n{script}\n", folder.path().display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn grammars(&self) -> Arc<GrammarPool> {
        Arc::new(GrammarPool::new(self.path()))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Ids of the processes started so far.
    pub(super) fn started(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.folder.path().join("started")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

fn client(name: u8) -> Client {
    Client { id: u64::from(name), share: u64::from(name), salt: vec![name; 32], account: None }
}

fn alphabet() -> Alphabet {
    let tokenizer = r#"{"decoder": {"type": "ByteFallback"}, "model": {"vocab": {"x": 0, "yy": 1}}}"#;
    Vocabulary::new(tokenizer, 2, &[]).unwrap().alphabet(&[])
}

fn spec(regex: &str) -> Spec {
    let part = Part::new("format", Grammar::Regex(regex.to_owned()));
    Spec { reasoning: None, rules: vec![Rule::from_start(part, Then::Stop)] }
}

fn card(vocabulary: u32) -> Card {
    Card {
        architecture: String::new(),
        vocabulary,
        context: 8192,
        state: State::PerSequence { bytes: 1 },
        token_bytes: 0,
        weight_bytes: 0,
        tokenizer: String::new(),
        chat_template: None,
        bos: None,
        add_bos: false,
        eos: Vec::new(),
        formats: String::new(),
        facts: String::new(),
        rows: Ok(None),
        media: Ok(None),
        fingerprint: String::new(),
    }
}

fn answer(number: u64, message: Answer) -> Numbered<Answer> {
    Numbered { number, message }
}

async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_running(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[tokio::test]
async fn what_one_client_has_asked_for_is_known_to_that_client_alone() {
    let program = Program::new("cat 1; cat > rest", &[&[answer(1, Answer::Compiles)]]);
    let grammars = program.grammars();
    for (name, grammar, processes) in [(1, "a", 1), (1, "a", 1), (2, "a", 2), (2, "a", 2), (1, "b", 3), (1, "a", 3)] {
        grammars.try_grammar(&client(name), &alphabet(), &spec(grammar)).await.unwrap();
        assert_eq!(program.started().len(), processes, "client {name}, {grammar}");
    }
    let program = Program::new("cat 1; cat > rest", &[&[answer(1, Answer::Expression(Ok("x".into())))]]);
    let grammars = program.grammars();
    for (name, syntax, processes) in
        [(1, Syntax::Lark, 1), (1, Syntax::Lark, 1), (1, Syntax::Regex, 2), (2, Syntax::Lark, 3)]
    {
        let expressed = grammars.expressions(&client(name), &[(syntax, "x")]).await.unwrap();
        assert_eq!((expressed, program.started().len()), (vec![Ok("x".to_owned())], processes));
    }
}

#[tokio::test]
async fn nonsense_and_answers_to_other_questions_cost_one_question_and_its_process() {
    let expression = |text: &str| Answer::Expression(Ok(text.to_owned()));
    // The first process answers its second question before it is asked, and then once more.
    let early = [answer(1, expression("one")), answer(1, expression("late")), answer(2, expression("two"))];
    let program = Program::new(
        "mkdir first 2> /dev/null && exec cat 1 -\nexec cat 2 -",
        &[&early, &[answer(1, expression("again"))]],
    );
    let formats = [(Syntax::Lark, "a"), (Syntax::Lark, "b"), (Syntax::Lark, "c")];
    let expressed = program.grammars().expressions(&client(1), &formats).await.unwrap();
    assert_eq!(expressed[0], Ok("one".to_owned()));
    assert!(expressed[1].as_ref().is_err_and(|why| why.contains("nonsense")), "{expressed:?}");
    assert_eq!(expressed[2], Ok("again".to_owned()));
    assert_eq!(program.started().len(), 2);

    for script in ["printf '\\377\\377\\377\\377'; cat > rest", "head -c 100000 /dev/urandom", "kill -9 $$", "exit 3"] {
        let grammars = Program::new(script, &[]);
        let pool = grammars.grammars();
        let failure = pool.try_grammar(&client(1), &alphabet(), &spec("a")).await.unwrap_err();
        assert_eq!((failure.code, failure.field.as_str()), (FailureCode::Invalid, "format"), "{script}: {failure}");
        let expressed = pool.expressions(&client(1), &[(Syntax::Regex, "a")]).await.unwrap();
        assert!(expressed[0].is_err(), "{script}: {expressed:?}");
    }
    let long = Answer::Expression(Ok("x".repeat(100_000)));
    let complaint = Answer::Expression(Err("\u{1b}[2J".repeat(10_000)));
    for (message, most) in [(long, 100), (complaint, 1_000)] {
        let program = Program::new("cat 1; cat > rest", &[&[answer(1, message)]]);
        let expressed = program.grammars().expressions(&client(1), &[(Syntax::Regex, "a")]).await.unwrap();
        assert!(expressed[0].as_ref().is_err_and(|why| why.len() < most && !why.contains('\u{1b}')), "{expressed:?}");
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_no_fault_of_the_request() {
    let grammars = GrammarPool::new("/nowhere/pensieve".into());
    let failure = grammars.try_grammar(&client(1), &alphabet(), &spec("a")).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::Internal);
    let failure = grammars.expressions(&client(1), &[(Syntax::Lark, "a")]).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::Internal);
}

#[tokio::test]
async fn a_process_is_killed_when_its_client_leaves_and_its_place_is_free_again() {
    let program = Program::new("exec sleep 1000", &[]);
    let grammars = program.grammars();
    for round in 1..=5 {
        let asked: Vec<_> = (0..8)
            .map(|number| {
                let grammars = grammars.clone();
                tokio::spawn(async move {
                    let _ = grammars.try_grammar(&client(number % 2), &alphabet(), &spec(&format!("{number}"))).await;
                })
            })
            .collect();
        // Three at a time, whichever client asks.
        wait_until("three begin", || program.started().len() == 3 * round).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(program.started().len(), 3 * round, "there are more than three at a time");
        asked.iter().for_each(JoinHandle::abort);
        for asked in asked {
            let _ = asked.await;
        }
        wait_until("they end with their clients", || !program.started().into_iter().any(is_running)).await;
    }
}

#[tokio::test]
async fn one_client_leaves_a_process_to_the_next() {
    let program =
        Program::new("test -e quick && { cat 1; exec cat; }\nexec sleep 1000", &[&[answer(1, Answer::Compiles)]]);
    let grammars = program.grammars();
    let greedy: Vec<_> = (0..10)
        .map(|number| {
            let grammars = grammars.clone();
            tokio::spawn(async move {
                let _ = grammars.try_grammar(&client(1), &alphabet(), &spec(&format!("{number}"))).await;
            })
        })
        .collect();
    wait_until("two begin", || program.started().len() == 2).await;
    fs::write(program.folder.path().join("quick"), "").unwrap();
    let began = Instant::now();
    grammars.try_grammar(&client(2), &alphabet(), &spec("a")).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "the next client waited {:?}", began.elapsed());
    greedy.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn what_takes_too_long_is_refused_at_once_for_a_while() {
    let program = Program::new("exec sleep 1000", &[]);
    let grammars = program.grammars();
    let began = Instant::now();
    let formats = [(Syntax::Lark, "a"), (Syntax::Regex, "b"), (Syntax::Regex, "c")];
    let expressed = grammars.expressions(&client(1), &formats).await.unwrap();
    assert!(expressed.iter().all(Result::is_err), "{expressed:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "all formats together took {:?}", began.elapsed());
    let began = Instant::now();
    let expressed = grammars.expressions(&client(1), &formats[..1]).await.unwrap();
    assert!(expressed[0].as_ref().is_err_and(|why| why.contains("longer than 5 seconds")), "{expressed:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "it was tried again");
}

#[tokio::test]
async fn a_surplus_process_is_ended_after_a_while_and_the_last_one_stays() {
    let tokenizer = r#"{"decoder": {"type": "ByteFallback"}, "model": {"vocab": {"x": 0, "yy": 1}}}"#;
    let vocabulary = Box::new(Vocabulary::new(tokenizer, 2, &[]).unwrap());
    let read = [answer(1, Answer::Vocabulary(vocabulary)), answer(2, Answer::Template { takes_tools: false })];
    // It takes a while for its first answer, so that another process begins.
    let program =
        Program::new("cat 1; sleep 0.5; cat 2; exec cat > rest", &[&read, &[answer(3, Answer::Tokens(vec![1]))]]);
    let pool = RendererPool::ending_surplus_after(Duration::from_millis(500), program.path());
    let renderer = pool.renderer("model", &Arc::new(card(2)));
    let asked = ["a", "b"].map(|text| {
        let renderer = renderer.clone();
        tokio::spawn(async move { renderer.text(text.into(), Vec::new()).await })
    });
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap(), [1]);
    }
    let running = || program.started().into_iter().filter(|pid| is_running(*pid)).count();
    assert_eq!((program.started().len(), running()), (2, 2));
    wait_until("one is ended", || running() == 1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(running(), 1, "the last one stays");
}

/// Its first `hanging` processes read the model and then answer nothing.
fn slow_renderer(hanging: &str) -> (Program, Arc<Renderer>) {
    renderer_whose_first(hanging, "exec sleep 1000")
}

/// Its first processes, one for each of these places, read the tokenizer and then run this.
fn renderer_whose_first(places: &str, run: &str) -> (Program, Arc<Renderer>) {
    let tokenizer = r#"{"decoder": {"type": "ByteFallback"}, "model": {"vocab": {"x": 0, "yy": 1}}}"#;
    let vocabulary = Box::new(Vocabulary::new(tokenizer, 2, &[]).unwrap());
    let read = [answer(1, Answer::Vocabulary(vocabulary)), answer(2, Answer::Template { takes_tools: false })];
    let script =
        format!("cat 1\nfor place in {places}; do mkdir at_$place 2> /dev/null && {run}; done\ncat 2; exec cat > rest");
    let program = Program::new(&script, &[&read, &[answer(3, Answer::Tokens(vec![1]))]]);
    let renderer = RendererPool::new(program.path()).renderer("model", &Arc::new(card(2)));
    (program, renderer)
}

#[tokio::test]
async fn a_question_whose_process_was_killed_from_outside_is_asked_once_more() {
    for (killed, answered) in [("1", true), ("1 2", false)] {
        let (program, renderer) = renderer_whose_first(killed, "sleep 0.3 && kill -9 $$");
        let tokens = renderer.text("x".into(), Vec::new()).await;
        assert_eq!((tokens.is_ok(), program.started().len()), (answered, 2), "{tokens:?}");
        if let Err(failure) = tokens {
            assert!(failure.message.contains("SIGKILL"), "{failure}");
        }
    }
}

#[tokio::test]
async fn texts_for_rows_leave_a_process_to_chats_and_nothing_waits_for_clients_that_have_gone() {
    let (program, renderer) = slow_renderer("1 2 3");
    let asked: Vec<_> = (0..6)
        .map(|_| {
            let renderer = renderer.clone();
            let texts = vec![Piece { text: "x".into(), plain: Vec::new() }];
            tokio::spawn(async move { renderer.texts(texts, Vec::new()).await })
        })
        .collect();
    wait_until("three begin", || program.started().len() == 3).await;
    assert_eq!(renderer.text("x".into(), Vec::new()).await.unwrap(), [1], "a chat waits for no texts");
    assert_eq!((program.started().len(), renderer.text_turns.available_permits()), (4, 0));
    asked.iter().for_each(JoinHandle::abort);
    for asked in asked {
        let _ = asked.await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        (program.started().len(), renderer.text_turns.available_permits()),
        (4, 0),
        "only what has begun goes on"
    );
}
