//! Tools whose loading is deferred.

use serde_json::{Value, json};

use super::{body, read, refuses, request};
use crate::{
    chat::{Input, Part, Request, ToolChoice},
    dialects::fields::{Document, Notes},
};

fn tool(name: &str, deferred: bool) -> Value {
    json!({"name": name, "description": "does", "input_schema": {"type": "object"}, "defer_loading": deferred})
}

/// A search, its result with these blocks, and a question.
fn searched(found: Value) -> Value {
    json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": found}]},
    ])
}

fn reference(name: &str) -> Value {
    json!({"type": "tool_reference", "tool_name": name})
}

fn names(request: &Request) -> (Vec<String>, Vec<String>) {
    let Input::Chat(conversation) = &request.input else { panic!("a chat is no text") };
    let of = |tools: &[crate::chat::Tool]| tools.iter().map(|tool| tool.name.clone()).collect();
    (of(&conversation.tools), of(&request.deferred_tools))
}

fn result(request: &Request, turn: usize) -> String {
    let Input::Chat(conversation) = &request.input else { panic!("a chat is no text") };
    let [Part::ToolResult { text, .. }, ..] = conversation.turns[turn].parts.as_slice() else {
        panic!("{:?}", conversation.turns)
    };
    text.clone()
}

#[test]
fn a_tool_stands_where_it_was_found_and_nowhere_else() {
    let tools = json!([tool("search", false), tool("a", true), tool("b", true), tool("c", true)]);
    let before = read(&json!({ "tools": tools })).unwrap();
    assert_eq!(names(&before), (vec!["search".into()], vec![]));
    let found = json!([reference("b"), reference("search"), reference("gone"), reference("b")]);
    let bytes = body(&json!({"tools": tools, "messages": searched(found)}));
    let document = Document::unlimited(&bytes, Notes::default()).unwrap();
    let after = request::message(&document.root()).unwrap().request;
    assert_eq!(names(&after), (vec!["search".into()], vec!["b".into()]));
    let definition = r#"<function>{"name":"b","description":"does","parameters":{"type":"object"}}</function>"#;
    let expected = [
        definition,
        "The tool 'search' can be called; it is described above.",
        "There is no tool 'gone' any more.",
        "The tool 'b' can be called; it was found before.",
    ];
    assert_eq!(result(&after, 2), expected.join("\n"));
    let note = "messages.2.content.0.content.2.tool_name: there is no tool 'gone' among the request's tools";
    assert_eq!(document.warnings(), [note]);
}

#[test]
fn a_tool_that_was_called_or_must_be_can_be_called() {
    let tools = json!([tool("a", true), tool("b", true)]);
    let called = json!([
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "done"}]},
    ]);
    let required = json!({"type": "tool", "name": "b"});
    let request = read(&json!({"tools": tools, "messages": called, "tool_choice": required})).unwrap();
    assert_eq!(names(&request), (vec![], vec!["a".into(), "b".into()]));
    let Input::Chat(conversation) = request.input else { panic!("a chat is no text") };
    assert_eq!(conversation.tool_choice, ToolChoice::Named("b".into()));
    refuses(
        &json!({"tools": tools, "tool_choice": {"type": "tool", "name": "c"}}),
        "tool_choice.name: there is no tool 'c' among the request's tools",
    );
    refuses(&json!({"tools": [tool("a", true), tool("a", false)]}), "tools.1.name: there is another tool called 'a'");
}

#[test]
fn what_only_anthropics_search_could_find_is_loaded() {
    let search = json!({"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"});
    let request = read(&json!({"tools": [search, tool("a", true)]})).unwrap();
    assert_eq!(names(&request), (vec!["a".into()], vec![]));
}

#[test]
fn a_result_of_anthropics_search_is_read_where_it_stands() {
    let found = json!({"type": "tool_search_tool_search_result", "tool_references": [reference("a")]});
    let turn = json!([
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_regex", "input": {}},
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found},
    ]);
    let messages = json!([
        {"role": "user", "content": "Go"}, {"role": "assistant", "content": turn}, {"role": "user", "content": "And?"},
    ]);
    let request = read(&json!({"tools": [tool("search", false), tool("a", true)], "messages": messages})).unwrap();
    assert_eq!(names(&request).1, ["a"]);
    let Input::Chat(conversation) = &request.input else { panic!("a chat is no text") };
    let [Part::Text(text)] = conversation.turns[1].parts.as_slice() else { panic!("{:?}", conversation.turns) };
    assert!(text.starts_with("<function>{\"name\":\"a\""), "{text}");
}
