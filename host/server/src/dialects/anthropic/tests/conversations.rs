//! System prompts and messages.

use serde_json::{Value, json};

use super::{body, conversation, refuses, request};
use crate::{
    chat::{Input, Part, Role, Turn},
    dialects::fields::{Document, Notes},
};

const BILLING: &str = "x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli; cch=1c8b4;";

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn call(id: &str, arguments: Value) -> Part {
    Part::ToolCall { id: id.into(), name: "f".into(), arguments }
}

fn result(id: &str, text: &str) -> Part {
    Part::ToolResult { id: id.into(), text: text.into(), images: Vec::new(), is_error: false }
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: Value) -> Value {
    json!({"role": "assistant", "content": content})
}

fn tool_use(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": {}})
}

fn tool_result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "done"})
}

#[track_caller]
fn check(messages: Value, expected: &[(Role, &[Part])]) {
    let turns = conversation(&json!({"messages": messages})).turns;
    let expected: Vec<Turn> =
        expected.iter().map(|(role, parts)| Turn { role: *role, parts: parts.to_vec() }).collect();
    assert_eq!(turns, expected);
}

#[test]
fn system_is_text_or_blocks() {
    let check = |system: Value, expected: &str| {
        assert_eq!(conversation(&json!({"system": system})).system, expected);
    };
    check(json!(null), "");
    check(json!("Be brief."), "Be brief.");
    check(json!([]), "");
    let cache = json!({"type": "ephemeral"});
    check(json!([{"type": "text", "text": "a", "cache_control": cache}, {"type": "text", "text": "b"}]), "a\n\nb");
    refuses(&json!({"system": 1}), "system: should be a string or a list of blocks, not 1");
    refuses(&json!({"system": [{"type": "text"}]}), "system.0.text: this field is required");
    refuses(&json!({"system": ["a"]}), "system.0: should be an object, not a string");
    check(json!([{"type": "image"}]), "[an image was attached; this model reads text only]");
}

#[test]
fn the_billing_line_is_removed_from_prompts() {
    let plain = conversation(&json!({"system": [{"type": "text", "text": "You are a clerk."}]}));
    for system in [
        json!([{"type": "text", "text": BILLING}, {"type": "text", "text": "You are a clerk."}]),
        json!([{"type": "text", "text": format!("{BILLING}\n")}, {"type": "text", "text": "You are a clerk."}]),
        json!([{"type": "text", "text": format!("{BILLING}\nYou are a clerk.")}]),
        json!(format!("{BILLING}\n\nYou are a clerk.")),
        json!(format!("{BILLING}You are a clerk.")),
    ] {
        assert_eq!(conversation(&json!({"system": system})), plain, "{system}");
    }
    let inline = json!([{"role": "system", "content": BILLING}, user(json!("Hello"))]);
    check(inline, &[(Role::User, &[text("Hello")])]);
}

#[test]
fn content_is_text_or_blocks() {
    check(json!([user(json!("Hello"))]), &[(Role::User, &[text("Hello")])]);
    let blocks =
        json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " "}]);
    check(json!([user(blocks)]), &[(Role::User, &[text("a"), text(" ")])]);
}

#[test]
fn adjacent_messages_of_one_role_are_one_turn() {
    let messages = json!([user(json!("a")), user(json!("b")), assistant(json!("c")), assistant(json!("d"))]);
    check(messages, &[(Role::User, &[text("a"), text("b")]), (Role::Assistant, &[text("c"), text("d")])]);
}

