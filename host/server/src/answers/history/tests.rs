//! Prompts one after the other, and the reason that is told for each.

use super::*;
use crate::{
    chat::{Part, Role, Tool, Turn},
    fleet::DepartureReason,
};
use pensieve_protocol::job::AdapterUse;

/// A model whose tokens are bytes.
struct Bench {
    history: PromptHistory,
    vocabulary: Vocabulary,
}

#[derive(Clone, Default)]
struct Asked {
    system: String,
    tools: Vec<&'static str>,
    turns: Vec<String>,
    adapter: Option<AdapterUse>,
    salt: Vec<u8>,
    context: u32,
}

impl Asked {
    fn new(system: &str, turns: &[&str]) -> Self {
        let turns = turns.iter().map(|turn| (*turn).to_owned()).collect();
        Self { system: system.to_owned(), tools: vec!["read", "write"], turns, ..Self::default() }
    }

    fn conversation(&self) -> Conversation {
        let turn = |text: &String| Turn { role: Role::User, parts: vec![Part::Text(text.clone())] };
        let tool = |name: &&str| Tool { name: (*name).to_owned(), ..Tool::default() };
        let (turns, tools) = (self.turns.iter().map(turn).collect(), self.tools.iter().map(tool).collect());
        Conversation { system: self.system.clone(), turns, tools, ..Conversation::default() }
    }

    fn tokens(&self) -> Vec<u32> {
        let tools: String = self.tools.iter().map(|tool| format!("tool {tool}: {}\n", long(tool))).collect();
        let turns: String = self.turns.iter().map(|turn| format!("user\n{turn}\n")).collect();
        format!("{}\n{tools}{turns}assistant\n", self.system).bytes().map(u32::from).collect()
    }
}

/// Some 200 characters that occur nowhere else.
fn long(name: &str) -> String {
    let words: String = (0..20).map(|place| format!("{name}{place} in words, ")).collect();
    format!("{words}{name}")
}

impl Bench {
    fn new() -> Self {
        let tokens = |byte: u8| {
            let char = match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
                _ => char::from_u32(
                    256 + (0..byte).filter(|byte| !matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)).count()
                        as u32,
                )
                .unwrap(),
            };
            (char.to_string(), byte)
        };
        let vocabulary: HashMap<String, u8> = (0..=255).map(tokens).collect();
        let tokenizer = serde_json::json!({
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [] }, "added_tokens": [],
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true },
        });
        Self {
            history: PromptHistory::default(),
            vocabulary: Vocabulary::new(&tokenizer.to_string(), 256, &[]).unwrap(),
        }
    }

    /// The comparison of a prompt that has been computed.
    fn ask(&self, asked: &Asked) -> Comparison {
        let comparison = self.start(asked);
        comparison.computed();
        comparison
    }

    fn start(&self, asked: &Asked) -> Comparison {
        let job =
            Job { tokens: asked.tokens(), adapter: asked.adapter.clone(), salt: asked.salt.clone(), ..Job::default() };
        let outline = Outline::of(&Input::Chat(asked.conversation()));
        self.history.compare(&Arc::new(Prompt::of("model", asked.context, &job, outline)), &self.vocabulary)
    }
}

/// The kind, turn and text of a miss, of which everything in common was found.
fn told(comparison: &Comparison) -> Option<(&'static str, Option<u32>, String)> {
    let miss = comparison.miss(comparison.common as u32, Losses::default())?;
    assert_eq!(miss.at_token as usize, comparison.common);
    Some((miss.kind.name(), miss.message, miss.text))
}

#[test]
fn a_conversation_that_goes_on_needs_no_reason() {
    let bench = Bench::new();
    let first = Asked::new(&long("system"), &["Hello"]);
    assert_eq!(told(&bench.ask(&first)), Some(("first_time", None, String::new())));
    let second = Asked::new(&long("system"), &["Hello", &long("reply")]);
    assert_eq!(told(&bench.ask(&second)), None);
    assert_eq!(told(&bench.ask(&second)), None, "the same again");
    let evicted = bench.ask(&second).miss(16, Losses::default()).unwrap();
    assert_eq!((evicted.kind, evicted.at_token), (MissKind::Evicted, 16));
}

