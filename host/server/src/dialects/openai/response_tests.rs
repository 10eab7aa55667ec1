//! Answers from scripted generations.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{iter, pending},
};

use super::*;
use crate::{
    chat::TokenLogprob,
    dialects::{
        ApiBody, ErrorCode,
        openai::{message_encoder::MessageEncoder, text_encoder::TextEncoder},
        stream::{frames, frames_with},
    },
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

fn style(encoders: Vec<Box<dyn ChoiceEncoder>>, shown: usize) -> Style {
    let head =
        ResponseHead { id: "x-1".into(), object: "thing", created: 7, model: "m".into(), fingerprint: "fp_1".into() };
    Style { head, copies: encoders.len(), shown, encoders, input_tokens: vec![5], include_usage: true }
}

/// An answer and its generations.
type Answer = (ResponseBuilder, Generations);

fn answer(scripts: Vec<Vec<Delta>>) -> Answer {
    let encoders = scripts
        .iter()
        .map(|_| Box::new(MessageEncoder::new(false, Arc::default())) as Box<dyn ChoiceEncoder>)
        .collect();
    let shown = scripts.len();
    (ResponseBuilder::new(style(encoders, shown)), generations(scripts))
}

fn generations(scripts: Vec<Vec<Delta>>) -> Generations {
    let mut generations = Generations::empty();
    scripts.into_iter().enumerate().for_each(|(place, script)| generations.push(place, iter(script)));
    generations
}

async fn whole((builder, generations): Answer) -> Value {
    let ApiBody::Full(body) = builder.full(generations).await.unwrap().body else { panic!("that was no body") };
    serde_json::from_slice(&body.concat()).unwrap()
}

/// The data of a stream's events, `[DONE]` as a string.
async fn events((builder, generations): Answer) -> Vec<Value> {
    let frames: Vec<Frame> = frames(builder, generations).collect().await;
    let bytes: Vec<u8> = frames.into_iter().flatten().flatten().collect();
    let text = String::from_utf8(bytes).unwrap();
    let events = text
        .strip_prefix(
            ": keep-alive
",
        )
        .unwrap()
        .strip_suffix(
            "

",
        )
        .unwrap()
        .split(
            "

",
        );
    let data = events.map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into())).collect()
}

async fn failure((builder, generations): Answer) -> ErrorCode {
    builder.full(generations).await.err().unwrap().code
}

#[tokio::test]
async fn choices_run_side_by_side_and_the_prompt_counts_once() {
    let scripts = || vec![vec![said("a"), said("b"), finished(3)], vec![said("c"), finished(2)]];
    let usage = json!({
        "prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0},
    });

    let body = whole(answer(scripts())).await;
    let texts: Vec<&Value> = (0..2).map(|index| &body["choices"][index]["message"]["content"]).collect();
    assert_eq!(texts, ["ab", "c"]);
    assert_eq!((&body["usage"], &body["system_fingerprint"]), (&usage, &json!("fp_1")));

    let mut events = events(answer(scripts())).await;
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
async fn usage_is_sent_only_on_request() {
    let mut answer = answer(vec![vec![said("a"), finished(1)]]);
    answer.0.style.include_usage = false;
    let events = events(answer).await;
    assert_eq!(events.len(), 4, "role, text, end, [DONE]: {events:?}");
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn a_failure_is_a_status_of_a_body_and_an_event_of_a_stream() {
    assert_eq!(failure(answer(vec![vec![failed(FailureCode::Busy)]])).await, ErrorCode::Overloaded);
    assert_eq!(failure(answer(vec![vec![said("a"), failed(FailureCode::Invalid)]])).await, ErrorCode::InvalidRequest);

    let events = events(answer(vec![vec![said("a"), failed(FailureCode::WorkerLost), said("b")]])).await;
    let error = json!({"error": {"message": "it broke", "type": "server_error", "param": null, "code": null}});
    assert_eq!(events.len(), 3, "role, text, error: {events:?}");
    assert_eq!(events.last(), Some(&error));
}

#[tokio::test]
async fn an_answer_without_an_end_is_a_failure() {
    assert_eq!(failure(answer(vec![vec![said("a")]])).await, ErrorCode::Internal);
    let events = events(answer(vec![vec![said("a")]])).await;
    assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
}

#[tokio::test]
async fn silence_is_broken_by_comments() {
    let mut answer = answer(vec![vec![]]);
    answer.1.push(0, pending());
    let mut pieces = frames_with(answer.0, answer.1, Duration::from_millis(5));
    for _ in 0..3 {
        assert_eq!(pieces.next().await.unwrap(), COMMENT.into());
    }
}

#[tokio::test]
async fn the_most_likely_choices_are_returned() {
    let scripts = vec![
        vec![likely("bad", -3.0), finished(1)],
        vec![likely("good", -0.5), likely("!", -1.5), finished(2)],
        vec![likely("best", -0.75), finished(1)],
    ];
    let encoders = scripts.iter().map(|_| Box::new(TextEncoder::new(None, None)) as Box<dyn ChoiceEncoder>).collect();
    let body = whole((ResponseBuilder::new(style(encoders, 2)), generations(scripts))).await;
    let choice =
        |index: usize, text: &str| json!({"index": index, "text": text, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice(0, "best"), choice(1, "good!")]));
    assert_eq!(body["usage"]["completion_tokens"], 4);
}
