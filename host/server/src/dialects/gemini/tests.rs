//! The dialect without a model: bodies to requests, and deltas to objects.

#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

use super::{
    asks_for_events,
    encoder::{ContentEncoder, Form, Head},
    envelope,
    request::{self, GeminiRequest},
};
use crate::{
    chat::{Conversation, Delta, Input, Part, ResponseFormat, Role, TokenLogprob, ToolChoice, Turn},
    dialects::{ApiError, Dialect, ErrorCode, fields::Document, fuzz, stream::EventEncoder},
};
use pensieve_protocol::{
    grammar::Grammar,
    job::{Finish, Usage},
};

fn read(fields: Value) -> Result<(GeminiRequest, Vec<String>), String> {
    let mut body = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let document = Document::of(&body);
    let read = request::read(&document.root()).map_err(|error| error.to_string())?;
    Ok((read, document.warnings()))
}

fn conversation(fields: Value) -> Conversation {
    let Input::Chat(conversation) = read(fields).unwrap().0.request.input else { panic!("a chat is no text") };
    conversation
}

fn refuses(fields: Value, expected: &str) {
    assert_eq!(read(fields).map(drop).unwrap_err(), expected);
}

fn text(role: Role, text: &str) -> Turn {
    Turn { role, parts: vec![Part::Text(text.into())] }
}

#[test]
fn contents_become_turns() {
    let found = conversation(json!({
        "systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}]},
        "contents": [
            {"parts": [{"text": "a"}]},
            {"role": "model", "parts": [
                {"text": "hm", "thought": true}, {"text": "b"}, {"text": ""},
                {"functionCall": {"id": "add__add__x", "name": "add", "args": {"n": 1}}},
                {"functionCall": {"name": "add", "args": null}},
            ]},
            {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"error": "no"}, "id": "add__x"}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"output": {"n": 2}}}}, {"text": "and?"}]},
            {"role": "model", "parts": []},
        ],
    }));
    assert_eq!(found.system, "one\n\ntwo");
    let call = |id: &str, arguments| Part::ToolCall { id: id.into(), name: "add".into(), arguments };
    let result = |id: &str, text: &str, is_error| Part::ToolResult {
        id: id.into(),
        text: text.into(),
        images: Vec::new(),
        is_error,
    };
    let answer = vec![
        Part::Thinking("hm".into()),
        Part::Text("b".into()),
        call("x", json!({"n": 1})),
        call("000000001", json!({})),
    ];
    let results = vec![result("x", "no", true), result("000000001", "{\"n\":2}", false), Part::Text("and?".into())];
    let turns = [
        text(Role::User, "a"),
        Turn { role: Role::Assistant, parts: answer },
        Turn { role: Role::User, parts: results },
    ];
    assert_eq!(found.turns, turns);
}

#[test]
fn a_result_that_comes_twice_counts_once() {
    let call = |id: &str| json!({"functionCall": {"name": "add", "args": {}, "id": id}});
    let result =
        |id: &str, text: &str| json!({"functionResponse": {"name": "add", "response": {"output": text}, "id": id}});
    let contents = json!([
        {"role": "user", "parts": [{"text": "Add."}]},
        {"role": "model", "parts": [call("a"), call("b")]},
        {"role": "user", "parts": [result("a", "1"), result("b", "2"), result("a", "1")]},
        {"role": "model", "parts": [{"text": "So."}]},
        {"role": "user", "parts": [result("b", "2")]},
        // Another result is no copy, and a call may have the id of an earlier one.
        {"role": "user", "parts": [result("b", "3")]},
        {"role": "model", "parts": [call("a")]},
        {"role": "user", "parts": [result("a", "1")]},
    ]);
    let (request, warnings) = read(json!({ "contents": contents })).unwrap();
    let Input::Chat(conversation) = request.request.input else { panic!("a chat is no text") };
    let told = |part: &Part| match part {
        Part::ToolResult { id, text, .. } => format!("{id}={text}"),
        Part::Text(text) => text.clone(),
        _ => String::new(),
    };
    let turns: Vec<Vec<String>> = conversation.turns.iter().map(|turn| turn.parts.iter().map(told).collect()).collect();
    let expected: [&[&str]; 7] =
        [&["Add."], &["", ""], &["a=1", "b=2"], &["So."], &["[output of a tool: 3]"], &[""], &["a=1"]];
    assert_eq!(turns, expected);
    let copies = warnings.iter().filter(|warning| warning.contains("the copy is left out")).count();
    assert_eq!((copies, warnings.len()), (2, 3), "{warnings:?}");
}

