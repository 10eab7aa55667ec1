//! Grammars, stop strings and triggers in a real worker.

use pensieve_protocol::{
    grammar::{Grammar, Marker, Part, Rule, Spec, Then, Trigger},
    job::{FailureCode, Finish, Job},
};
use std::time::Duration;

use crate::worker::{Worker, faults, job, prompt};

fn from_the_start(grammar: Grammar) -> Option<Spec> {
    let rule = Rule::from_start(Part::new("", grammar), Then::Stop);
    Some(Spec { reasoning: None, rules: vec![rule] })
}

#[test]
fn a_stream_keeps_to_its_grammar_beside_others_that_are_free() {
    let mut worker = Worker::start(faults());
    let free = job(1, prompt(1, 40), 60);
    worker.submit(&free);
    let grammar = from_the_start(Grammar::Regex("[0-9]{3}-[A-F]{4}".into()));
    let bound = worker.run(&Job { grammar, ..job(2, prompt(2, 40), 60) });
    assert_eq!(bound.reason(), Finish::GrammarDone);
    let text = String::from_utf8(bound.text).unwrap();
    let legal = |(place, char): (usize, char)| match place {
        0..=2 => char.is_ascii_digit(),
        3 => char == '-',
        _ => ('A'..='F').contains(&char),
    };
    assert!(text.len() == 8 && text.chars().enumerate().all(legal), "{text}");
    let beside = worker.outcome(1);
    assert_eq!(beside.ids, worker.run(&Job { salt: b"alone".to_vec(), ..job(3, prompt(1, 40), 60) }).ids);
}

#[test]
fn json_of_a_schema_is_complete_and_fits() {
    let mut worker = Worker::start(faults());
    let schema = r#"{"type":"object","properties":{"ok":{"type":"boolean"},"n":{"enum":[1,22]}},"required":["ok","n"],"additionalProperties":false}"#;
    let grammar = from_the_start(Grammar::json_schema(schema, false));
    let outcome = worker.run(&Job { grammar, ..job(1, prompt(1, 40), 400) });
    let value: serde_json::Value = serde_json::from_slice(&outcome.text).unwrap();
    assert!(value["ok"].is_boolean() && [1, 22].contains(&value["n"].as_u64().unwrap()), "{value}");
}

#[test]
fn a_grammar_begins_to_hold_within_the_step_of_its_trigger() {
    let mut worker = Worker::start(faults());
    let whole = worker.run(&job(1, prompt(3, 40), 60));
    let marker = String::from_utf8(whole.text[10..13].to_vec()).unwrap();
    let at = String::from_utf8(whole.text.clone()).unwrap().find(&marker).unwrap() + marker.len();
    let rule = Rule {
        field: String::new(),
        trigger: Trigger::After(Marker::Text(marker)),
        open: None,
        grammar: Grammar::Regex("[0-9]{5}".into()),
        close: None,
        then: Then::Stop,
    };
    let grammar = Some(Spec { reasoning: None, rules: vec![rule] });
    let outcome = worker.run(&Job { grammar, ..job(2, prompt(3, 40), 60) });
    assert_eq!(outcome.text[..at], whole.text[..at]);
    assert_eq!(outcome.text.len(), at + 5);
    assert!(outcome.text[at..].iter().all(u8::is_ascii_digit));
    assert_eq!(outcome.reason(), Finish::GrammarDone);
}

#[test]
fn a_grammar_that_is_none_is_the_clients_fault() {
    let mut worker = Worker::start(faults());
    let grammar = from_the_start(Grammar::Regex("(((".into()));
    let refused = worker.run(&Job { grammar, ..job(1, prompt(1, 40), 60) });
    assert_eq!(refused.failure().code, FailureCode::Invalid, "{}", refused.failure());
}

#[test]
fn jobs_that_wait_for_their_grammar_can_be_cancelled_and_run_out_of_time() {
    let mut worker = Worker::start(faults());
    let slow = || from_the_start(Grammar::Regex(format!("({}){{900}}", "(a|b|ab|ba)*c".repeat(50))));
    worker.submit(&Job { grammar: slow(), ..job(1, prompt(1, 40), 60) });
    worker.send(&pensieve_protocol::wire::Command::Cancel { id: 1 });
    let outcome = worker.outcome(1);
    // Whichever came first, the job has ended; no step was ever held up.
    assert!(outcome.end.as_ref().is_ok_and(|(reason, _)| *reason == Finish::Cancelled) || outcome.end.is_err());
    let deadline = Some(Duration::ZERO);
    let late = worker.run(&Job { grammar: slow(), deadline, ..job(2, prompt(1, 40), 60) });
    assert!(late.end.as_ref().is_ok_and(|(reason, _)| *reason == Finish::Deadline) || late.end.is_err());
    assert_eq!(worker.run(&job(3, prompt(1, 40), 5)).ids.len(), 5);
}
