//! A prompt process as its server sees it: the real program at the other end of two pipes.

use pensieve_prompt::Model;
use pensieve_protocol::{
    conversation::{Conversation, Part, Role, Turn},
    fence::{Policy, VARIABLE},
    grammar::{Grammar, Part as Held, Rule, Spec, Then},
    job::FailureCode,
    prompt::{Answer, Numbered, Question, Syntax, Tokenizer},
    vocabulary::Vocabulary,
    wire,
};
use pensieve_server::fleet::fence::prompt;
use serde_json::json;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{artifacts::program, processes::memory};

const MEMORY: u64 = 1 << 30;
/// The memory limit of a grammar process, stacks included.
const GRAMMAR_MEMORY: u64 = 480 << 20;

struct Process(Child, u64);

impl Process {
    fn start(memory: u64) -> Self {
        Self::within(&prompt(memory))
    }

    fn for_grammars() -> Self {
        Self::within(&Policy { data_bytes: Some(GRAMMAR_MEMORY), ..prompt(0) })
    }

    fn within(policy: &Policy) -> Self {
        let mut command = Command::new(program());
        command.arg("prompt").env(VARIABLE, policy.to_variable());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().unwrap(), 0)
    }

    /// The answer; `None` if the process ends without one.
    fn ask(&mut self, question: &Question) -> Option<Answer> {
        self.tell(question)?;
        let answer: Numbered<Answer> = wire::read(self.0.stdout.as_mut().unwrap()).ok().flatten()?;
        assert_eq!(answer.number, self.1, "the answer to another question");
        Some(answer.message)
    }

    fn tell(&mut self, question: &Question) -> Option<()> {
        self.1 += 1;
        let question = Numbered { number: self.1, message: question };
        wire::write(self.0.stdin.as_mut().unwrap(), &question).ok()
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
    Question::Template { source: Some(fixture("chat_template.jinja")), images: None }
}

/// A conversation whose last turn has this many bytes.
fn conversation(bytes: usize) -> Conversation {
    let words = "The quick brown fox jumps over the lazy dog, 1 2 3. ";
    let text: String = words.chars().cycle().take(bytes).collect();
    Conversation { turns: vec![Turn { role: Role::User, parts: vec![Part::Text(text)] }], ..Conversation::default() }
}

fn asks(conversation: &Conversation) -> Question {
    let conversation = Box::new(conversation.clone());
    Question::Conversation { conversation, tools_in_words: None, items: Vec::new(), salt: Vec::new() }
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
    assert!(model.read_template(Some(&fixture("chat_template.jinja")), None).unwrap());
    for bytes in [0, 1, 1000, 200_000] {
        let conversation = conversation(bytes);
        let Some(Answer::Prompt(tokens)) = process.ask(&asks(&conversation)) else { panic!("no tokens of {bytes}") };
        assert_eq!(tokens, model.conversation(&conversation, None, &[], &[]).unwrap());
    }
    let Some(Answer::Tokens(tokens)) = process.ask(&Question::Text { text: "plain".into(), salt: Vec::new() }) else {
        panic!("no tokens")
    };
    assert_eq!(tokens, model.text("plain", &[]).unwrap());
}

#[cfg_attr(not(target_os = "linux"), ignore = "reads in /proc what Linux has around a process")]
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

/// Anonymous memory that a process holds.
#[cfg(target_os = "linux")]
fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A tokenizer with as many entries and merges, as those of today's models have.
#[cfg(target_os = "linux")]
fn large_tokenizer(size: usize) -> Tokenizer {
    let mut document: serde_json::Value = serde_json::from_str(&fixture("tokenizer.json")).unwrap();
    let mut vocabulary = document["model"]["vocab"].as_object().unwrap().clone();
    let mut merges = document["model"]["merges"].as_array().unwrap().clone();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let mut next =
        vocabulary.values().chain(document["added_tokens"].as_array().unwrap().iter().map(|token| &token["id"]));
    let mut next = next.by_ref().filter_map(serde_json::Value::as_u64).max().unwrap() + 1;
    // Each word is one of the last and a letter.
    let mut words = letters.clone();
    'grown: for place in 0.. {
        for letter in &letters {
            if vocabulary.len() >= size {
                break 'grown;
            }
            let word = format!("{}{letter}", words[place]);
            if !vocabulary.contains_key(&word) {
                vocabulary.insert(word.clone(), next.into());
                merges.push(json!([words[place], letter]));
                next += 1;
            }
            words.push(word);
        }
    }
    (document["model"]["vocab"], document["model"]["merges"]) = (vocabulary.into(), merges.into());
    Tokenizer { json: document.to_string(), vocabulary: 1 << 18, ..tokenizer() }
}