#[test]
fn a_tool_loop_is_read_in_order() {
    let thinking = json!({"type": "thinking", "thinking": "Hm", "signature": "whoever"});
    let redacted = json!({"type": "redacted_thinking", "data": "xxxx"});
    let call_block = json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"z": 1, "a": 2}});
    let error = json!({"type": "tool_result", "tool_use_id": "2", "is_error": true,
        "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]});
    let messages = json!([
        user(json!("Go")),
        assistant(json!([thinking, redacted, {"type": "text", "text": "Well"}, call_block, tool_use("2")])),
        user(json!([{"type": "tool_result", "tool_use_id": "toolu_1"}, error, {"type": "text", "text": "On"}])),
    ]);
    let failed = Part::ToolResult { id: "2".into(), text: "x\ny".into(), images: Vec::new(), is_error: true };
    let calls = [Part::Thinking("Hm".into()), text("Well"), call("1", json!({"z": 1, "a": 2})), call("2", json!({}))];
    check(
        messages,
        &[(Role::User, &[text("Go")]), (Role::Assistant, &calls), (Role::User, &[result("1", ""), failed, text("On")])],
    );
}

#[test]
fn results_come_before_other_parts_and_may_span_several_messages() {
    let messages = json!([
        user(json!("Go")),
        assistant(json!([tool_use("a"), tool_use("b")])),
        user(json!([{"type": "text", "text": "first"}, tool_result("b")])),
        user(json!([tool_result("a")])),
    ]);
    check(
        messages,
        &[
            (Role::User, &[text("Go")]),
            (Role::Assistant, &[call("a", json!({})), call("b", json!({}))]),
            (Role::User, &[result("b", "done"), text("first"), result("a", "done")]),
        ],
    );
}

#[test]
fn a_system_message_keeps_its_place_but_never_separates_a_call_from_its_result() {
    let system = json!({"role": "system", "content": "<total_tokens>100 tokens left</total_tokens>"});
    let reminder = text("<total_tokens>100 tokens left</total_tokens>");
    check(
        json!([user(json!("a")), system, user(json!("b"))]),
        &[(Role::User, &[text("a")]), (Role::System, std::slice::from_ref(&reminder)), (Role::User, &[text("b")])],
    );
    check(
        json!([user(json!("a")), assistant(json!([tool_use("1")])), system, user(json!([tool_result("1")]))]),
        &[
            (Role::User, &[text("a")]),
            (Role::Assistant, &[call("1", json!({}))]),
            (Role::User, &[result("1", "done")]),
            (Role::System, &[reminder]),
        ],
    );
}

/// Each request of a tool loop only appends to the earlier turns, with everything that changes from request to request.
#[test]
fn a_longer_conversation_starts_with_the_shorter_one() {
    let request = |rounds: usize| {
        let mut messages = vec![user(json!([{"type": "text", "text": "Go", "cache_control": {"type": "ephemeral"}}]))];
        for round in 0..rounds {
            let id = format!("toolu_{round}");
            messages.push(assistant(json!([tool_use(&id)])));
            messages.push(user(json!([tool_result(&id)])));
            let left = format!("<total_tokens>{} tokens left</total_tokens>", 1000 - round);
            messages.push(json!({"role": "system", "content": left}));
        }
        if let Some(block) = messages[0]["content"][0].as_object_mut().filter(|_| rounds > 0) {
            block.remove("cache_control");
        }
        let billing = format!("x-anthropic-billing-header: cc_version=2; cch={rounds:05x};");
        let system = json!([{"type": "text", "text": billing}, {"type": "text", "text": "You are a clerk."}]);
        conversation(&json!({"system": system, "messages": messages}))
    };
    let long = request(3);
    for rounds in 0..3 {
        let short = request(rounds);
        assert_eq!(short.system, long.system);
        assert_eq!(short.turns, long.turns[..short.turns.len()], "{rounds}");
    }
}

#[test]
fn the_last_message_may_be_the_assistants() {
    check(
        json!([user(json!("a")), assistant(json!("b "))]),
        &[(Role::User, &[text("a")]), (Role::Assistant, &[text("b ")])],
    );
    for blank in [json!(""), json!([])] {
        check(json!([user(json!("a")), assistant(blank)]), &[(Role::User, &[text("a")])]);
    }
}

#[test]
fn refuses_invalid_messages() {
    let refuses = |messages: Value, expected: &str| refuses(&json!({"messages": messages}), expected);
    refuses(json!(null), "messages: this field is required");
    refuses(json!([]), "messages: should have a message");
    refuses(json!("Hello"), "messages: should be a list, not a string");
    refuses(json!(["Hello"]), "messages.0: should be an object, not a string");
    refuses(json!([{"content": "a"}]), "messages.0.role: this field is required");
    refuses(
        json!([{"role": "tool", "content": "a"}]),
        "messages.0.role: should be one of 'user', 'assistant', 'system', not 'tool'",
    );
    refuses(json!([{"role": "user"}]), "messages.0.content: this field is required");
    refuses(json!([user(json!(5))]), "messages.0.content: should be a string or a list of blocks, not 5");
    refuses(json!([user(json!([{"type": "text", "text": ""}]))]), "messages.0.content.0.text: should not be empty");
    refuses(
        json!([user(json!([{"type": "text", "text": 1}]))]),
        "messages.0.content.0.text: should be a string, not 1",
    );
    refuses(json!([user(json!([{"text": "a"}]))]), "messages.0.content.0.type: this field is required");
    refuses(
        json!([user(json!([tool_use("1")]))]),
        "messages.0.content.0: a block of type 'tool_use' is allowed in the assistant's messages only",
    );
    refuses(
        json!([assistant(json!([tool_result("1")]))]),
        "messages.0.content.0: a block of type 'tool_result' is allowed in the user's messages only",
    );
    refuses(json!([user(json!([{"type": "film"}]))]), "messages.0.content.0: unknown block type 'film'; send text");
    let blocks: Vec<Value> = (0..10_001).map(|_| json!({"type": "text", "text": "a"})).collect();
    refuses(json!([user(json!(blocks))]), "messages.0.content: has 10001 items, more than 10000");
    let messages: Vec<Value> = (0..100_001).map(|_| json!({})).collect();
    refuses(json!(messages), "messages: has 100001 items, more than 100000");
}

#[test]
fn an_attachment_becomes_a_note_or_an_error_that_names_its_block() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="});
    let document = json!({"type": "document", "source": source});
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}, image]});
    let calls = json!([user(json!("a")), assistant(json!([tool_use("1")])), user(json!([result]))]);
    let check = |messages: Value, path: &str, kind: &str, note: &str| {
        let bytes = body(&json!({ "messages": messages }));
        let document = Document::unlimited(&bytes, Notes::default()).unwrap();
        let request = request::message(&document.root()).unwrap().request;
        assert!(format!("{:?}", request.input).contains(note), "{request:?}");
        let warning = format!("{path}: this model reads text only; a note stands in the prompt for the {kind}");
        assert_eq!(document.warnings(), [warning]);
        let strict = Document::unlimited(&bytes, Notes::new(true)).unwrap();
        let error = request::message(&strict.root()).unwrap_err().message;
        assert_eq!(error, format!("{path}: this model reads text only, so it cannot take this {kind}"));
    };
    let note = "[an image was attached; this model reads text only]";
    check(json!([user(json!([{"type": "text", "text": "See"}, image]))]), "messages.0.content.1", "image", note);
    let of_document = "[a document was attached; this model reads text only]";
    check(json!([user(json!([document]))]), "messages.0.content.0", "document", of_document);
    check(calls, "messages.2.content.0.content.1", "image", note);
}

