//! Edits of conversations: what of them is left, and what is told of it.

use super::*;
use crate::chat::{Role, Turn};

/// A conversation in words: `s:`, `q:` and `a:` are texts of the system, the user and the model, `t:` is a thought, `c:NAME` a
/// call, and `r:` the result of the last call. Adjacent parts of one role are one turn.
fn conversation(words: &str) -> Conversation {
    let mut turns: Vec<Turn> = Vec::new();
    let mut calls = 0;
    for word in words.split_whitespace() {
        let (kind, text) = word.split_once(':').unwrap();
        let text = text.to_owned();
        let (role, part) = match kind {
            "s" => (Role::System, Part::Text(text)),
            "q" => (Role::User, Part::Text(text)),
            "a" => (Role::Assistant, Part::Text(text)),
            "t" => (Role::Assistant, Part::Thinking(text)),
            "c" => {
                calls += 1;
                let arguments = json!({ "path": "x".repeat(40) });
                (Role::Assistant, Part::ToolCall { id: calls.to_string(), name: text, arguments })
            }
            _ => (Role::User, Part::ToolResult { id: calls.to_string(), text, images: Vec::new(), is_error: false }),
        };
        match turns.last_mut().filter(|turn| turn.role == role && kind != "q") {
            Some(turn) => turn.parts.push(part),
            None => turns.push(Turn { role, parts: vec![part] }),
        }
    }
    Conversation { turns, ..Conversation::default() }
}

/// The conversation in the same words; `-` for what was cleared.
fn words(conversation: &Conversation) -> String {
    let word = |(role, part): (Role, &Part)| match (role, part) {
        (Role::System, Part::Text(text)) => format!("s:{text}"),
        (Role::User, Part::Text(text)) => format!("q:{text}"),
        (Role::Assistant, Part::Text(text)) => format!("a:{text}"),
        (_, Part::Thinking(text)) => format!("t:{text}"),
        (_, Part::ToolCall { name, arguments, .. }) => {
            format!("c:{name}{}", if *arguments == json!({}) { "-" } else { "" })
        }
        (_, Part::Image(item)) => format!("i:{item}"),
        (_, Part::ToolResult { text, .. }) => format!("r:{}", if text == CLEARED { "-" } else { text }),
    };
    let parts = conversation.turns.iter().flat_map(|turn| turn.parts.iter().map(|part| (turn.role, part)));
    parts.map(word).collect::<Vec<_>>().join(" ")
}

/// Edits a conversation whose tokens are letters.
fn edited(before: &str, edits: &[ContextEdit], room: u32) -> (String, Vec<AppliedEdit>, Option<Compaction>) {
    let mut conversation = conversation(before);
    let lengths: Vec<u32> = sizes::texts(&conversation).iter().map(|text| text.len() as u32).collect();
    let (applied, compaction) = edit(&mut conversation, edits, &lengths, room);
    (words(&conversation), applied, compaction)
}

fn clearing(tokens: u32) -> ToolClearing {
    ToolClearing {
        trigger: ClearTrigger::InputTokens(tokens),
        keep: 1,
        at_least: None,
        exclude: Vec::new(),
        inputs: ClearedInputs::None,
    }
}