/// Each process of a model holds its tokenizer, so its memory counts once per process.
#[cfg(target_os = "linux")]
#[test]
fn a_process_with_a_large_tokenizer_stays_small() {
    let tokenizer = large_tokenizer(100_000);
    let bytes = tokenizer.json.len();
    let mut process = Process::start(MEMORY);
    assert!(matches!(process.ask(&Question::Tokenizer(tokenizer)), Some(Answer::Vocabulary(_))));
    assert!(matches!(process.ask(&template()), Some(Answer::Template { .. })));
    let held = anonymous(process.0.id());
    println!("{} KiB of tokenizer.json, {} KiB held", bytes >> 10, held >> 10);
    assert!(held < 64 << 20, "{} KiB", held >> 10);
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
    let broken = Question::Template { source: Some("{% if".into()), images: None };
    let Some(Answer::Failed(failure)) = process.ask(&broken) else { panic!("no failure") };
    assert!(failure.message.contains("chat template cannot be used"), "{failure}");
}

#[cfg_attr(not(target_os = "linux"), ignore = "other kernels do not enforce the limit")]
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

/// A grammar as a question, with the alphabet of a model that has this many tokens.
fn tries(grammar: Grammar, tokens: u32) -> Question {
    let rule = Rule::from_start(Held::new("format", grammar), Then::Stop);
    let vocabulary = Vocabulary::new(&fixture("tokenizer.json"), tokens, &[]).unwrap();
    let spec = Box::new(Spec { reasoning: None, rules: vec![rule] });
    Question::Grammar { spec, alphabet: vocabulary.alphabet(&[]) }
}

fn expresses(syntax: Syntax, definition: &str) -> Question {
    Question::Expression { syntax, definition: definition.to_owned() }
}

#[test]
fn a_process_takes_the_programs_of_a_checkpoint_or_those_of_clients_and_never_both() {
    let mut process = ready();
    for question in [tries(Grammar::any_json_object(), 1 << 16), expresses(Syntax::Regex, "a")] {
        let Some(Answer::Failed(failure)) = process.ask(&question) else { panic!("a model's process took a grammar") };
        assert_eq!(failure.code, FailureCode::Internal);
    }
    let mut process = Process::for_grammars();
    let expressed = process.ask(&expresses(Syntax::Lark, "start: \"a\" /b+/"));
    assert!(matches!(expressed, Some(Answer::Expression(Ok(expression))) if expression == "ab+"));
    for question in
        [Question::Tokenizer(tokenizer()), template(), Question::Text { text: "plain".into(), salt: Vec::new() }]
    {
        let Some(Answer::Failed(failure)) = process.ask(&question) else { panic!("a grammar process took a model") };
        assert_eq!(failure.code, FailureCode::Internal);
    }
    assert!(matches!(process.ask(&tries(Grammar::any_json_object(), 1 << 16)), Some(Answer::Compiles)));
}

/// A process' peak memory while `ask` ran, in bytes. It may have ended by then.
fn peak_of(process: &mut Process, ask: impl FnOnce(&mut Process)) -> u64 {
    let pid = process.0.id();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        loop {
            peak = peak.max(memory(pid).map_or(0, |memory| memory.peak));
            if is_over.recv_timeout(Duration::from_millis(2)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return peak;
            }
        }
    });
    ask(process);
    drop(over);
    let peak = watch.join().unwrap();
    assert!(peak > 0, "it was never seen");
    peak
}

/// Two thousand bytes whose only property has to match two dozen expressions at once, which takes hundreds of megabytes
/// per second.
pub(crate) fn merging() -> String {
    let part = |number: usize| {
        let pattern = format!("(a|b)*a(a|b){{{number}}}");
        json!({ "properties": { "x": {
            "type": "string", "minLength": number, "maxLength": 1_000 + number, "pattern": pattern } } })
    };
    json!({ "type": "object", "allOf": (0..24).map(part).collect::<Vec<_>>(), "required": ["x"] }).to_string()
}

