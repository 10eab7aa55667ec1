//! The dialect without a model: bodies to requests, and deltas to lines.

#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

use super::{
    encoder::{LineEncoder, Shape},
    envelope, model_name,
    models::expiry,
    request::{self, OllamaRequest},
};
use crate::{
    chat::{Conversation, Delta, Input, Part, ResponseFormat, TokenLogprob},
    dialects::{ApiError, Dialect, ErrorCode, fields::Document, fuzz, stream::EventEncoder},
};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Usage};

fn chat(fields: Value) -> Result<OllamaRequest, String> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request::chat(&Document::of(&body).root()).map_err(|error| error.to_string())
}

fn conversation(fields: Value) -> Conversation {
    let Input::Chat(conversation) = chat(fields).unwrap().request.unwrap().input else { panic!("a chat is no text") };
    conversation
}

fn deltas() -> Vec<Delta> {
    let usage = Usage { prompt: 10, reused: 4, generated: 6 };
    vec![
        Delta::Started { reused_tokens: 4 },
        Delta::Thinking("hm".into()),
        Delta::Text { text: "So".into(), logprobs: Vec::new() },
        Delta::ToolCall { id: "1".into(), name: "add".into() },
        Delta::ToolArguments("{\"x\"".into()),
        Delta::ToolArguments(":1}".into()),
        Delta::Finished { reason: Finish::EndOfTurn, usage },
    ]
}

fn lines(encoder: &mut LineEncoder, deltas: Vec<Delta>) -> Vec<Value> {
    let mut bytes = encoder.begin();
    for delta in deltas {
        match encoder.delta(0, delta) {
            Ok(more) => bytes.extend(more),
            Err(error) => bytes.extend(encoder.error(&error)),
        }
    }
    String::from_utf8(bytes.concat().to_vec())
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_suffix_makes_a_gap_of_the_answer() {
    let input = |body: Value| {
        let request = request::generate(&Document::of(&body).root()).unwrap().request;
        request.map(|request| request.input)
    };
    let gap = Input::Infill { prefix: "a".into(), suffix: "b".into() };
    assert_eq!(input(json!({"model": "m", "prompt": "a", "suffix": "b"})), Some(gap));
    assert!(matches!(input(json!({"model": "m", "prompt": "a", "suffix": ""})), Some(Input::Chat(_))));
}

#[test]
fn a_model_without_a_limit_stays_for_a_hundred_years() {
    let year = |seconds| expiry(seconds)[..4].parse::<i64>().unwrap();
    let now = year(Some(0));
    assert!((99..=101).contains(&(year(None) - now)), "{} and {now}", year(None));
    assert_eq!(year(Some(u64::MAX)), year(None));
    assert!((0..=1).contains(&(year(Some(3600)) - now)));
}

#[test]
fn log_probabilities_stand_beside_their_text() {
    assert_eq!(chat(json!({})).unwrap().request.unwrap().logprobs, None);
    let asked = chat(json!({"logprobs": true, "top_logprobs": 2})).unwrap().request.unwrap();
    assert_eq!(asked.logprobs, Some(2));
    let token = TokenLogprob { bytes: b"So".to_vec(), logprob: -0.5, ..TokenLogprob::default() };
    let usage = Usage { prompt: 1, reused: 0, generated: 1 };
    let deltas = || {
        vec![
            Delta::Text { text: "So".into(), logprobs: vec![token.clone()] },
            Delta::Finished { reason: Finish::EndOfTurn, usage },
        ]
    };
    let expected = json!([{"token": "So", "logprob": -0.5, "bytes": [83, 111], "top_logprobs": []}]);
    let mut encoder = LineEncoder::new("m".into(), Shape::Chat, true);
    let lines = lines(&mut encoder, deltas());
    assert_eq!((&lines[0]["logprobs"], lines[1].get("logprobs")), (&expected, None));
    assert_eq!(encoder.into_whole().unwrap()["logprobs"], expected);
}

#[test]
fn an_answer_is_lines_with_the_counts_in_the_last() {
    let mut encoder = LineEncoder::new("m".into(), Shape::Chat, true);
    let lines = lines(&mut encoder, deltas());
    let messages: Vec<&Value> = lines.iter().map(|line| &line["message"]).collect();
    let call = json!({"function": {"index": 0, "name": "add", "arguments": {"x": 1}}});
    assert_eq!(messages[0], &json!({"role": "assistant", "content": "", "thinking": "hm"}));
    assert_eq!(messages[1], &json!({"role": "assistant", "content": "So"}));
    assert_eq!(messages[2], &json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    let (last, others) = lines.split_last().unwrap();
    assert!(others.iter().all(|line| line["done"] == false && line["model"] == "m" && line["created_at"].is_string()));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(10), &json!(6)));
    assert!(last["total_duration"].is_u64() && last["eval_duration"].is_u64(), "{last}");

    let whole = encoder.into_whole().unwrap();
    let message = json!({"role": "assistant", "content": "So", "thinking": "hm", "tool_calls": [call]});
    assert_eq!((&whole["message"], &whole["done"], &whole["eval_count"]), (&message, &json!(true), &json!(6)));
}

