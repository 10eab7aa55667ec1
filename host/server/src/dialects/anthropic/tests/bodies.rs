//! Fields besides the conversation.

use serde_json::json;

use super::{body, conversation, message, read, refuses};
use crate::dialects::{
    Dialect,
    fields::{Document, Notes},
    fuzz,
};
use crate::{
    chat::{AdapterSelection, ResponseFormat, SamplingParams, Tool, ToolChoice},
    dialects::anthropic::request,
};
use pensieve_protocol::grammar::Grammar;

#[test]
fn reads_the_simple_fields() {
    let request = read(&json!({
        "temperature": 0.5, "top_k": 40, "top_p": 0.9, "stop_sequences": ["a", "b"], "metadata": {"user_id": "u"},
        "service_tier": "auto", "context_management": {"edits": []}, "from_the_future": {"a": 1},
    }));
    let request = request.unwrap();
    assert_eq!((request.model.as_str(), request.max_tokens), ("m", Some(10)));
    let sampling =
        SamplingParams { temperature: Some(0.5), top_k: Some(40), top_p: Some(0.9), ..SamplingParams::default() };
    assert_eq!(request.sampling, sampling);
    assert_eq!(request.stops, ["a", "b"]);
    assert_eq!(request.format, ResponseFormat::Free);
}

#[test]
fn counting_needs_no_max_tokens() {
    let bytes = br#"{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": "many"}"#;
    assert_eq!(
        request::count(&Document::unlimited(bytes, Notes::default()).unwrap().root()).unwrap().0.max_tokens,
        None
    );
    assert_eq!(message(bytes).unwrap_err().field.unwrap(), "max_tokens");
}

#[test]
fn streams_only_if_asked_to() {
    let stream = |fields| message(&body(&fields)).unwrap().stream;
    assert!(stream(json!({"stream": true})));
    assert!(!stream(json!({"stream": false})));
    assert!(!stream(json!({"stream": null})));
    assert!(!stream(json!({})));
}