#[cfg_attr(not(target_os = "linux"), ignore = "other kernels do not enforce the limit")]
#[test]
fn grammars_stay_within_half_a_gigabyte_and_large_honest_ones_fit() {
    let property = |number: usize| {
        let word = ["name", "path", "kind", "owner"][number % 4];
        let schema = match number % 4 {
            0 => json!({ "type": "string", "description": "The name by which it is known, as people write it." }),
            1 => json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "maxItems": 20 }),
            2 => json!({ "enum": ["file", "folder", "link", format!("kind-{number}")] }),
            _ => json!({ "type": ["integer", "null"], "description": "A number, or nothing where there is none." }),
        };
        (format!("{word}_{number}"), schema)
    };
    let object = |from: usize| {
        let properties: serde_json::Map<_, _> = (from..from + 100).map(property).collect();
        json!({ "type": "object", "properties": properties, "additionalProperties": false })
    };
    let objects: serde_json::Map<_, _> = (0..40).map(|group| (format!("group_{group}"), object(100 * group))).collect();
    let schema = json!({ "type": "object", "properties": objects, "required": ["group_0", "group_7"] }).to_string();
    assert!((300 << 10..512 << 10).contains(&schema.len()), "{} bytes", schema.len());
    let mut process = Process::for_grammars();
    let peak = peak_of(&mut process, |process| {
        let answer = process.ask(&tries(Grammar::json_schema(schema, false), 1 << 18));
        assert!(matches!(answer, Some(Answer::Compiles)), "{answer:?}");
    });
    println!("an honest schema: {} MiB", peak >> 20);
    assert!(peak <= 512 << 20, "{} MiB", peak >> 20);

    for (name, question) in [
        ("merging", tries(Grammar::json_schema(merging(), false), 1 << 18)),
        ("classes", expresses(Syntax::Regex, &format!("(?i){}", "[!-\u{10FFFF}]".repeat(1_000)))),
        ("letters", expresses(Syntax::Lark, &format!("start: /{}/", r"\PL".repeat(5_000)))),
    ] {
        let mut process = Process::for_grammars();
        let began = Instant::now();
        let peak = peak_of(&mut process, |process| {
            process.tell(&question).unwrap();
            // The server would have killed it by then.
            while process.0.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        println!("{name}: {} MiB, {:?}, {:?}", peak >> 20, began.elapsed(), process.0.try_wait());
        assert!(peak <= 512 << 20, "{name}: {} MiB", peak >> 20);
    }
}

#[test]
fn it_ends_with_its_server_whatever_it_does() {
    let mut process = ready();
    process.tell(&asks(&conversation(4 << 20))).unwrap();
    drop(process.0.stdin.take());
    let deadline = Instant::now() + Duration::from_secs(20);
    while process.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it outlives its server");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "prints figures"]
fn what_a_grammar_process_costs() {
    for tokens in [1 << 16, 1 << 18] {
        let question = tries(Grammar::any_json_object(), tokens);
        for (name, question) in [("a grammar", &question), ("an expression", &expresses(Syntax::Lark, "start: \"a\""))]
        {
            let mut took: Vec<Duration> = (0..50)
                .map(|_| {
                    let began = Instant::now();
                    let mut process = Process::for_grammars();
                    assert!(process.ask(question).is_some());
                    drop(process);
                    began.elapsed()
                })
                .collect();
            took.sort_unstable();
            println!("{name} with {tokens} tokens, from start to end: {:?}, at most {:?}", took[25], took[49]);
        }
    }
}

#[test]
#[ignore = "prints figures"]
fn what_a_round_trip_costs() {
    let (mut process, mut model) = (ready(), Model::new(&tokenizer()).unwrap());
    model.read_template(Some(&fixture("chat_template.jinja")), None).unwrap();
    for (bytes, rounds) in [(1_000, 1_000), (100_000, 100)] {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // Each text is new, like the last turn of a conversation.
            let mut conversation = conversation(bytes);
            conversation.turns[0].parts.push(Part::Text(format!("{round}")));
            let began = Instant::now();
            model.conversation(&conversation, None, &[], &[]).unwrap();
            here.push(began.elapsed());
            let began = Instant::now();
            assert!(matches!(process.ask(&asks(&conversation)), Some(Answer::Prompt(_))));
            there.push(began.elapsed());
        }
        here.sort_unstable();
        there.sort_unstable();
        println!("{bytes} bytes: in this process {:?}, in a prompt process {:?}", here[rounds / 2], there[rounds / 2]);
    }
}