#[test]
fn a_call_whose_arguments_are_no_object_is_text() {
    let usage = Usage { prompt: 10, reused: 4, generated: 6 };
    for arguments in [r#"{"x": "#, "[1]"] {
        let call = Delta::ToolCall { id: "1".into(), name: "add".into() };
        let end = Delta::Finished { reason: Finish::EndOfTurn, usage };
        let mut encoder = LineEncoder::new("m".into(), Shape::Chat, false);
        let lines = lines(&mut encoder, vec![call, Delta::ToolArguments(arguments.into()), end]);
        assert_eq!(lines[0]["message"], json!({ "role": "assistant", "content": format!("add({arguments})") }));
        let whole = encoder.into_whole().unwrap();
        assert_eq!((&whole["message"], &whole["done"]), (&lines[0]["message"], &json!(true)));
    }
}

#[test]
fn a_completion_has_a_response_in_the_place_of_a_message() {
    let mut encoder = LineEncoder::new("m".into(), Shape::Generate, false);
    let lines = lines(&mut encoder, deltas());
    assert!(lines.iter().all(|line| line.get("message").is_none() && line.get("thinking").is_none()));
    assert_eq!(encoder.into_whole().unwrap()["response"], "So");
}

#[test]
fn a_failure_is_the_last_line() {
    let failed = vec![Delta::Failed(Failure::new(FailureCode::WorkerLost, "it broke"))];
    let lines = lines(&mut LineEncoder::new("m".into(), Shape::Chat, true), failed);
    assert_eq!(lines, [json!({"error": "it broke"})]);
    let (status, body) = envelope(&ApiError::new(ErrorCode::NotFound, "no model"));
    assert_eq!((status, body), (404, b"{\"error\":\"no model\"}".to_vec()));
}

#[test]
fn options_and_formats_are_read() {
    let asked = chat(json!({
        "stream": false, "format": {"type": "object"}, "think": "high", "keep_alive": "5m",
        "options": {"temperature": 0.5, "top_k": 3, "num_predict": 7, "stop": ["a"], "seed": 1, "num_ctx": 4096},
    }));
    let asked = asked.unwrap();
    let request = asked.request.unwrap();
    assert!(!asked.stream && asked.with_thinking);
    assert_eq!(
        (request.max_tokens, request.sampling.temperature, request.sampling.top_k),
        (Some(7), Some(0.5), Some(3))
    );
    assert_eq!((request.stops, request.sampling.seed), (vec!["a".to_owned()], Some(1)));
    assert!(matches!(request.format, ResponseFormat::Grammar { .. }));
    assert_eq!(chat(json!({"options": {"num_predict": -1}})).unwrap().request.unwrap().max_tokens, None);
    assert_eq!(chat(json!({"messages": []})).unwrap().request, None);
    assert_eq!(conversation(json!({"think": false})).thinking, Some(false));
    assert!(chat(json!({"format": "yaml"})).unwrap_err().starts_with("format: should be one of"));
    assert!(chat(json!({"options": {"stop": [1]}})).unwrap_err().starts_with("options.stop.0: "));
}

#[test]
fn results_belong_to_the_calls_before_them() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "see", "images": ["iVBOR"]},
        {"role": "assistant", "content": "", "tool_calls": [call("add"), call("sub")]},
        {"role": "tool", "tool_name": "sub", "content": "second"},
        {"role": "tool", "content": "first"},
    ]);
    let Conversation { system, turns, .. } = conversation(json!({ "messages": messages }));
    assert_eq!(system, "Be brief.");
    let note = Part::Text("[an image was attached; this model reads text only]".into());
    assert_eq!(turns[0].parts, [note, Part::Text("see".into())]);
    let ids: Vec<&str> = turns[1]
        .parts
        .iter()
        .map(|part| if let Part::ToolCall { id, .. } = part { id.as_str() } else { panic!("{part:?}") })
        .collect();
    let result = |id: &str, text: &str| Part::ToolResult {
        id: id.into(),
        text: text.into(),
        images: Vec::new(),
        is_error: false,
    };
    assert_eq!(turns[2].parts, [result(ids[1], "second"), result(ids[0], "first")]);
}

#[test]
fn an_image_that_a_role_does_not_show_leaves_a_note() {
    let image = json!(["iVBOR"]);
    let messages = json!([
        {"role": "system", "content": "Be brief.", "images": image},
        {"role": "user", "content": "draw"},
        {"role": "assistant", "content": "", "images": image},
        {"role": "developer", "content": "now", "images": image},
    ]);
    let Conversation { system, turns, .. } = conversation(json!({ "messages": messages }));
    let note = "[an image was attached; this model reads text only]";
    assert_eq!(system, format!("{note}\nBe brief."));
    assert_eq!(turns[1].parts, [Part::Text(note.into())]);
    assert_eq!(turns[2].parts, [Part::Text(format!("{note}\nnow"))]);
}

#[test]
fn the_tag_that_clients_add_means_nothing() {
    assert_eq!(model_name("small:latest"), "small");
    assert_eq!(model_name("small:poet"), "small:poet");
    assert_eq!(model_name(":latest"), ":latest");
}

#[test]
fn damaged_bodies_are_accepted_or_refused() {
    fuzz::documents("ollama-chat", Dialect::Ollama, |document| request::chat(&document.root()).map(drop));
    fuzz::documents("ollama-generate", Dialect::Ollama, |document| request::generate(&document.root()).map(drop));
}