#[test]
fn an_answer_may_have_a_schema() {
    let format = json!({"type": "json_schema", "schema": {"type": "object", "b": 1, "a": 2}});
    let grammar = Grammar::json_schema(r#"{"type":"object","b":1,"a":2}"#, false);
    let expected = |field: &str| ResponseFormat::Grammar { grammar: grammar.clone(), field: field.to_owned() };
    let asked = read(&json!({"output_config": {"format": format, "effort": "high"}})).unwrap();
    assert_eq!(asked.format, expected("output_config.format.schema"));
    assert_eq!(read(&json!({"output_format": format})).unwrap().format, expected("output_format.schema"));
    refuses(
        &json!({"output_config": {"format": {"type": "text"}}}),
        "output_config.format.type: should be one of 'json_schema', not 'text'",
    );
    refuses(
        &json!({"output_config": {"format": {"type": "json_schema"}}}),
        "output_config.format.schema: this field is required",
    );
    refuses(&json!({"output_config": 1}), "output_config: should be an object, not 1");
}

#[test]
fn thinking_is_off_unless_asked_for() {
    let check = |fields, expected| {
        let conversation = conversation(&fields);
        assert_eq!((conversation.thinking, json!(conversation.variables)), expected, "{fields}");
    };
    check(json!({}), (Some(false), json!({})));
    check(json!({"thinking": {"type": "disabled"}}), (Some(false), json!({})));
    check(json!({"thinking": {"type": "adaptive", "display": "omitted"}}), (None, json!({})));
    let enabled = json!({"type": "enabled", "budget_tokens": 2048});
    check(json!({"thinking": enabled}), (Some(true), json!({"thinking_budget": 2048})));
    check(json!({"output_config": {"effort": "low"}}), (Some(false), json!({"reasoning_effort": "low"})));
    check(json!({"output_config": {"effort": "max"}}), (Some(false), json!({"reasoning_effort": "high"})));
    check(json!({"output_config": {"effort": "none"}}), (Some(false), json!({})));
    let levels = "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'";
    let message = format!("output_config.effort: should be one of {levels}, not 'astronomic'");
    refuses(&json!({"output_config": {"effort": "astronomic"}}), &message);
    refuses(&json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens: this field is required");
    refuses(
        &json!({"thinking": {"type": "always"}}),
        "thinking.type: should be one of 'enabled', 'adaptive', 'disabled', not 'always'",
    );
    refuses(&json!({"thinking": true}), "thinking: should be an object, not true");
    refuses(&json!({"output_config": {"effort": 3}}), "output_config.effort: should be a string, not 3");
}

#[test]
fn reads_tools_and_keeps_the_order_of_their_fields() {
    let tools = json!([
        {"name": "Bash", "description": "Runs", "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}},
         "cache_control": {"type": "ephemeral"}, "eager_input_streaming": true},
        {"type": "custom", "name": "b-2_", "input_schema": {}, "strict": true},
        {"type": null, "name": "c", "input_schema": {"type": "object"}, "description": null},
    ]);
    let read = conversation(&json!({"tools": tools})).tools;
    let names: Vec<&str> = read.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["Bash", "b-2_", "c"]);
    assert_eq!(read[0].description, "Runs");
    assert_eq!(read[0].schema.to_string(), r#"{"type":"object","properties":{"z":{},"a":{}}}"#);
    let field = "tools.1.input_schema".into();
    let schema = json!({"type": "object"});
    let second =
        Tool { name: "b-2_".into(), description: String::new(), schema, strict: true, field, ..Tool::default() };
    assert_eq!(read[1], second);
}

#[test]
fn refuses_invalid_tools() {
    let check = |tool: serde_json::Value, expected: &str| {
        let good = json!({"name": "good", "input_schema": {"type": "object"}});
        refuses(&json!({"tools": [good, tool]}), expected);
    };
    check(json!({"name": "good", "input_schema": {}}), "tools.1.name: there is another tool called 'good'");
    check(
        json!({"name": "a b", "input_schema": {}}),
        "tools.1.name: may have letters, digits, '_' and '-' only, unlike 'a b'",
    );
    check(json!({"name": "", "input_schema": {}}), "tools.1.name: should not be empty");
    check(json!({"name": "x".repeat(129), "input_schema": {}}), "tools.1.name: has 129 bytes, more than 128");
    check(json!({"name": "a"}), "tools.1.input_schema: this field is required");
    check(
        json!({"name": "a", "input_schema": {"type": "array"}}),
        "tools.1.input_schema.type: should be one of 'object', not 'array'",
    );
    check(json!({"name": "a", "input_schema": true}), "tools.1.input_schema: should be an object, not true");
    check(json!(1), "tools.1: should be an object, not 1");
    let many: Vec<_> = (0..513).map(|n| json!({"name": format!("t{n}"), "input_schema": {}})).collect();
    refuses(&json!({"tools": many}), "tools: has 513 items, more than 512");
    assert_eq!(conversation(&json!({"tools": many[..512]})).tools.len(), 512);
}

#[test]
fn reads_every_tool_choice() {
    let tools = json!([{"name": "a", "input_schema": {}}]);
    let check = |choice, expected| {
        let conversation = conversation(&json!({"tools": tools, "tool_choice": choice}));
        assert_eq!((conversation.tool_choice, conversation.single_call), expected);
    };
    check(json!(null), (ToolChoice::Auto, false));
    check(json!({"type": "auto"}), (ToolChoice::Auto, false));
    check(json!({"type": "auto", "disable_parallel_tool_use": true}), (ToolChoice::Auto, true));
    check(json!({"type": "any", "disable_parallel_tool_use": false}), (ToolChoice::Any, false));
    check(json!({"type": "tool", "name": "a"}), (ToolChoice::Named("a".into()), false));
    check(json!({"type": "none"}), (ToolChoice::None, false));
    let refuses = |choice, expected| refuses(&json!({"tools": tools, "tool_choice": choice}), expected);
    refuses(json!("auto"), "tool_choice: should be an object, not a string");
    refuses(json!({}), "tool_choice.type: this field is required");
    refuses(json!({"type": "all"}), "tool_choice.type: should be one of 'auto', 'any', 'tool', 'none', not 'all'");
    refuses(json!({"type": "tool"}), "tool_choice.name: this field is required");
    refuses(json!({"type": "tool", "name": "b"}), "tool_choice.name: there is no tool 'b' among the request's tools");
    refuses(
        json!({"type": "any", "disable_parallel_tool_use": 1}),
        "tool_choice.disable_parallel_tool_use: should be true or false, not 1",
    );
    super::refuses(
        &json!({"tool_choice": {"type": "any"}}),
        "tool_choice: asks for a call, but the request has no tools",
    );
}

#[test]
fn takes_what_the_api_lacks() {
    let request = read(&json!({"pensieve": {"adapter": "poet", "seed": 7, "grammar": {"regex": "a+"}}})).unwrap();
    assert_eq!(request.adapter, AdapterSelection { name: Some("poet".into()), scale: None });
    assert_eq!(request.sampling.seed, Some(7));
    let (grammar, field) = (Grammar::Regex("a+".into()), "pensieve.grammar.regex".to_owned());
    assert_eq!(request.format, ResponseFormat::Grammar { grammar, field });
    refuses(&json!({"pensieve": {"grammar": {"regex": 1}}}), "pensieve.grammar.regex: should be a string, not 1");
}

#[test]
fn anthropics_tools_get_their_schemas_or_are_dropped() {
    let list = json!([
        {"type": "bash_20250124", "name": "bash"},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer"},
    ]);
    let body = body(&json!({"tools": list, "tool_choice": {"type": "tool", "name": "web_search"}}));
    let document = Document::unlimited(&body, Notes::default()).unwrap();
    let request = request::message(&document.root()).unwrap().request;
    let crate::chat::Input::Chat(conversation) = request.input else { panic!("a message is a chat") };
    let names: Vec<&str> = conversation.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["bash", "str_replace_based_edit_tool", "memory"]);
    assert_eq!(conversation.tools[0].schema["properties"]["command"]["type"], "string");
    assert_eq!(conversation.tool_choice, ToolChoice::Auto);
    let left_out =
        |place: usize, kind: &str| format!("tools.{place}: tools of type '{kind}' are not served here; it is left out");
    let choice = "tool_choice: the tool that has to be called is not served here; any tool or none may be called";
    let expected = [left_out(1, "web_search_20250305"), left_out(4, "computer_20250124"), choice.to_owned()];
    assert_eq!(document.warnings(), expected);
}

#[test]
fn damaged_bodies_are_accepted_or_refused() {
    fuzz::documents("anthropic", Dialect::Anthropic, |document| request::message(&document.root()).map(drop));
}
