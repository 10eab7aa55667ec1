//! Plans for conversations in letters.

use super::*;

/// A conversation in letters: `s` a system message, `q` a question, `r` results (10 uses of the number), `a` an answer; each
/// with its tokens, an answer with its thoughts after a plus, and results with the input of the call before after a caret.
fn sizes(head: u32, turns: &str) -> Sizes {
    let turn = |(place, word): (usize, &str)| {
        let (kind, numbers) = word.split_at(1);
        let (numbers, input) = numbers.split_once('^').unwrap_or((numbers, "0"));
        let input: u32 = input.parse().unwrap();
        let (tokens, thoughts) = numbers.split_once('+').unwrap_or((numbers, "0"));
        let (tokens, thoughts): (u32, u32) = (tokens.parse().unwrap(), thoughts.parse().unwrap());
        let kind = match kind {
            "s" => TurnKind::System,
            "q" => TurnKind::Question,
            "r" | "x" => TurnKind::Results,
            _ => TurnKind::Answer,
        };
        let saves = if word.starts_with('x') { None } else { Some(tokens + input) };
        let input = place.checked_sub(1).map(|call| (call, input));
        let uses = if kind == TurnKind::Results { vec![UseSize { saves, input }] } else { Vec::new() };
        TurnSize { kind, tokens, thoughts, uses }
    };
    Sizes { head, turns: turns.split_whitespace().enumerate().map(turn).collect() }
}

fn truncated(head: u32, turns: &str, trigger: u32) -> (usize, Option<usize>, u64) {
    let limits = Limits { truncation: Some(trigger), ..Limits::default() };
    let Plan { first, question, tokens, .. } = plan(&sizes(head, turns), &limits);
    (first, question, tokens)
}

fn clearing(tokens: u32) -> Clearing {
    Clearing { tokens: Some(tokens), uses: None, keep: 1, at_least: None }
}

fn cleared(turns: &str, clearing: Clearing) -> (usize, u64) {
    let limits = Limits { clearing: Some(clearing), ..Limits::default() };
    let Plan { cleared, tokens, .. } = plan(&sizes(10, turns), &limits);
    (cleared, tokens)
}

#[test]
fn turns_are_left_out_at_the_trigger_and_well_below_it() {
    for (head, turns, expect) in [
        (10, "q20 a20 q20", (0, None, 70)),
        // Up to the trigger nothing happens.
        (10, "q30 a30 q30", (0, None, 100)),
        // Half of what the head leaves free: 10 + 45.
        (10, "q30 a30 q31", (2, None, 41)),
        // A cut within a run keeps the question that it answers.
        (10, "q5 a30 r30 a10 r30", (3, Some(0), 55)),
        // Instructions at the start stay.
        (10, "s5 q30 a30 q31", (3, None, 46)),
        // The head alone leaves no room: as much as there is goes.
        (200, "q30 a30 q31", (2, None, 231)),
        // The last turns stay, whatever their size.
        (10, "q500", (0, None, 510)),
        (10, "q30 a30 q500", (2, None, 510)),
        (10, "q5 a30 r500", (1, Some(0), 545)),
        // An answer that is continued is no request of its own.
        (10, "q30 a100", (0, None, 140)),
        (10, "", (0, None, 10)),
        (10, "a30 r30 a30 r30", (2, None, 70)),
        // Thoughts of earlier runs are not shown.
        (10, "q20 a20+500 q20", (0, None, 70)),
        (10, "q20 a20+10 q20", (0, None, 70)),
    ] {
        assert_eq!(truncated(head, turns, 100), expect, "{turns}");
    }
}

#[test]
fn a_cut_stays_until_the_trigger_is_met_again() {
    let turns = vec!["q10 a10"; 60].join(" ");
    let all: Vec<&str> = turns.split(' ').collect();
    let mut cuts = Vec::new();
    for count in (1..all.len()).step_by(2) {
        let (first, question, tokens) = truncated(10, &all[..count].join(" "), 200);
        assert!(tokens <= 200 && question.is_none());
        cuts.push(first);
    }
    assert!(cuts.is_sorted());
    let mut moved = cuts.clone();
    moved.dedup();
    // A cut leaves 100 tokens, which six rounds of 20 bring above 200; the first comes after ten.
    assert_eq!((cuts.len(), moved.len()), (60, 10), "{moved:?}");
}

#[test]
fn uses_are_cleared_at_the_trigger_and_again_when_it_is_worth_it() {
    for (turns, limits, expect) in [
        ("q10 a10 r30 a10 r30", clearing(100), (0, 100)),
        ("q10 a10 r30 a10 r30 a10 r30", clearing(100), (2, 80)),
        // The latest ones stay.
        ("q10 a10 r300", clearing(100), (0, 330)),
        ("q10 a10 r300 a10 r9", Clearing { keep: 0, ..clearing(100) }, (1, 49)),
        // A number of uses.
        ("q10 a10 r30 a10 r30", Clearing { tokens: None, uses: Some(1), ..clearing(0) }, (1, 70)),
        ("q10 a10 r30", Clearing { tokens: None, uses: Some(1), ..clearing(0) }, (0, 60)),
        // Too little for the client, and excluded tools.
        ("q99 a10 r30 a10 r30", Clearing { at_least: Some(31), ..clearing(100) }, (0, 189)),
        ("q99 a10 r30 a10 r30", Clearing { at_least: Some(30), ..clearing(100) }, (1, 159)),
        ("q99 a10 x30 a10 r30", clearing(100), (0, 189)),
        ("q99 a10 x30 a10 r30 a10 r30", clearing(100), (2, 199)),
        // Still above the trigger: the next one is cleared only if that saves an eighth of it.
        ("q99 a10 r30 a10 r11 a10 r30", clearing(100), (1, 180)),
        ("q99 a10 r30 a10 r13 a10 r30", clearing(100), (2, 169)),
    ] {
        assert_eq!(cleared(turns, limits), expect, "{turns}");
    }
}

#[test]
fn clearing_comes_before_leaving_out() {
    let limits = Limits { clearing: Some(clearing(100)), truncation: Some(120) };
    let of = |turns: &str| {
        let Plan { cleared, first, tokens, .. } = plan(&sizes(10, turns), &limits);
        (cleared, first, tokens)
    };
    assert_eq!(of("q10 a10 r60 a10 r30"), (1, 0, 70));
    // What is cleared counts no more when its turn is left out.
    assert_eq!(of("q10 a10 r60 a10 r30 q90"), (1, 5, 100));
    // The input of a call is gone from the turn of the call, however small its result is.
    assert_eq!(of("q10 a60 r5^50 a10 r30"), (1, 0, 70));
    assert_eq!(of("q10 a60 r5^50 a10 r30 q90"), (1, 5, 100));
    let long = "q10 a200 r5 a60 r5^50 a10 r30 a10 r30";
    assert_eq!(of(long), (3, 3, 80));
    assert_eq!(of(&format!("{long} q90")), (3, 9, 100));
}

#[test]
fn a_long_conversation_is_planned_in_no_time() {
    let turns = vec!["a10+5 r30"; 50_000].join(" ");
    let sizes = sizes(10, &format!("q10 {turns}"));
    for trigger in [0, 50, 1000] {
        let limits = Limits { clearing: Some(clearing(trigger)), truncation: Some(trigger) };
        let began = std::time::Instant::now();
        plan(&sizes, &limits);
        assert!(began.elapsed().as_secs() < 5);
    }
}