/// Of requests that are cancelled before their first token.
#[test]
fn a_prompt_that_was_never_computed_hides_no_earlier_one() {
    let eviction = Eviction { ago: Duration::from_secs(1), by: EvictedBy::OtherClient };
    let evicted = || Losses { eviction: Some(eviction.clone()), departure: None };
    let turns = [long("question"), long("reply"), long("more"), long("and more")];
    let at = |time: &str, count: usize| {
        let turns = turns[..count].to_vec();
        Asked { turns, ..Asked::new(&format!("The time is {time} now.\n{}", long("system")), &[]) }
    };
    let bench = Bench::new();
    bench.ask(&at("12:00", 1));
    let computed = bench.start(&at("12:00", 2)).common as u32;
    bench.start(&at("12:00", 3));
    let next = bench.start(&at("12:00", 4));
    assert_eq!(next.miss(computed, Losses::default()), None, "all that was computed is found");
    assert_eq!(next.miss(16, evicted()).unwrap().kind, MissKind::Evicted);
    // What had changed before the cancelled request is still why nothing of it is found.
    let bench = Bench::new();
    bench.ask(&at("12:00", 2));
    let changed = bench.start(&at("12:01", 2)).common as u32;
    let next = bench.start(&at("12:01", 4));
    let miss = next.miss(changed, Losses::default()).unwrap();
    assert_eq!(
        (miss.kind, miss.at_token, miss.text.as_str()),
        (MissKind::ChangedSystem, changed, "The time is 12:01 now.")
    );
    assert_eq!(next.miss(next.common as u32, Losses::default()), None, "unless it was computed in part");
}

#[test]
fn a_changed_part_is_named() {
    let at = |time: &str| format!("Be kind.\nThe time is {time} now.\n{}", long("system"));
    let first = Asked::new(&at("12:00"), &[&long("one"), &long("two"), &long("three")]);
    let turn = |text: String| Asked { turns: vec![long("one"), text, long("three")], ..first.clone() };
    let cases = [
        (Asked { system: at("12:01"), ..first.clone() }, ("changed_system", None, "The time is 12:01")),
        (Asked { tools: vec!["read", "search", "write"], ..first.clone() }, ("changed_tools", None, "tool search: ")),
        (turn(long("another")), ("rewritten_history", Some(1), "")),
        (turn(format!("{}left: 17 tokens", &long("two")[..150])), ("rewritten_history", Some(1), "")),
        (
            Asked { adapter: Some(AdapterUse { name: "poet".into(), scale: 1.0 }), ..first.clone() },
            ("other_adapter", None, ""),
        ),
        (Asked { salt: b"another key".to_vec(), ..first.clone() }, ("first_time", None, "")),
        (Asked::new(&at("12:00"), &[&long("a question")]), ("first_time", Some(0), "")),
        (Asked::new(&long("another agent"), &[&long("a question")]), ("first_time", None, "")),
    ];
    for (second, (kind, message, text)) in cases {
        let bench = Bench::new();
        bench.ask(&first);
        let told = told(&bench.ask(&second)).unwrap();
        assert_eq!((told.0, told.1), (kind, message), "{told:?}");
        assert!(told.2.starts_with(text), "{told:?}");
    }
}

#[test]
fn a_line_that_changes_every_time_is_found_every_time() {
    let bench = Bench::new();
    let mut turns = vec![long("question")];
    for count in 0..5 {
        let system = format!("session {count}{count}{count}\n{}", long("system"));
        turns.push(long(&format!("turn {count}")));
        let asked = Asked { system, turns: turns.clone(), ..Asked::new("", &[]) };
        let told = told(&bench.ask(&asked)).unwrap();
        let expected = if count == 0 {
            ("first_time", String::new())
        } else {
            ("changed_system", format!("session {count}{count}{count}"))
        };
        assert_eq!((told.0, told.2), expected);
    }
}

#[test]
fn what_is_still_being_computed_has_not_been_evicted() {
    let bench = Bench::new();
    let asked = Asked::new(&long("system"), &["Hello"]);
    bench.start(&asked);
    assert_eq!(bench.start(&asked).miss(0, Losses::default()), None);
}

#[test]
fn only_so_many_prompts_are_remembered() {
    let bench = Bench::new();
    for place in 0..PROMPTS_MAX + 10 {
        bench.ask(&Asked { salt: vec![place as u8, (place >> 8) as u8], ..Asked::new(&long("system"), &["Hello"]) });
    }
    assert_eq!(bench.history.prompts.lock().unwrap().len(), PROMPTS_MAX);
}

#[test]
fn a_subagent_with_tools_of_its_own_leaves_its_conversation_known() {
    let bench = Bench::new();
    let first = Asked::new(&long("system"), &["environment", &long("question")]);
    assert_eq!(told(&bench.ask(&first)), Some(("first_time", None, String::new())));
    let subagent = Asked { tools: vec!["read"], ..Asked::new(&long("system"), &["environment", &long("task")]) };
    assert_eq!(told(&bench.ask(&subagent)).map(|(kind, ..)| kind), Some("changed_tools"));
    let next = Asked::new(&long("system"), &["environment", &long("question"), &long("reply")]);
    assert_eq!(told(&bench.ask(&next)), None);
}

#[test]
fn nothing_is_told_of_a_prompt_that_was_found_though_no_earlier_one_is_like_it() {
    let bench = Bench::new();
    bench.ask(&Asked::new(&long("system"), &[&long("one")]));
    let other = bench.ask(&Asked::new(&long("system"), &[&long("two"), &long("three")]));
    assert!(other.miss(other.common as u32, Losses::default()).is_some());
    assert_eq!(other.miss(other.common as u32 + LOSS_MIN as u32, Losses::default()), None);
}