#[test]
fn files_of_text_are_text_and_others_are_noted() {
    let parts = json!([
        {"inlineData": {"mimeType": "text/csv", "data": "YSxi", "displayName": "t.csv"}},
        {"inline_data": {"mime_type": "image/png", "data": "AAAA"}},
        {"fileData": {"mimeType": "text/plain", "fileUri": "files/1"}},
        {"functionResponse": {"name": "gone", "response": {"a": 1}}},
        {"fromTheFuture": {}},
    ]);
    let (found, notes) = read(json!({"contents": [{"role": "user", "parts": parts}]})).unwrap();
    let Input::Chat(conversation) = found.request.input else { panic!("a chat is no text") };
    let texts: Vec<&str> =
        conversation.turns[0].parts.iter().map(|part| if let Part::Text(text) = part { text } else { "" }).collect();
    let expected = [
        "<document title=\"t.csv\">\na,b\n</document>",
        "[an image was attached; this model reads text only]",
        "[a document was attached, but its content is not here]",
        "[output of a tool: {\"a\":1}]",
    ];
    assert_eq!(texts, expected);
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert_eq!(notes[3], "contents.0.parts.4: parts with 'fromTheFuture' are not served here; it is left out");
}

#[test]
fn functions_are_tools_with_json_schemas() {
    let declared = json!([
        {"name": "a.b", "description": "d", "parameters": {
            "type": "OBJECT", "propertyOrdering": ["y"], "required": ["x"], "nullable": true,
            "properties": {"x": {"type": "STRING", "enum": ["1"]}, "y": {"anyOf": [{"type": "ARRAY", "items": {"type": "NUMBER"}, "maxItems": "3"}]}},
        }},
        {"name": "c", "parametersJsonSchema": {"properties": {"z": {"type": ["string", "null"]}}}},
        {"name": "d"},
    ]);
    let tools = json!([{"functionDeclarations": declared}, {"googleSearch": {}}]);
    let (found, notes) = read(json!({ "tools": tools })).unwrap();
    let Input::Chat(conversation) = found.request.input else { panic!("a chat is no text") };
    let schema = json!({
        "type": ["object", "null"], "required": ["x"], "properties": {
            "y": {"anyOf": [{"type": "array", "maxItems": 3, "items": {"type": "number"}}]},
            "x": {"type": "string", "enum": ["1"]},
        },
    });
    let [first, second, third] = conversation.tools.as_slice() else { panic!("{:?}", conversation.tools) };
    assert_eq!((first.name.as_str(), first.schema.to_string()), ("a.b", schema.to_string()));
    assert_eq!(first.field, "tools.0.functionDeclarations.0.parameters");
    assert_eq!(second.schema, json!({"type": "object", "properties": {"z": {"type": ["string", "null"]}}}));
    assert_eq!(third.schema, json!({"type": "object", "properties": {}}));
    assert_eq!(notes, ["tools.1.googleSearch: only Google's servers can run this tool; it is left out"]);
}

