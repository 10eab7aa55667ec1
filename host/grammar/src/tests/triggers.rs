//! Rules begin and end at byte boundaries, however the text is split into tokens.

use std::sync::Arc;

use serde_json::json;

use super::fixture::*;
use crate::Constraint;
use pensieve_protocol::{
    grammar::{Grammar, Marker, Reasoning, Rule, Spec, Then, Trigger},
    vocabulary::Vocabulary,
};

fn text(marker: &str) -> Marker {
    Marker::Text(marker.to_owned())
}

fn call() -> Grammar {
    schema(
        &json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"], "additionalProperties": false }),
    )
}

/// Free text in which `<tool_call>` begins a call, any number of times.
fn calls(vocabulary: &Arc<Vocabulary>, then: Then) -> Constraint {
    let rule = Rule { close: Some(text("</tool_call>")), ..rule(Trigger::After(text("<tool_call>")), call(), then) };
    compiler(vocabulary).compile(&Spec { reasoning: None, rules: vec![rule] }).unwrap()
}

#[test]
fn a_rule_begins_after_a_marker_that_is_spread_over_tokens() {
    for byte_level in [true, false] {
        let vocabulary = vocabulary(byte_level);
        let mut constraint = calls(&vocabulary, Then::Stop);
        assert!(constraint.mask().unwrap().is_none());
        write(&vocabulary, &mut constraint, &["a", "}", "<", "<tool", "_call>"]);
        assert!(
            !allows(&mut constraint, token(&vocabulary, "x")) && allows(&mut constraint, token(&vocabulary, "{\""))
        );
        write(&vocabulary, &mut constraint, &["{\"", "a", "\": ", "12", "}\n", "</tool_call>"]);
        assert!(constraint.is_complete());
    }
}

#[test]
fn a_rule_holds_for_the_rest_of_the_token_that_completes_its_marker() {
    for byte_level in [true, false] {
        let vocabulary = vocabulary(byte_level);
        let mut constraint = calls(&vocabulary, Then::Stop);
        write(&vocabulary, &mut constraint, &["<tool", "_", "c", "a", "l", "l"]);
        // All of these complete the marker; the bytes after it must match the grammar.
        assert!(allows(&mut constraint, token(&vocabulary, ">")) && allows(&mut constraint, token(&vocabulary, ">{")));
        assert!(
            allows(&mut constraint, token(&vocabulary, ">\n")) && allows(&mut constraint, token(&vocabulary, ">\n{\""))
        );
        assert!(!allows(&mut constraint, token(&vocabulary, "><")), "a call cannot begin with this");
        assert!(constraint.clone().accept(token(&vocabulary, "><")).is_err());
        assert!(allows(&mut constraint, token(&vocabulary, " the")), "no marker after all");
        write(&vocabulary, &mut constraint.clone(), &[" the", "><", "</"]);
        write(&vocabulary, &mut constraint, &[">\n{\"", "a", "\": "]);
        assert!(!allows(&mut constraint, token(&vocabulary, "true")));
    }
}

#[test]
fn triggers_count_again_after_a_rule_that_resumes() {
    let vocabulary = vocabulary(true);
    let mut constraint = calls(&vocabulary, Then::Resume);
    for _ in 0..3 {
        write(&vocabulary, &mut constraint, &["he", "<tool", "_call>", "{\"", "a", "\": ", "1"]);
        assert!(!allows(&mut constraint, END));
        write(&vocabulary, &mut constraint, &["}", "</tool_call>"]);
        assert!(!constraint.is_complete() && constraint.mask().unwrap().is_none());
    }
    constraint.accept(END).unwrap();
    assert!(constraint.is_complete());
}

#[test]
fn free_text_may_begin_within_the_token_that_ends_a_grammar() {
    let vocabulary = vocabulary(true);
    let after =
        |grammar| Spec { reasoning: None, rules: vec![rule(Trigger::After(text("<think>")), grammar, Then::Resume)] };
    let compiler = compiler(&vocabulary);

    let mut number = compiler.compile(&after(Grammar::Regex("[0-9]+(\\.[0-9]{2,})?".to_owned()))).unwrap();
    write(&vocabulary, &mut number, &["<think>", "12"]);
    assert!(number.mask().unwrap().is_none(), "the number may end here");
    write(&vocabulary, &mut number.clone(), &["\", \"", "<think>", "1"]);
    write(&vocabulary, &mut number, &["3.", "1"]);
    assert!(!allows(&mut number, token(&vocabulary, "a")), "the number has gone on, and cannot end here");
    write(&vocabulary, &mut number, &["1"]);
    // The end of one text and the next trigger, in one token.
    write(&vocabulary, &mut number, &["<think>"]);
    assert!(!allows(&mut number, token(&vocabulary, "a")) && allows(&mut number, token(&vocabulary, "00")));

    let mut marker = compiler.compile(&after(Grammar::Regex("x".to_owned()))).unwrap();
    write(&vocabulary, &mut marker, &["<think>", "x", "y"]);
}

