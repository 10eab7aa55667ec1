//! A prompt process as its server sees it: the real program at the other end of two pipes.

use pensieve_prompt::Model;
use pensieve_protocol::{
    conversation::{Conversation, Part, Role, Turn},
    fence::VARIABLE,
    job::FailureCode,
    prompt::{Answer, Question, Tokenizer},
    wire,
};
use pensieve_server::fleet::fence::prompt;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::artifacts::program;

const MEMORY: u64 = 1 << 30;

struct Process(Child);

impl Process {
    fn start(memory: u64) -> Self {
        let mut command = Command::new(program());
        command.arg("prompt").env(VARIABLE, prompt(memory).to_variable());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// The answer; none if the process ends without one.
    fn ask(&mut self, question: &Question) -> Option<Answer> {
        wire::write(self.0.stdin.as_mut().unwrap(), question).ok()?;
        wire::read(self.0.stdout.as_mut().unwrap()).ok().flatten()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fixture(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scripted").join(name)).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer { json: fixture("tokenizer.json"), vocabulary: 1 << 16, bos: None, add_bos: false, eos: Vec::new() }
}

fn template() -> Question {
    Question::Template(Some(fixture("chat_template.jinja")))
}

/// A conversation whose last turn has so many bytes.
fn conversation(bytes: usize) -> Conversation {
    let words = "The quick brown fox jumps over the lazy dog, 1 2 3. ";
    let text: String = words.chars().cycle().take(bytes).collect();
    Conversation { turns: vec![Turn { role: Role::User, parts: vec![Part::Text(text)] }], ..Conversation::default() }
}

fn asks(conversation: &Conversation) -> Question {
    Question::Conversation { conversation: Box::new(conversation.clone()), tools_in_words: None }
}

fn ready() -> Process {
    let mut process = Process::start(MEMORY);
    assert!(matches!(process.ask(&Question::Tokenizer(tokenizer())), Some(Answer::Vocabulary(_))));
    assert!(matches!(process.ask(&template()), Some(Answer::Template { takes_tools: true })));
    process
}

#[test]
fn the_tokens_are_those_that_the_model_gives_in_this_process() {
    let mut process = ready();
    let mut model = Model::new(&tokenizer()).unwrap();
    assert!(model.read_template(Some(&fixture("chat_template.jinja"))).unwrap());
    for bytes in [0, 1, 1000, 200_000] {
        let conversation = conversation(bytes);
        let Some(Answer::Tokens(tokens)) = process.ask(&asks(&conversation)) else { panic!("no tokens of {bytes}") };
        assert_eq!(tokens, model.conversation(&conversation, None).unwrap());
    }
    let Some(Answer::Tokens(tokens)) = process.ask(&Question::Text("plain".into())) else { panic!("no tokens") };
    assert_eq!(tokens, model.text("plain").unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn it_works_behind_a_fence() {
    let process = ready();
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapInh:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.0.id())).unwrap();
    for (name, limit) in [("Max core file size", " 0 "), ("Max open files", " 64 ")] {
        assert!(limits.lines().any(|line| line.starts_with(name) && line.contains(limit)), "{name}: {limits}");
    }
}

#[test]
fn a_question_out_of_order_or_about_a_broken_checkpoint_is_a_failure_and_the_process_lives_on() {
    let mut process = Process::start(MEMORY);
    let Some(Answer::Failed(failure)) = process.ask(&asks(&conversation(1))) else { panic!("no failure") };
    assert_eq!(failure.code, FailureCode::Internal);
    let broken = Tokenizer { json: "{".into(), ..tokenizer() };
    let Some(Answer::Failed(failure)) = process.ask(&Question::Tokenizer(broken)) else { panic!("no failure") };
    assert_eq!(failure.code, FailureCode::Unsupported);
    assert!(matches!(process.ask(&Question::Tokenizer(tokenizer())), Some(Answer::Vocabulary(_))));
    let broken = Question::Template(Some("{% if".into()));
    let Some(Answer::Failed(failure)) = process.ask(&broken) else { panic!("no failure") };
    assert!(failure.message.contains("chat template cannot be used"), "{failure}");
}

/// Other kernels do not enforce the limit.
#[cfg(target_os = "linux")]
#[test]
fn memory_beyond_the_limit_ends_the_process() {
    let mut process = Process::start(64 << 20);
    assert!(matches!(process.ask(&Question::Tokenizer(tokenizer())), Some(Answer::Vocabulary(_))));
    assert!(matches!(process.ask(&template()), Some(Answer::Template { .. })));
    let began = Instant::now();
    assert!(process.ask(&asks(&conversation(30 << 20))).is_none(), "30 MB became tokens in 64 MiB");
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
    let status = process.0.wait().unwrap();
    assert!(!status.success(), "{status}");
}

#[test]
fn it_ends_with_its_server_whatever_it_does() {
    let mut process = ready();
    wire::write(process.0.stdin.as_mut().unwrap(), &asks(&conversation(4 << 20))).unwrap();
    drop(process.0.stdin.take());
    let deadline = Instant::now() + Duration::from_secs(20);
    while process.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it outlives its server");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "prints figures"]
fn what_a_round_trip_costs() {
    let (mut process, mut model) = (ready(), Model::new(&tokenizer()).unwrap());
    model.read_template(Some(&fixture("chat_template.jinja"))).unwrap();
    for (bytes, rounds) in [(1_000, 1_000), (100_000, 100)] {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // Each text is a new one, as the last turn of a conversation is.
            let mut conversation = conversation(bytes);
            conversation.turns[0].parts.push(Part::Text(format!("{round}")));
            let began = Instant::now();
            model.conversation(&conversation, None).unwrap();
            here.push(began.elapsed());
            let began = Instant::now();
            assert!(matches!(process.ask(&asks(&conversation)), Some(Answer::Tokens(_))));
            there.push(began.elapsed());
        }
        here.sort_unstable();
        there.sort_unstable();
        println!("{bytes} bytes: in this process {:?}, in a prompt process {:?}", here[rounds / 2], there[rounds / 2]);
    }
}