#[test]
fn modes_choose_among_the_functions() {
    let choice = |mode: &str, allowed: Value| {
        let declared = json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]);
        let config = json!({"functionCallingConfig": {"mode": mode, "allowedFunctionNames": allowed}});
        let found = conversation(json!({"tools": [{"functionDeclarations": declared}], "toolConfig": config}));
        assert_eq!(found.tools.len(), 3, "the prompt shows them all");
        let callable = found.tools.iter().filter(|tool| !tool.barred);
        (found.tool_choice, callable.map(|tool| tool.name.clone()).collect::<String>())
    };
    let table = [
        ("AUTO", json!(["a"]), ToolChoice::Auto, "abc"),
        ("MODE_UNSPECIFIED", Value::Null, ToolChoice::Auto, "abc"),
        ("ANY", Value::Null, ToolChoice::Any, "abc"),
        ("ANY", json!(["b"]), ToolChoice::Named("b".into()), "abc"),
        ("ANY", json!(["b", "c"]), ToolChoice::Any, "bc"),
        ("VALIDATED", json!(["c"]), ToolChoice::Auto, "c"),
        ("NONE", Value::Null, ToolChoice::None, "abc"),
    ];
    for (mode, allowed, expected, names) in table {
        assert_eq!(choice(mode, allowed.clone()), (expected, names.to_owned()), "{mode} {allowed}");
    }
}

#[test]
fn the_configuration_is_read_in_either_case() {
    let config = json!({
        "temperature": 0.5, "top_p": 0.25, "topK": 64.0, "max_output_tokens": 9, "stopSequences": ["a"], "seed": 3,
        "candidateCount": 2, "responseLogprobs": true, "logprobs": 4, "presencePenalty": 1, "frequencyPenalty": -1,
        "thinkingConfig": {"includeThoughts": true, "thinkingBudget": 100, "thinkingLevel": "HIGH"},
    });
    let GeminiRequest { request, choices, with_thoughts } = read(json!({ "generation_config": config })).unwrap().0;
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.5), Some(0.25), Some(64)));
    assert_eq!(
        (sampling.presence_penalty, sampling.frequency_penalty, sampling.seed),
        (Some(1.0), Some(-1.0), Some(3))
    );
    assert_eq!((request.max_tokens, request.logprobs, choices, with_thoughts), (Some(9), Some(4), 2, true));
    assert_eq!(request.stops, ["a"]);
    let Input::Chat(conversation) = request.input else { panic!("a chat is no text") };
    let variables = json!({"thinking_budget": 100, "reasoning_effort": "high"});
    assert_eq!((conversation.thinking, Value::Object(conversation.variables)), (Some(true), variables));
    let off = conversation_of_budget(0);
    assert_eq!((off.thinking, conversation_of_budget(-1).thinking), (Some(false), None));
}

fn conversation_of_budget(budget: i64) -> Conversation {
    conversation(json!({"generationConfig": {"thinkingConfig": {"thinkingBudget": budget}}}))
}