#[test]
fn a_token_can_be_a_trigger_and_leave_a_grammar() {
    let vocabulary = vocabulary(true);
    let spec = Spec {
        reasoning: None,
        rules: vec![rule(Trigger::After(Marker::Token(SPECIAL)), Grammar::Regex("[a-z]+".to_owned()), Then::Resume)],
    };
    let mut constraint = compiler(&vocabulary).compile(&spec).unwrap();
    write(&vocabulary, &mut constraint, &["[", "1", "[TOOL]"]);
    assert!(!allows(&mut constraint, token(&vocabulary, "1")));
    write(&vocabulary, &mut constraint, &["he", "[TOOL]"]);
    assert!(!allows(&mut constraint, token(&vocabulary, "1")), "the token begins the rule once more");
    write(&vocabulary, &mut constraint, &["a", "1"]);
    assert!(constraint.mask().unwrap().is_none());
}

#[test]
fn markers_select_among_rules() {
    let vocabulary = vocabulary(true);
    let after =
        |marker: &str, regex: &str| rule(Trigger::After(text(marker)), Grammar::Regex(regex.to_owned()), Then::Stop);
    let spec = Spec {
        reasoning: None,
        rules: vec![after("call a:", "[0-9]"), after("call b:", "[x-z]"), after("all b:", "[A-C]")],
    };
    let constraint = compiler(&vocabulary).compile(&spec).unwrap();
    for (tool, digit, letter) in [("a", true, false), ("b", false, true)] {
        let mut constraint = constraint.clone();
        write(&vocabulary, &mut constraint, &["c", "a", "l", "l", " ", tool, ":"]);
        assert_eq!(
            (allows(&mut constraint, token(&vocabulary, "0")), allows(&mut constraint, token(&vocabulary, "y"))),
            (digit, letter)
        );
    }
}

#[test]
fn a_token_with_a_whole_marker_in_it_is_barred_if_it_goes_on_wrongly() {
    let vocabulary = vocabulary(true);
    let spec = |regex: &str| Spec {
        reasoning: None,
        rules: vec![rule(Trigger::After(text("</tool_call>")), Grammar::Regex(regex.to_owned()), Then::Stop)],
    };
    let compiler = compiler(&vocabulary);
    let whole = token(&vocabulary, "x</tool_call>y");
    let mut digits = compiler.compile(&spec("[0-9]+")).unwrap();
    assert!(!allows(&mut digits, whole) && allows(&mut digits, token(&vocabulary, "</tool_call>")));
    let mut letters = compiler.compile(&spec("yes|no")).unwrap();
    assert!(letters.mask().unwrap().is_none());
    write(&vocabulary, &mut letters, &["x</tool_call>y"]);
    write(&vocabulary, &mut letters, &["e", "s"]);
    assert!(letters.is_complete());
}

/// The token `x</tool_call>y` contains a whole trigger, and its `y` does not match `[0-9]+`.
#[test]
fn such_a_token_is_barred_wherever_free_text_may_come() {
    let vocabulary = vocabulary(true);
    let whole = token(&vocabulary, "x</tool_call>y");
    let digits = rule(Trigger::After(text("</tool_call>")), Grammar::Regex("[0-9]+".to_owned()), Then::Resume);
    let compiler = compiler(&vocabulary);

    let reasoning = Reasoning { begin: Some(text("<think>")), end: text("</think>") };
    let spec = Spec { reasoning: Some(reasoning), rules: vec![digits.clone()] };
    let mut opening = compiler.compile(&spec).unwrap();
    assert!(!allows(&mut opening, whole), "an answer may begin here");
    assert!(allows(&mut opening, token(&vocabulary, "<think>")) && allows(&mut opening, END));
    write(&vocabulary, &mut opening, &["</tool_call>", "1"]);

    let mut ended = compiler.compile(&Spec { reasoning: None, rules: vec![digits] }).unwrap();
    write(&vocabulary, &mut ended, &["</tool_call>", "1"]);
    assert!(!allows(&mut ended, whole), "free text may follow the number");
    assert!(allows(&mut ended, token(&vocabulary, "12")) && allows(&mut ended, END));
    write(&vocabulary, &mut ended, &["2", "</tool_call>", "00", "x"]);

    // Where the token continues the grammar's text, it is not a trigger.
    let any = rule(Trigger::After(text("<think>")), Grammar::Regex("[a-z<>/_]+".to_owned()), Then::Resume);
    let digits = rule(Trigger::After(text("</tool_call>")), Grammar::Regex("[0-9]+".to_owned()), Then::Resume);
    let mut within = compiler.compile(&Spec { reasoning: None, rules: vec![any, digits] }).unwrap();
    write(&vocabulary, &mut within, &["<think>", "x", "x</tool_call>y"]);
}