#[test]
fn a_lost_prompt_is_told_with_what_took_it() {
    let bench = Bench::new();
    let first = Asked { context: 4096, ..Asked::new(&long("system"), &[&long("question")]) };
    bench.ask(&first);
    let eviction = Eviction { ago: Duration::from_secs(3), by: EvictedBy::OtherClient };
    let by_worker = Losses { eviction: Some(eviction.clone()), departure: None };
    let miss = bench.ask(&first).miss(16, by_worker.clone()).unwrap();
    assert_eq!((miss.kind, miss.eviction), (MissKind::Evicted, Some(eviction.clone())));
    // Also before the place where a prompt differs.
    let other = Asked { turns: vec![long("another")], ..first.clone() };
    assert_eq!(bench.ask(&other).miss(16, by_worker).unwrap().eviction, Some(eviction));
    let gone = || Departure { at: Instant::now(), reason: DepartureReason::Idle };
    let comparison = bench.ask(&first);
    let unloaded = Losses { eviction: None, departure: Some(gone()) };
    let miss = comparison.miss(0, unloaded.clone()).unwrap();
    assert_eq!(miss.eviction.map(|eviction| eviction.by), Some(EvictedBy::Unload("idle")));
    // One before the prompt was computed again is no reason.
    bench.ask(&first);
    assert_eq!(bench.ask(&first).miss(0, unloaded).unwrap().eviction, None);
    let shorter = Asked { context: 2048, ..first };
    let miss = bench.ask(&shorter).miss(0, Losses { eviction: None, departure: Some(gone()) }).unwrap();
    assert_eq!(miss.kind, MissKind::OtherContext);
}

#[test]
fn a_template_that_writes_the_same_turns_differently_is_named() {
    let bench = Bench::new();
    let vocabulary = &bench.vocabulary;
    let asked = Asked::new(&long("system"), &[&long("one"), &long("two"), &long("three")]);
    let outline = |asked: &Asked| Outline::of(&Input::Chat(asked.conversation()));
    let ask = |tokens: Vec<u32>, outline: Outline| {
        let job = Job { tokens, ..Job::default() };
        let comparison = bench.history.compare(&Arc::new(Prompt::of("model", 0, &job, outline)), vocabulary);
        comparison.computed();
        told(&comparison).map(|(kind, ..)| kind)
    };
    ask(asked.tokens(), outline(&asked));
    let next = Asked { turns: [asked.turns.clone(), vec![long("four")]].concat(), ..asked.clone() };
    // The reasoning in the first turn is left out.
    let shorter = Asked { turns: next.turns.iter().map(|turn| turn[60..].to_owned()).collect(), ..next.clone() };
    assert_eq!(ask(shorter.tokens(), outline(&next)), Some("rewritten_by_template"));
    let variables = Outline { variables: 1, ..outline(&next) };
    assert_eq!(ask(next.tokens(), variables), Some("changed_template"));
}

#[test]
fn a_prompt_is_compared_with_the_one_that_a_client_names() {
    let bench = Bench::new();
    let prompt = |model: &str, asked: &Asked| {
        let job = Job { tokens: asked.tokens(), salt: asked.salt.clone(), ..Job::default() };
        Arc::new(Prompt::of(model, 0, &job, Outline::of(&Input::Chat(asked.conversation()))))
    };
    let first = Asked::new(&long("system"), &[&long("one"), &long("two")]);
    bench.history.name("msg_1", prompt("a", &first));
    let kind = |id: &str, model: &str, asked: &Asked| {
        bench.history.divergence(id, &prompt(model, asked)).map(|divergence| divergence.kind)
    };
    let next = Asked { turns: [first.turns.clone(), vec![long("three")]].concat(), ..first.clone() };
    assert_eq!(kind("msg_1", "a", &next), None);
    assert_eq!(kind("msg_2", "a", &next), Some(DivergenceKind::Unknown));
    assert_eq!(kind("msg_1", "b", &next), Some(DivergenceKind::Model));
    assert_eq!(kind("msg_1", "a", &Asked { salt: vec![1], ..next.clone() }), Some(DivergenceKind::Unknown));
    assert_eq!(kind("msg_1", "a", &Asked { system: long("other"), ..next.clone() }), Some(DivergenceKind::System));
    assert_eq!(kind("msg_1", "a", &Asked { tools: vec!["read"], ..next.clone() }), Some(DivergenceKind::Tools));
    let rewritten = Asked { turns: vec![long("one"), long("other"), long("three")], ..next };
    let divergence = bench.history.divergence("msg_1", &prompt("a", &rewritten)).unwrap();
    assert_eq!(divergence.kind, DivergenceKind::Messages);
    assert!(divergence.missed_tokens as usize > long("two").len());
}