#[test]
fn formats_become_grammars() {
    let format = |config: Value| read(json!({ "generationConfig": config })).unwrap().0.request.format;
    let of = |grammar, field: &str| ResponseFormat::Grammar { grammar, field: field.to_owned() };
    assert_eq!(format(json!({"responseMimeType": "text/plain"})), ResponseFormat::Free);
    let any = of(Grammar::any_json_object(), "generationConfig.responseMimeType");
    assert_eq!(format(json!({"responseMimeType": "application/json"})), any);
    let schema = Grammar::json_schema(r#"{"type":"array","items":{"type":"string"}}"#, true);
    for (name, given) in [
        ("responseSchema", json!({"type": "ARRAY", "items": {"type": "STRING"}})),
        ("responseJsonSchema", json!({"type": "array", "items": {"type": "string"}})),
    ] {
        let found = format(json!({"responseMimeType": "application/json", name: given}));
        assert_eq!(found, of(schema.clone(), &format!("generationConfig.{name}")));
    }
    let words = json!({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b+"]}});
    assert_eq!(format(words), of(Grammar::Regex(r"(a|b\+)".into()), "generationConfig.responseSchema.enum"));
}

#[test]
fn complaints_name_the_field() {
    refuses(json!({"contents": null}), "contents: this field is required");
    refuses(json!({"contents": []}), "contents: should have at least one content with a part");
    refuses(json!({"contents": [{"parts": [1]}]}), "contents.0.parts.0: should be an object, not 1");
    refuses(
        json!({"contents": [{"role": "bot", "parts": []}]}),
        "contents.0.role: should be one of 'user', 'model', 'function', 'tool', 'system', not 'bot'",
    );
    refuses(
        json!({"contents": [{"parts": [{"functionCall": {"name": "a"}}]}]}),
        "contents.0.parts.0.functionCall: is allowed in contents of the role 'model' only",
    );
    refuses(
        json!({"cachedContent": "cachedContents/a"}),
        "cachedContent: this server stores no contents; send them all, as every prompt is cached by itself",
    );
    let declared = |function: Value| json!({"tools": [{"functionDeclarations": [function]}]});
    refuses(
        declared(json!({"name": "a", "parameters": {"type": "TEXT"}})),
        "tools.0.functionDeclarations.0.parameters.type: there is no type 'TEXT'",
    );
    refuses(
        declared(json!({"name": "a b"})),
        "tools.0.functionDeclarations.0.name: should have letters, digits, '_', '-', '.' and ':' only",
    );
    refuses(
        json!({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        "toolConfig.functionCallingConfig.mode: requires a call, but 'tools' has no function",
    );
    refuses(
        json!({"generationConfig": {"responseSchema": {"type": "STRING"}}}),
        "generationConfig.responseSchema: needs a responseMimeType of 'application/json' or 'text/x.enum'",
    );
    refuses(
        json!({"generationConfig": {"responseModalities": ["IMAGE"]}}),
        "generationConfig.responseModalities: only 'TEXT' is served",
    );
    let mut deep = json!({"type": "STRING"});
    for _ in 0..70 {
        deep = json!({"type": "ARRAY", "items": deep});
    }
    let error = read(declared(json!({"name": "a", "parameters": deep}))).map(drop).unwrap_err();
    assert!(error.contains("is nested more than 64 levels deep"), "{error}");
}

fn deltas() -> Vec<Delta> {
    let token = |text: &str| TokenLogprob { bytes: text.into(), logprob: -0.5, ..TokenLogprob::default() };
    vec![
        Delta::Started { reused_tokens: 4 },
        Delta::Thinking("hm".into()),
        Delta::Text { text: "So".into(), logprobs: vec![token("So")] },
        Delta::Text { text: " it".into(), logprobs: vec![token(" it")] },
        Delta::ToolCall { id: "1".into(), name: "add".into() },
        Delta::ToolArguments("{\"x\"".into()),
        Delta::ToolArguments(":1}".into()),
        Delta::Finished { reason: Finish::EndOfTurn, usage: Usage { prompt: 10, reused: 4, generated: 6 } },
    ]
}

fn encoder(form: Form) -> ContentEncoder {
    let head = Head { id: "r".into(), model: "m".into(), input_tokens: 10, with_thoughts: true, logprobs: Some(0) };
    ContentEncoder::new(head, form, 1)
}

fn written(form: Form, deltas: Vec<Delta>) -> String {
    let mut encoder = encoder(form);
    let mut bytes = encoder.begin();
    for delta in deltas {
        match encoder.delta(0, delta) {
            Ok(more) => bytes.extend(more),
            Err(error) => {
                bytes.extend(encoder.error(&error));
                return String::from_utf8(bytes.concat().to_vec()).unwrap();
            }
        }
        bytes.extend(encoder.keep_alive());
    }
    bytes.extend(encoder.end().unwrap());
    String::from_utf8(bytes.concat().to_vec()).unwrap()
}

fn events(text: &str) -> Vec<Value> {
    let events = text.split("\r\n\r\n").filter_map(|event| event.strip_prefix("data: "));
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .filter(|event: &Value| !event["candidates"].is_null())
        .collect()
}

#[test]
fn streamed_in_either_form_or_whole_the_answer_is_the_same() {
    let sent = events(&written(Form::Events, deltas()));
    let array = format!("[{}]", written(Form::Array, deltas()).trim().trim_matches(['[', ']']));
    // Keep-alives before the first object are white space in front of the array.
    assert_eq!(serde_json::from_str::<Vec<Value>>(&array).unwrap(), sent);
    let parts: Vec<&Value> = sent.iter().map(|event| &event["candidates"][0]["content"]["parts"][0]).collect();
    let call = json!({"functionCall": {"id": "1", "name": "add", "args": {"x": 1}}});
    assert_eq!(
        parts,
        [&json!({"text": "hm", "thought": true}), &json!({"text": "So"}), &json!({"text": " it"}), &call]
    );
    let last = sent.last().unwrap();
    assert_eq!((&last["candidates"][0]["finishReason"], &last["responseId"]), (&json!("STOP"), &json!("r")));
    let usage = json!({
        "promptTokenCount": 10, "candidatesTokenCount": 6, "totalTokenCount": 16, "cachedContentTokenCount": 4,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
        "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 4}],
    });
    assert_eq!(last["usageMetadata"], usage);

    let mut whole = encoder(Form::Array);
    deltas().into_iter().for_each(|delta| whole.keep(0, delta).unwrap());
    let whole = whole.into_whole().unwrap();
    let candidate = &whole["candidates"][0];
    let parts = json!([{"text": "hm", "thought": true}, {"text": "So it"}, call]);
    assert_eq!((&candidate["content"]["parts"], &candidate["finishReason"]), (&parts, &json!("STOP")));
    assert_eq!((&candidate["avgLogprobs"], &whole["usageMetadata"]), (&json!(-0.5), &usage));
    assert_eq!(candidate["logprobsResult"]["chosenCandidates"][1]["token"], " it");
}

#[test]
fn an_array_is_json_even_with_keep_alives_and_errors() {
    let failed = vec![
        Delta::Text { text: "a".into(), logprobs: Vec::new() },
        Delta::Finished { reason: Finish::Cancelled, usage: Usage::default() },
    ];
    let array = written(Form::Array, failed.clone());
    let array: Vec<Value> = serde_json::from_str(&array).unwrap_or_else(|error| panic!("{error}: {array}"));
    assert_eq!((array.len(), &array[1]["error"]["status"]), (2, &json!("UNAVAILABLE")));
    // An event would be taken for an answer without candidates.
    let text = written(Form::Events, failed);
    let last = text.trim_end().rsplit("\r\n\r\n").next().unwrap();
    assert_eq!(serde_json::from_str::<Value>(last).unwrap()["error"]["code"], 503);
    let first_fails = vec![Delta::Finished { reason: Finish::Cancelled, usage: Usage::default() }];
    assert_eq!(serde_json::from_str::<Vec<Value>>(&written(Form::Array, first_fails)).unwrap().len(), 1);
    assert!(encoder(Form::Array).end().is_err() && encoder(Form::Array).into_whole().is_err());
}

#[test]
fn a_call_that_the_limit_cuts_is_dropped() {
    let cut = vec![
        Delta::ToolCall { id: "1".into(), name: "add".into() },
        Delta::ToolArguments("{\"x\"".into()),
        Delta::Finished { reason: Finish::Length, usage: Usage::default() },
    ];
    let sent = events(&written(Form::Events, cut));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0]["candidates"][0]["content"]["parts"], json!([{"text": ""}]));
    assert_eq!(sent[0]["candidates"][0]["finishReason"], "MAX_TOKENS");
}

#[test]
fn errors_are_googles() {
    let mut error = ApiError::field("contents", "should be a list, not 1");
    error.retry_after = Some(std::time::Duration::from_millis(1500));
    let (status, body) = envelope(&error);
    let expected = json!({"error": {
        "code": 400, "message": "contents: should be a list, not 1", "status": "INVALID_ARGUMENT", "details": [
            {"@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"field": "contents", "description": "contents: should be a list, not 1"}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2s"},
        ],
    }});
    assert_eq!((status, serde_json::from_slice::<Value>(&body).unwrap()), (400, expected));
    assert_eq!(envelope(&ApiError::new(ErrorCode::Overloaded, "busy")).0, 429);
}

#[test]
fn a_stream_is_events_if_the_query_says_so() {
    assert!(asks_for_events("alt=sse") && asks_for_events("key=a&alt=sse"));
    assert!(!asks_for_events("") && !asks_for_events("alt=json") && !asks_for_events("salt=sse"));
}

#[test]
fn a_damaged_body_is_read_or_refused() {
    fuzz::documents("gemini", Dialect::Gemini, |document| request::read(&document.root()).map(drop));
}