#[test]
fn results_are_cleared_with_the_inputs_that_were_asked_for() {
    let long = "x".repeat(200);
    let before = format!("q:go c:ls r:{long} c:cat r:{long} c:ls r:{long}");
    let saved = 200 - CLEARED.len() as u32 / 4;
    let input = text_of("ls", &json!({ "path": "x".repeat(40) })).len() as u32;
    for (edit, expect, uses, tokens) in [
        (clearing(10_000), before.clone(), 0, 0),
        (clearing(500), format!("q:go c:ls r:- c:cat r:- c:ls r:{long}"), 2, 2 * saved),
        (
            ToolClearing { inputs: ClearedInputs::All, ..clearing(500) },
            format!("q:go c:ls- r:- c:cat- r:- c:ls r:{long}"),
            2,
            2 * (saved + input) + 1,
        ),
        (
            ToolClearing { inputs: ClearedInputs::Of(vec!["ls".into()]), ..clearing(500) },
            format!("q:go c:ls- r:- c:cat r:- c:ls r:{long}"),
            2,
            2 * saved + input,
        ),
        (
            ToolClearing { exclude: vec!["ls".into()], ..clearing(500) },
            format!("q:go c:ls r:{long} c:cat r:- c:ls r:{long}"),
            1,
            saved,
        ),
        (
            ToolClearing { trigger: ClearTrigger::ToolUses(2), keep: 0, ..clearing(0) },
            "q:go c:ls r:- c:cat r:- c:ls r:-".to_owned(),
            3,
            3 * saved,
        ),
    ] {
        let (after, applied, compaction) = edited(&before, &[ContextEdit::ClearToolUses(edit.clone())], 10_000);
        assert_eq!(after, expect, "{edit:?}");
        let expect = (uses > 0).then_some(AppliedEdit::ClearedToolUses { uses, tokens });
        assert_eq!((applied, compaction), (Vec::from_iter(expect), None), "{edit:?}");
    }
    // A context that is full clears whatever the trigger.
    let (after, ..) = edited(&before, &[ContextEdit::ClearToolUses(clearing(10_000))], 500);
    assert_eq!(after.matches("r:-").count(), 2, "{after}");
    // A short result stays, as the note would be longer.
    let (after, applied, _) = edited("q:go c:ls r:ok c:ls r:ok", &[ContextEdit::ClearToolUses(clearing(1))], 10_000);
    assert_eq!((after.as_str(), applied), ("q:go c:ls r:ok c:ls r:ok", Vec::new()));
}

#[test]
fn the_latest_turns_with_reasoning_keep_it() {
    let before = "q:1 t:aa c:ls r:x t:bb a:one q:2 a:two q:3 t:ccc a:three q:4";
    for (keep, expect, applied) in
        [(1, "q:1 c:ls r:x a:one q:2 a:two q:3 t:ccc a:three q:4", Some((1, 4))), (2, before, None), (9, before, None)]
    {
        let (after, edits, _) = edited(before, &[ContextEdit::ClearThinking { keep }], 10_000);
        assert_eq!(after, expect);
        let applied = applied.map(|(turns, tokens)| AppliedEdit::ClearedThinking { turns, tokens });
        assert_eq!(edits, Vec::from_iter(applied));
    }
    // The turn that goes on is the latest one.
    let (after, ..) = edited("q:1 t:a a:b q:2 t:c c:ls r:x", &[ContextEdit::ClearThinking { keep: 1 }], 10_000);
    assert_eq!(after, "q:1 a:b q:2 t:c c:ls r:x");
}

#[test]
fn the_oldest_turns_go_but_for_instructions_and_the_question_in_work() {
    let long = "x".repeat(100);
    let before = format!("s:be-brief q:old a:{long} q:do c:ls r:{long} c:ls r:{long} c:ls r:{long}");
    for (room, expect) in [(10_000, before.clone()), (500, format!("s:be-brief q:do c:ls r:{long}"))] {
        let (after, applied, _) = edited(&before, &[ContextEdit::Truncate], room);
        assert_eq!(after, expect, "{room}");
        let turns = applied.iter().map(|edit| match edit {
            AppliedEdit::Truncated { turns, .. } => *turns,
            other => panic!("{other:?}"),
        });
        assert_eq!(turns.sum::<u32>(), if expect == before { 0 } else { 6 });
    }
}

#[test]
fn a_summary_is_due_after_clearing_and_instead_of_leaving_out() {
    let long = "x".repeat(200);
    let before = format!("q:go c:ls r:{long} c:ls r:{long}");
    let compact = |trigger| ContextEdit::Compact(Compaction { trigger, ..Compaction::default() });
    let clear = ContextEdit::ClearToolUses(clearing(300));
    for (edits, expect) in [
        (vec![compact(Some(1000))], None),
        (vec![compact(Some(300))], Some(300)),
        (vec![compact(None)], None),
        (vec![compact(Some(450)), clear.clone()], None),
        (vec![compact(Some(300)), clear], Some(300)),
        (vec![ContextEdit::Compact(Compaction::now(None))], Some(2000)),
    ] {
        let (after, _, due) = edited(&before, &edits, 2000);
        assert_eq!(due.and_then(|compaction| compaction.trigger), expect, "{edits:?}");
        assert!(after.starts_with("q:go c:ls r:"));
    }
    let (after, applied, due) = edited(&before, &[ContextEdit::Truncate, compact(None)], 300);
    assert_eq!((after, applied, due.and_then(|it| it.trigger)), (before, Vec::new(), Some(300)));
}