#[test]
fn blocks_from_anthropics_servers_are_dropped() {
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let text = json!({"type": "text", "text": "Found."});
    let messages = json!([user(json!("a")), assistant(json!([search, found, text])), user(json!("b"))]);
    let turns = conversation(&json!({ "messages": messages })).turns;
    assert_eq!(turns[1].parts, [Part::Text("Found.".into())]);
    refuses(
        &json!({"messages": [user(json!([{"type": "video"}]))]}),
        "messages.0.content.0: unknown block type 'video'; send text",
    );
}

#[test]
fn calls_and_results_belong_together() {
    let refuses = |messages: Value, expected: &str| refuses(&json!({"messages": messages}), expected);
    let stray = "messages.2.content.1.tool_use_id: the assistant's message before it has no call '1' without a result";
    let asked = [user(json!("Go")), assistant(json!([{"type": "text", "text": "a"}, tool_use("toolu_1")]))];
    let twice = json!([asked[0], asked[1], user(json!([tool_result("1"), tool_result("1")]))]);
    refuses(twice, stray);
    let unanswered = "messages.1.content.1: the call should be followed by its tool_result in the next message";
    refuses(json!(asked), unanswered);
    refuses(json!([asked[0], asked[1], user(json!("And?"))]), unanswered);
    refuses(json!([asked[0], asked[1], assistant(json!("Well"))]), unanswered);
    let same = json!([user(json!("Go")), assistant(json!([tool_use("1"), tool_use("1")]))]);
    refuses(same, "messages.1.content.1.id: another call has this id");
}

