//! Requests as chat completions: order, tools, pictures, and the words of each kind of server.

use super::*;
use crate::chat::{AdapterSelection, Image, PlacedImage, Turn};
use bytes::Bytes;
use pensieve_protocol::job::{FailureCode, StageSpec};
use std::sync::Arc;

fn to(kind: UpstreamKind, images: &[Arc<Image>]) -> Addressee<'_> {
    Addressee { id: "big", model: "org/Big", kind, is_openai: false, images }
}

fn body(request: &Request, kind: UpstreamKind) -> Value {
    Value::Object(write(request, &to(kind, &request.images), request.max_tokens).map(|(_, body)| body).unwrap())
}

fn chat(conversation: Conversation) -> Request {
    Request { model: "big".into(), input: Input::Chat(conversation), ..Request::default() }
}

fn turn(role: Role, parts: Vec<Part>) -> Turn {
    Turn { role, parts }
}

fn with_tool(choice: ToolChoice) -> Conversation {
    let schema = json!({"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}});
    let tool = Tool { name: "f".into(), description: "d".into(), schema, ..Tool::default() };
    Conversation { tools: vec![tool], tool_choice: choice, ..Conversation::default() }
}

#[test]
fn a_conversation_keeps_its_order_and_its_calls() {
    let call = Part::ToolCall { id: "abc".into(), name: "f".into(), arguments: json!({"b": "x", "a": 1}) };
    let result = Part::ToolResult { id: "abc".into(), text: "no such file".into(), images: vec![], is_error: true };
    let turns = vec![
        turn(Role::User, vec![Part::Text("look".into())]),
        turn(Role::Assistant, vec![Part::Thinking("hm".into()), call]),
        turn(Role::User, vec![result, Part::Text("and now?".into())]),
        turn(Role::System, vec![Part::Text("be brief".into())]),
    ];
    let request = chat(Conversation { system: "s".into(), turns, ..with_tool(ToolChoice::Auto) });
    let expected = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "abc", "type": "function", "function": {"name": "f", "arguments": "{\"b\":\"x\",\"a\":1}"}}],
            "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "abc", "content": "Error: no such file"},
        {"role": "user", "content": "and now?"},
        {"role": "system", "content": "be brief"},
    ]);
    assert_eq!(body(&request, UpstreamKind::Vllm)["messages"], expected);
    let openai = body(&request, UpstreamKind::OpenAi);
    assert_eq!(openai["messages"][2].get("reasoning_content"), None, "it refuses fields that it does not know");
    assert_eq!(openai["model"], "org/Big");
}

#[test]
fn all_four_choices_of_tools_are_said() {
    let choice = |choice| body(&chat(with_tool(choice)), UpstreamKind::Vllm)["tool_choice"].clone();
    assert_eq!(choice(ToolChoice::Auto), "auto");
    assert_eq!(choice(ToolChoice::None), "none");
    assert_eq!(choice(ToolChoice::Any), "required");
    let named = json!({"type": "function", "function": {"name": "f"}});
    assert_eq!(choice(ToolChoice::Named("f".into())), named);
    let single = Conversation { single_call: true, ..with_tool(ToolChoice::Auto) };
    assert_eq!(body(&chat(single), UpstreamKind::Vllm)["parallel_tool_calls"], false);
    assert_eq!(body(&chat(Conversation::default()), UpstreamKind::Vllm).get("tool_choice"), None, "without tools");
}

#[test]
fn a_choice_of_tools_that_a_server_cannot_read_is_made_for_it() {
    let other = Tool { name: "g".into(), ..Tool::default() };
    let asked = |choice, kind| {
        let mut conversation = with_tool(choice);
        conversation.tools.push(other.clone());
        write(&chat(conversation), &to(kind, &[]), None).map(|(_, body)| Value::Object(body))
    };
    let named = asked(ToolChoice::Named("f".into()), UpstreamKind::LlamaCpp).unwrap();
    assert_eq!((&named["tool_choice"], named["tools"].as_array().unwrap().len()), (&json!("required"), 1));
    assert_eq!(named["tools"][0]["function"]["name"], "f");
    let failure = asked(ToolChoice::Named("h".into()), UpstreamKind::LlamaCpp).unwrap_err();
    assert_eq!(failure.code, FailureCode::Invalid);
    let none = asked(ToolChoice::None, UpstreamKind::Ollama).unwrap();
    assert_eq!((none.get("tools"), none.get("tool_choice")), (None, None));
    assert_eq!(asked(ToolChoice::Auto, UpstreamKind::Ollama).unwrap()["tools"].as_array().unwrap().len(), 2);
    for choice in [ToolChoice::Any, ToolChoice::Named("f".into())] {
        let failure = asked(choice, UpstreamKind::Ollama).unwrap_err();
        assert_eq!((failure.code, failure.field.as_str()), (FailureCode::Unsupported, "tool_choice"));
    }
}