#[test]
fn nothing_counts_within_reasoning_and_the_answer_begins_after_it() {
    let vocabulary = vocabulary(true);
    let opener = Marker::Token(token(&vocabulary, "<think>"));
    for begin in [None, Some(text("<think>")), Some(opener)] {
        let end = text("</think>");
        let opened = begin.is_none();
        let spec =
            Spec { reasoning: Some(Reasoning { begin, end }), rules: vec![rule(Trigger::Start, call(), Then::Stop)] };
        let mut constraint = compiler(&vocabulary).compile(&spec).unwrap();
        if opened {
            // A required answer must not be skipped by ending the turn.
            assert!(allows(&mut constraint, token(&vocabulary, "x")) && !allows(&mut constraint, END));
        } else {
            assert!(
                allows(&mut constraint, token(&vocabulary, "{"))
                    && !allows(&mut constraint, token(&vocabulary, "<tool"))
            );
            write(&vocabulary, &mut constraint.clone(), &["{\"", "a"]);
            write(&vocabulary, &mut constraint.clone(), &["\n", "<", "t", "h", "in", "k", ">\n", "x"]);
            let mut half = constraint.clone();
            write(&vocabulary, &mut half, &["<", "t"]);
            assert!(
                !allows(&mut half, token(&vocabulary, "{"))
                    && !allows(&mut half, token(&vocabulary, "x"))
                    && !allows(&mut half, END)
            );
            assert!(half.accept(token(&vocabulary, "x")).is_err());
            write(&vocabulary, &mut constraint, &["<think>"]);
        }
        write(&vocabulary, &mut constraint, &["{", "<think>", " the", "</"]);
        write(&vocabulary, &mut constraint, &["think"]);
        assert!(
            allows(&mut constraint, token(&vocabulary, ">\n")) && allows(&mut constraint, token(&vocabulary, ">{"))
        );
        assert!(!allows(&mut constraint, token(&vocabulary, "><")));
        write(&vocabulary, &mut constraint, &[">\n", "\n"]);
        assert!(!allows(&mut constraint, token(&vocabulary, "x")));
        write(&vocabulary, &mut constraint, &["{\"", "a", "\": ", "1", "}"]);
        assert!(constraint.is_complete());
    }
}

#[test]
fn optional_reasoning_leaves_triggers_alone_when_it_does_not_come() {
    let vocabulary = vocabulary(true);
    let spec = Spec {
        reasoning: Some(Reasoning { begin: Some(text("<think>")), end: text("</think>") }),
        rules: vec![rule(Trigger::After(text("<tool_call>")), call(), Then::Stop)],
    };
    let constraint = compiler(&vocabulary).compile(&spec).unwrap();
    let braced = |constraint: &mut Constraint| !allows(constraint, token(&vocabulary, "x"));

    let mut direct = constraint.clone();
    write(&vocabulary, &mut direct, &["<tool", "_call>"]);
    assert!(braced(&mut direct));

    let mut thinking = constraint.clone();
    write(&vocabulary, &mut thinking, &["\n", "<think>", "<tool", "_call>"]);
    assert!(!braced(&mut thinking), "the marker was a thought");
    write(&vocabulary, &mut thinking, &["</think>", "he", "<tool", "_call>"]);
    assert!(braced(&mut thinking));

    let mut late = constraint;
    write(&vocabulary, &mut late, &["he", "<think>", "<tool", "_call>"]);
    assert!(braced(&mut late), "reasoning opens an answer, it does not stand in it");
}
