//! `context_management` and `compaction`: what is read, and what an answer tells.

use serde_json::{Value, json};

use super::{conversation, read, refuses};
use crate::{
    chat::{
        AppliedEdit, ClearTrigger, ClearedInputs, Compaction, ContextEdit, Conversation, Delta, Part, Role,
        ToolClearing,
    },
    dialects::anthropic::{
        encoder::{Head, MessageBuilder, MessageEncoder},
        events::Event,
    },
};
use pensieve_protocol::job::{Finish, Usage};

fn edits(edits: Value) -> Vec<ContextEdit> {
    read(&json!({"context_management": {"edits": edits}})).unwrap().context
}

#[test]
fn edits_are_read_with_the_defaults_of_the_original() {
    let clearing = ToolClearing {
        trigger: ClearTrigger::InputTokens(100_000),
        keep: 3,
        at_least: None,
        exclude: Vec::new(),
        inputs: ClearedInputs::None,
    };
    let uses = |clearing| vec![ContextEdit::ClearToolUses(clearing)];
    let compact = |compaction| vec![ContextEdit::Compact(compaction)];
    for (given, expect) in [
        (json!([]), Vec::new()),
        (json!([{"type": "clear_tool_uses_20250919"}]), uses(clearing.clone())),
        (
            json!([{
                "type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 7},
                "keep": {"type": "tool_uses", "value": 0}, "clear_at_least": {"type": "input_tokens", "value": 5},
                "exclude_tools": ["a"], "clear_tool_inputs": true,
            }]),
            uses(ToolClearing {
                trigger: ClearTrigger::ToolUses(7),
                keep: 0,
                at_least: Some(5),
                exclude: vec!["a".into()],
                inputs: ClearedInputs::All,
            }),
        ),
        (
            json!([{"type": "clear_tool_uses_20250919", "clear_tool_inputs": ["b"], "clear_at_least": null}]),
            uses(ToolClearing { inputs: ClearedInputs::Of(vec!["b".into()]), ..clearing }),
        ),
        (json!([{"type": "clear_thinking_20251015"}]), vec![ContextEdit::ClearThinking { keep: 1 }]),
        (json!([{"type": "clear_thinking_20251015", "keep": "all"}]), Vec::new()),
        (json!([{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]), Vec::new()),
        (
            json!([{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}]),
            vec![ContextEdit::ClearThinking { keep: 2 }],
        ),
        (
            json!([{"type": "compact_20260112"}]),
            compact(Compaction { trigger: Some(150_000), ..Compaction::default() }),
        ),
        (
            json!([{
                "type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 60_000},
                "pause_after_compaction": true, "instructions": "in French",
            }]),
            compact(Compaction { trigger: Some(60_000), pause: true, instructions: Some("in French".into()) }),
        ),
    ] {
        assert_eq!(edits(given.clone()), expect, "{given}");
    }
    let now = read(&json!({"compaction": {"type": "summarize"}})).unwrap().context;
    assert_eq!(now, compact(Compaction { trigger: Some(0), pause: true, instructions: None }));
    assert_eq!(read(&json!({"context_management": null, "compaction": null})).unwrap().context, Vec::new());
}

#[test]
fn unknown_edits_and_impossible_numbers_are_refused() {
    let refused = |edit: Value, expect: &str| refuses(&json!({"context_management": {"edits": [edit]}}), expect);
    refused(
        json!({"type": "clear_01"}),
        "context_management.edits.0.type: there is no edit 'clear_01'; there are 'clear_tool_uses_20250919', \
         'clear_thinking_20251015', 'compact_20260112'",
    );
    refused(
        json!({"type": "compact_20260112", "trigger": {"type": "tool_uses", "value": 5}}),
        "context_management.edits.0.trigger.type: should be one of 'input_tokens', not 'tool_uses'",
    );
    refused(
        json!({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}),
        "context_management.edits.0.keep.value: should be an integer of at least 1, not 0",
    );
    let twice = json!({"edits": [{"type": "compact_20260112"}, {"type": "compact_20260112"}]});
    refuses(&json!({"context_management": twice}), "context_management.edits.1: 'compact_20260112' is there twice");
    refuses(
        &json!({"context_management": {}, "compaction": {"type": "summarize"}}),
        "context_management: cannot be combined with 'compaction'",
    );
}

#[test]
fn a_summary_stands_for_all_before_it() {
    let call = json!({"type": "tool_use", "id": "toolu_a", "name": "f", "input": {}});
    let summary = |text: Value| json!({"type": "compaction", "content": text, "encrypted_content": null});
    let text = |text: &str| json!({"type": "text", "text": text});
    let messages = |block: Value| {
        json!({"messages": [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": [text("half"), block, text("on it"), call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "ok"}]},
        ]})
    };
    let Conversation { turns, .. } = conversation(&messages(summary(json!("we did it"))));
    assert_eq!(turns.iter().map(|turn| turn.role).collect::<Vec<_>>(), [Role::User, Role::Assistant, Role::User]);
    let expect = "[summary of the conversation before this point]\nwe did it";
    assert_eq!(turns[0].parts, [Part::Text(expect.into())]);
    assert_eq!(turns[1].parts[0], Part::Text("on it".into()));
    // One that failed stands for nothing.
    let Conversation { turns, .. } = conversation(&messages(summary(Value::Null)));
    assert_eq!((turns[0].parts[0].clone(), turns[1].parts.len()), (Part::Text("first".into()), 3));
    refuses(&messages(summary(json!(""))), "messages.1.content.1.content: should not be empty");
}

/// The events of an answer, and the message that they make.
fn answer(edits: Option<Vec<AppliedEdit>>, deltas: Vec<Delta>) -> (Vec<Event>, Value) {
    let head = Head { id: "msg_1".into(), model: "m".into(), input_tokens: 100, edits, ..Head::default() };
    let mut encoder = MessageEncoder::new(head, Vec::new());
    let mut events = encoder.begin();
    events.extend(deltas.into_iter().flat_map(|delta| encoder.take(delta).unwrap()));
    assert!(encoder.is_over());
    let mut message = MessageBuilder::default();
    events.iter().cloned().for_each(|event| message.add(event));
    (events, message.json())
}

#[test]
fn a_summary_is_the_first_block_and_counts_by_itself() {
    let summing = Usage { prompt: 900, reused: 800, generated: 50 };
    let usage = Usage { prompt: 70, reused: 10, generated: 5 };
    let compacted = |is_last| Delta::Compacted { summary: Some("so far".into()), usage: summing, is_last };
    let text = Delta::Text { text: "Done.".into(), logprobs: Vec::new() };
    let (events, message) =
        answer(None, vec![compacted(false), text, Delta::Finished { reason: Finish::EndOfTurn, usage }]);
    let frames: Vec<String> = events.iter().map(|event| String::from_utf8(event.frame("req")).unwrap()).collect();
    assert!(frames[2].contains(r#""content_block":{"type":"compaction","content":null"#), "{}", frames[2]);
    assert!(frames[3].contains(r#""delta":{"type":"compaction_delta","content":"so far""#), "{}", frames[3]);
    assert_eq!(message["content"][0]["content"], "so far");
    assert_eq!(message["content"][1]["text"], "Done.");
    let iterations = message["usage"]["iterations"].as_array().unwrap();
    assert_eq!(
        (iterations[0]["type"].as_str(), iterations[0]["input_tokens"].as_u64()),
        (Some("compaction"), Some(100))
    );
    assert_eq!((iterations[1]["type"].as_str(), iterations[1]["input_tokens"].as_u64()), (Some("message"), Some(60)));
    assert_eq!(message["usage"]["input_tokens"], 60);
    assert!(message.get("context_management").is_none());

    let (events, message) = answer(Some(Vec::new()), vec![compacted(true)]);
    assert_eq!(events.last(), Some(&Event::MessageStop));
    assert_eq!((&message["stop_reason"], &message["usage"]["input_tokens"]), (&json!("compaction"), &json!(0)));
    assert_eq!(message["usage"]["iterations"].as_array().unwrap().len(), 1);
    assert_eq!(message["context_management"], json!({"applied_edits": []}));
}

#[test]
fn applied_edits_are_told_in_the_answer_and_at_the_end_of_its_stream() {
    let edits = vec![
        AppliedEdit::ClearedThinking { turns: 2, tokens: 30 },
        AppliedEdit::ClearedToolUses { uses: 4, tokens: 500 },
        AppliedEdit::Truncated { turns: 1, tokens: 9 },
    ];
    let finished = Delta::Finished { reason: Finish::EndOfTurn, usage: Usage::default() };
    let (events, message) = answer(Some(edits), vec![finished]);
    let expect = json!({"applied_edits": [
        {"type": "clear_thinking_20251015", "cleared_thinking_turns": 2, "cleared_input_tokens": 30},
        {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 4, "cleared_input_tokens": 500},
    ]});
    assert_eq!(message["context_management"], expect);
    let last = events.iter().find(|event| matches!(event, Event::MessageDelta { .. })).unwrap().frame("req");
    let data = String::from_utf8(last).unwrap();
    let data: Value = serde_json::from_str(data.split_once("data: ").unwrap().1.trim()).unwrap();
    assert_eq!(data["context_management"], expect);
}