#[test]
fn pictures_are_sent_as_they_came_and_those_of_results_follow() {
    let images: Vec<Arc<Image>> = [&b"\xff\xd8jpeg"[..], b"GIF8"]
        .iter()
        .map(|bytes| Arc::new(Image::new("messages.0", Bytes::from_static(bytes))))
        .collect();
    let result = Part::ToolResult {
        id: "a".into(),
        text: "seen".into(),
        images: vec![PlacedImage { at: 4, item: 1 }],
        is_error: false,
    };
    let turns =
        vec![turn(Role::User, vec![Part::Text("what?".into()), Part::Image(0)]), turn(Role::User, vec![result])];
    let request = Request { images, ..chat(Conversation { turns, ..Conversation::default() }) };
    let expected = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9hqcGVn"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGOA=="}}]},
    ]);
    assert_eq!(body(&request, UpstreamKind::Vllm)["messages"], expected);
    let lost = chat(Conversation { turns: vec![turn(Role::User, vec![Part::Image(7)])], ..Conversation::default() });
    let failure = write(&lost, &to(UpstreamKind::Vllm, &[]), None).unwrap_err();
    assert_eq!(failure.code, FailureCode::Internal);
}

#[test]
fn each_kind_gets_its_own_words() {
    let sampling = SamplingParams {
        temperature: Some(0.7),
        top_k: Some(0),
        min_p: Some(0.05),
        repetition_penalty: Some(1.1),
        seed: Some(u64::MAX),
        logit_bias: vec![(7, -100.0)],
        ..SamplingParams::default()
    };
    let request = Request {
        sampling,
        max_tokens: Some(9),
        stops: vec!["X".into()],
        logprobs: Some(2),
        effort: Some(Effort::Max),
        ..chat(Conversation { thinking: Some(false), ..Conversation::default() })
    };
    let vllm = body(&request, UpstreamKind::Vllm);
    for (name, value) in [
        ("temperature", json!(0.7)),
        ("top_k", json!(-1)),
        ("min_p", json!(0.05)),
        ("repetition_penalty", json!(1.1)),
        ("seed", json!(i64::MAX)),
        ("logit_bias", json!({"7": -100.0})),
        ("max_tokens", json!(9)),
        ("stop", json!(["X"])),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(2)),
        ("reasoning_effort", json!("high")),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
    ] {
        assert_eq!(vllm[name], value, "{name}");
    }
    assert_eq!(body(&request, UpstreamKind::LlamaCpp)["repeat_penalty"], json!(1.1));
    let openai = body(&request, UpstreamKind::OpenAi);
    assert_eq!((&openai["max_tokens"], openai.get("max_completion_tokens")), (&json!(9), None));
    let own = Addressee { is_openai: true, ..to(UpstreamKind::OpenAi, &[]) };
    let (_, own) = write(&request, &own, request.max_tokens).unwrap();
    assert_eq!((own.get("max_tokens"), &own["max_completion_tokens"]), (None, &json!(9)), "OpenAI's newer name");
    for name in ["top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "pensieve"] {
        assert_eq!(openai.get(name), None, "{name}");
    }
}