#[test]
fn a_window_of_a_conversation_is_taken() {
    let messages = json!([
        user(json!([tool_result("1")])),
        assistant(json!([])),
        user(json!([])),
        assistant(json!("b")),
        user(json!("")),
    ]);
    let body = body(&json!({ "messages": messages }));
    let document = Document::unlimited(&body, Notes::default()).unwrap();
    let Input::Chat(conversation) = request::message(&document.root()).unwrap().request.input else {
        panic!("a chat is no text")
    };
    let texts: Vec<Vec<Part>> = conversation.turns.into_iter().map(|turn| turn.parts).collect();
    let text = |text: &str| Part::Text(text.into());
    assert_eq!(texts, [vec![text("[output of a tool: done]"), text("")], vec![text("b")], vec![text("")]]);
    let note = "messages.0.content.0: there is no call for this result; it becomes a text";
    assert_eq!(document.warnings(), [note]);
}

#[test]
fn a_document_of_text_is_its_text() {
    let text = |source: Value| {
        let block = json!({"type": "document", "title": "t", "context": "c", "source": source});
        let turns = conversation(&json!({"messages": [user(json!([block]))]})).turns;
        let [Part::Text(text)] = turns[0].parts.as_slice() else { panic!("{turns:?}") };
        text.clone()
    };
    let both = "<document title=\"t\" context=\"c\">\nab\n</document>";
    assert_eq!(text(json!({"type": "text", "media_type": "text/plain", "data": "ab"})), both);
    assert_eq!(text(json!({"type": "content", "content": "ab"})), both);
    assert_eq!(text(json!({"type": "content", "content": [{"type": "text", "text": "ab"}]})), both);
    let encoded = json!({"type": "base64", "media_type": "text/plain", "data": "YWI="});
    assert_eq!(text(encoded), "<document title=\"t\">\nab\n</document>");
    let note = "[a document was attached; this model reads text only]";
    assert_eq!(text(json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="})), note);
    for elsewhere in
        [json!({"type": "file", "file_id": "f"}), json!({"type": "url", "url": "https://example.com/a.pdf"})]
    {
        assert_eq!(text(elsewhere), "[a document was attached, but its content is not here]");
    }
    let block = |source: Value| json!({"messages": [user(json!([{"type": "document", "source": source}]))]});
    let kinds = "'text', 'content', 'base64', 'url', 'file'";
    let message = format!("messages.0.content.0.source.type: should be one of {kinds}, not 'foo'");
    refuses(&block(json!({"type": "foo"})), &message);
    refuses(&block(json!("x")), "messages.0.content.0.source: should be an object, not a string");
    refuses(&block(Value::Null), "messages.0.content.0.source: this field is required");
}

#[test]
fn a_call_whose_input_is_not_an_object_is_wrapped() {
    let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": "{oops"});
    let messages = json!([user(json!("Go")), assistant(json!([call])), user(json!([tool_result("1")]))]);
    let turns = conversation(&json!({ "messages": messages })).turns;
    let arguments = json!({"malformed_arguments": "{oops"});
    assert_eq!(turns[1].parts, [Part::ToolCall { id: "1".into(), name: "f".into(), arguments }]);
}
