//! Rounds of generations that say what a table tells them.

#![allow(clippy::unwrap_used)]

use futures_util::stream::{iter, pending};

use super::*;
use crate::{
    chat::TokenLogprob,
    dialects::openai::{message_encoder::MessageEncoder, text_encoder::TextEncoder},
};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Usage};

fn said(text: &str) -> Delta {
    Delta::Text { text: text.into(), logprobs: Vec::new() }
}

fn likely(text: &str, logprob: f32) -> Delta {
    let token = TokenLogprob { bytes: text.into(), logprob, ..TokenLogprob::default() };
    Delta::Text { text: text.into(), logprobs: vec![token] }
}

fn finished(generated: u32) -> Delta {
    Delta::Finished { reason: Finish::EndOfTurn, usage: Usage { prompt: 5, reused: 2, generated } }
}

fn failed(code: FailureCode) -> Delta {
    Delta::Failed(Failure::new(code, "it broke"))
}

fn style(forms: Vec<Box<dyn ChoiceEncoder>>, shown: usize) -> Style {
    let frame =
        ResponseHead { id: "x-1".into(), object: "thing", created: 7, model: "m".into(), fingerprint: "fp_1".into() };
    Style { frame, copies: forms.len(), shown, forms, input_tokens: vec![5], include_usage: true }
}

fn round(scripts: Vec<Vec<Delta>>) -> ResponseBuilder {
    let forms = scripts.iter().map(|_| Box::new(MessageEncoder::new(false)) as Box<dyn ChoiceEncoder>).collect();
    let shown = scripts.len();
    ResponseBuilder::new(style(forms, shown), deltas(scripts))
}

fn deltas(scripts: Vec<Vec<Delta>>) -> Deltas {
    let mut deltas = Deltas::new();
    for (place, script) in scripts.into_iter().enumerate() {
        deltas.push(Box::pin(iter(script).map(move |delta| (place, delta))));
    }
    deltas
}

async fn whole(round: ResponseBuilder) -> Value {
    let ApiResponse::Full { status: 200, body, .. } = round.whole().await.unwrap() else { panic!("that was no body") };
    serde_json::from_slice(&body).unwrap()
}

/// What a stream says: its events' data, and the line that is none.
async fn events(round: ResponseBuilder) -> Vec<Value> {
    let ApiResponse::Stream { media_type, pieces, .. } = round.stream(StreamPermit::default()) else {
        panic!("that was no stream")
    };
    assert_eq!(media_type, "text/event-stream");
    let bytes: Vec<u8> = pieces.collect::<Vec<_>>().await.concat();
    let text = String::from_utf8(bytes).unwrap();
    let events = text.strip_prefix(": keep-alive\n").unwrap().strip_suffix("\n\n").unwrap().split("\n\n");
    let data = events.map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into())).collect()
}

#[tokio::test]
async fn choices_run_side_by_side_and_the_prompt_counts_once() {
    let scripts = || vec![vec![said("a"), said("b"), finished(3)], vec![said("c"), finished(2)]];
    let usage = json!({
        "prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0},
    });

    let body = whole(round(scripts())).await;
    let texts: Vec<&Value> = (0..2).map(|index| &body["choices"][index]["message"]["content"]).collect();
    assert_eq!(texts, ["ab", "c"]);
    assert_eq!((&body["usage"], &body["system_fingerprint"]), (&usage, &json!("fp_1")));

    let mut events = events(round(scripts())).await;
    assert_eq!(events.pop(), Some("[DONE]".into()));
    let last = events.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &usage));
    let mut texts = [String::new(), String::new()];
    for event in &events {
        assert_eq!((event["usage"].is_null(), &event["id"], &event["object"]), (true, &json!("x-1"), &json!("thing")));
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        texts[choice["index"].as_u64().unwrap() as usize].push_str(text);
    }
    assert_eq!(texts, ["ab", "c"]);
    assert_eq!(events.iter().filter(|event| event["choices"][0]["finish_reason"] == "stop").count(), 2);
}

#[tokio::test]
async fn without_the_option_no_chunk_speaks_of_usage() {
    let mut round = round(vec![vec![said("a"), finished(1)]]);
    round.style.include_usage = false;
    let events = events(round).await;
    assert_eq!(events.len(), 4, "role, text, end, [DONE]: {events:?}");
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn a_failure_is_a_status_of_a_body_and_an_event_of_a_stream() {
    let problem = round(vec![vec![failed(FailureCode::Busy)]]).whole().await.err().unwrap();
    assert_eq!(problem.kind, ErrorCode::Overloaded);
    let problem = round(vec![vec![said("a"), failed(FailureCode::Invalid)]]).whole().await.err().unwrap();
    assert_eq!(problem.kind, ErrorCode::InvalidRequest);

    let events = events(round(vec![vec![said("a"), failed(FailureCode::WorkerLost), said("b")]])).await;
    let error = json!({"error": {"message": "it broke", "type": "server_error", "param": null, "code": null}});
    assert_eq!(events.len(), 3, "role, text, error: {events:?}");
    assert_eq!(events.last(), Some(&error));
}

#[tokio::test]
async fn an_answer_without_an_end_is_a_failure() {
    let problem = round(vec![vec![said("a")]]).whole().await.err().unwrap();
    assert_eq!(problem.kind, ErrorCode::Internal);
    let events = events(round(vec![vec![said("a")]])).await;
    assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
}

#[tokio::test]
async fn silence_is_broken_by_comments() {
    let mut round = round(vec![vec![]]);
    round.deltas.push(Box::pin(pending()));
    let mut pieces = round.pieces(Duration::from_millis(5));
    for _ in 0..3 {
        assert_eq!(pieces.next().await.unwrap(), COMMENT);
    }
}

#[tokio::test]
async fn the_likeliest_choices_are_shown() {
    let scripts = vec![
        vec![likely("bad", -3.0), finished(1)],
        vec![likely("good", -0.5), likely("!", -1.5), finished(2)],
        vec![likely("best", -0.75), finished(1)],
    ];
    let forms = scripts.iter().map(|_| Box::new(TextEncoder::new(None, None)) as Box<dyn ChoiceEncoder>).collect();
    let body = whole(ResponseBuilder::new(style(forms, 2), deltas(scripts))).await;
    let choice =
        |index: usize, text: &str| json!({"index": index, "text": text, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice(0, "best"), choice(1, "good!")]));
    assert_eq!(body["usage"]["completion_tokens"], 4);
}