#[test]
fn grammars_go_where_they_are_understood() {
    let asked = |grammar: Grammar, kind| {
        let format = ResponseFormat::Grammar { grammar, field: "response_format".into() };
        let request = Request { format, ..chat(Conversation::default()) };
        write(&request, &to(kind, &[]), None).map(|(_, body)| Value::Object(body))
    };
    let schema = Grammar::json_schema(r#"{"type":"object","properties":{"z":{},"a":{}}}"#, false);
    let strict = asked(schema, UpstreamKind::OpenAi).unwrap();
    let expected = r#"{"name":"answer","schema":{"type":"object","properties":{"z":{},"a":{}}},"strict":true}"#;
    assert_eq!(strict["response_format"]["json_schema"].to_string(), expected, "properties in the client's order");
    let lenient = asked(Grammar::json_schema(r#"{"type":"array"}"#, true), UpstreamKind::OpenAi).unwrap();
    assert_eq!(lenient["response_format"]["json_schema"]["strict"], false, "as the client has it");
    let any = asked(Grammar::any_json_object(), UpstreamKind::LlamaCpp).unwrap();
    assert_eq!(any["response_format"], json!({"type": "json_object"}));
    let regex = || Grammar::Regex("a+".into());
    assert_eq!(asked(regex(), UpstreamKind::Vllm).unwrap()["structured_outputs"], json!({"regex": "a+"}));
    assert_eq!(asked(regex(), UpstreamKind::Sglang).unwrap()["regex"], "a+");
    assert_eq!(asked(regex(), UpstreamKind::Pensieve).unwrap()["pensieve"], json!({"grammar": {"regex": "a+"}}));
    let failure = asked(regex(), UpstreamKind::OpenAi).unwrap_err();
    assert_eq!((failure.code, failure.field.as_str()), (FailureCode::Unsupported, "response_format"));
    assert_eq!(failure.message, "the upstream of model 'big' (openai) cannot hold an answer to such a grammar");
}

#[test]
fn what_only_pensieve_has_is_refused_elsewhere() {
    let stages = vec![StageSpec { sampler: "top_k".into(), parameters: r#"{"k":40}"#.into(), field: String::new() }];
    let sampling = SamplingParams { stages: Some(stages), ..SamplingParams::default() };
    let adapter = AdapterSelection { name: Some("poet".into()), scale: None };
    let staged = Request { sampling, ..chat(Conversation::default()) };
    let adapted = Request { adapter, ..chat(Conversation::default()) };
    let own = body(&staged, UpstreamKind::Pensieve);
    assert_eq!(own["pensieve"], json!({"samplers": [{"k": 40, "sampler": "top_k"}]}));
    assert_eq!(body(&adapted, UpstreamKind::Pensieve)["model"], "org/Big:poet");
    for request in [staged, adapted] {
        let failure = write(&request, &to(UpstreamKind::Vllm, &[]), None).unwrap_err();
        assert_eq!(failure.code, FailureCode::Unsupported, "{failure}");
    }
}

#[test]
fn fields_that_this_server_does_not_know_are_passed_on_but_change_nothing_that_it_does() {
    let unknown = json!({"min_tokens": 3, "model": "other", "stream": false, "messages": []});
    let request = Request { unknown: unknown.as_object().unwrap().clone(), ..chat(Conversation::default()) };
    let body = body(&request, UpstreamKind::Vllm);
    assert_eq!((&body["min_tokens"], &body["model"], &body["stream"]), (&json!(3), &json!("org/Big"), &json!(true)));
}

#[test]
fn fields_that_decide_for_the_operator_are_refused() {
    for name in REFUSED.into_iter().chain(["aws_region_name", "vertex_project"]) {
        let unknown = json!({ name: "x", "service_tier": "flex" });
        let request = Request { unknown: unknown.as_object().unwrap().clone(), ..chat(Conversation::default()) };
        let failure = write(&request, &to(UpstreamKind::OpenAi, &[]), None).unwrap_err();
        assert_eq!((failure.code, failure.field.as_str()), (FailureCode::Unsupported, name));
    }
}

#[test]
fn clients_share_no_cache_at_vllm() {
    let salted = |salt: &[u8], kind| {
        let unknown = json!({ "cache_salt": "another's" }).as_object().unwrap().clone();
        let client = crate::chat::Client { salt: salt.to_vec(), ..crate::chat::Client::default() };
        body(&Request { client, unknown, ..chat(Conversation::default()) }, kind)["cache_salt"].clone()
    };
    let (one, two) = (salted(b"one", UpstreamKind::Vllm), salted(b"two", UpstreamKind::Vllm));
    assert!(one != two && one != "another's" && one == salted(b"one", UpstreamKind::Vllm));
    assert_eq!(one.as_str().map(str::len), Some(43));
}

#[test]
fn texts_are_completions() {
    let text = |input| {
        let request = Request { input, logprobs: Some(3), ..Request::default() };
        let (path, body) = write(&request, &to(UpstreamKind::Vllm, &[]), None).unwrap();
        (path, Value::Object(body))
    };
    let (path, plain) = text(Input::Text("once".into()));
    assert_eq!((path, &plain["prompt"], &plain["logprobs"]), ("/completions", &json!("once"), &json!(3)));
    let (_, infill) = text(Input::Infill { prefix: "a".into(), suffix: "b".into() });
    assert_eq!((&infill["prompt"], &infill["suffix"]), (&json!("a"), &json!("b")));
    assert_eq!(text(Input::Tokens(vec![1, 2])).1["prompt"], json!([1, 2]));
}
