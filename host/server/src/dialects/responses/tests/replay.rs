//! Replays of stored responses, and of responses in the making, beside the events that went out.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{StoreTarget, arguments, call, encoder, finished, text};
use crate::{
    chat::{Delta, TokenLogprob},
    dialects::{
        ApiError, DialectSettings, Frame, Shared, StreamLimit, responses::replay::Replay, stream::EventEncoder,
    },
};
use pensieve_protocol::job::{Finish, Usage};

/// The events of frames; their numbers ascend.
fn data_of(frames: impl IntoIterator<Item = Frame>) -> Vec<Value> {
    let text = String::from_utf8(frames.into_iter().flatten().flatten().collect()).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    assert!(events.is_sorted_by_key(|event| event["sequence_number"].as_u64()));
    events
}

fn without_keep_alives(events: &[Value]) -> Vec<Value> {
    let (first, rest) = events.split_at(2);
    let rest = rest.iter().filter(|event| event["type"] != "response.in_progress");
    first.iter().chain(rest).cloned().collect()
}

/// Items of every kind, with texts and arguments in several deltas; `None` is a keep-alive.
fn varied(reason: Finish) -> Vec<Option<Delta>> {
    let token = |text: &str| TokenLogprob { bytes: text.into(), logprob: -0.5, ..TokenLogprob::default() };
    let likely = |text: &str| Delta::Text { text: text.into(), logprobs: vec![token(text), token("x")] };
    let usage = Usage { prompt: 1, reused: 0, generated: 1 };
    let mut deltas = vec![
        Some(Delta::Compacted { summary: Some("before".into()), usage, is_last: false }),
        Some(Delta::Thinking("h\u{e4}".into())),
        None,
        Some(Delta::Thinking("m".into())),
        Some(likely("S\u{f6}")),
        Some(Delta::Text { text: String::new(), logprobs: vec![token("y")] }),
        None,
        None,
        Some(text(" far.")),
        Some(call("add")),
        Some(arguments("{\"x\"")),
        Some(arguments(":1}")),
        Some(call("none")),
        Some(call("patch")),
        Some(arguments("{\"input\"")),
        Some(arguments(":\"a\"}")),
        Some(text("Well")),
        Some(text(".")),
    ];
    if reason == Finish::Length {
        // A call that is not complete is given up, and its events with it.
        deltas.extend([Some(call("add")), Some(arguments("{\"x")), None]);
    }
    deltas.push(Some(finished(reason)));
    deltas
}

#[test]
fn a_stored_response_is_streamed_as_it_came() {
    let tools = json!([{"type": "custom", "name": "patch"}]);
    for (reason, last) in [(Finish::EndOfTurn, "response.completed"), (Finish::Length, "response.incomplete")] {
        let shared = Arc::new(Shared::new(DialectSettings::default(), StreamLimit::default()));
        let store = StoreTarget { shared: shared.clone(), owner: 5, is_local: false, items: "[]".into(), inputs: 0 };
        let mut encoder = encoder(true, tools.clone(), Some(store));
        let mut frames = vec![encoder.begin()];
        for delta in varied(reason) {
            // At every point, what was made so far is replayed with the numbers that went out.
            let replayed = data_of(Replay::of_running(encoder.progress(), None).unwrap());
            assert_eq!(replayed, without_keep_alives(&data_of(frames.clone())));
            frames.push(match delta {
                Some(delta) => encoder.delta(0, delta).unwrap(),
                None => encoder.keep_alive(),
            });
        }
        let mut came = without_keep_alives(&data_of(frames));
        if reason == Finish::Length {
            let given_up = came.iter().rposition(|event| event["type"] == "response.output_item.added").unwrap();
            came.drain(given_up..came.len() - 1);
        }
        let stored = shared.responses.get(5, "resp_1").unwrap();
        let read = |after| {
            let (response, numbering) = (stored.response.clone(), stored.numbering.clone());
            data_of(Replay::new(response, numbering, after).unwrap())
        };
        assert_eq!(came.last().unwrap()["type"], last);
        assert_eq!(read(None), came);
        for event in &came {
            let after = event["sequence_number"].as_u64().unwrap();
            let later: Vec<Value> =
                came.iter().filter(|event| event["sequence_number"].as_u64() > Some(after)).cloned().collect();
            assert_eq!(read(Some(after)), later);
        }
        assert_eq!(read(Some(1000)), Vec::<Value>::new());
    }
}

#[test]
fn an_answer_that_is_cancelled_or_fails_ends_with_an_event_of_the_original() {
    for is_cancelled in [true, false] {
        let shared = Arc::new(Shared::new(DialectSettings::default(), StreamLimit::default()));
        let store = StoreTarget { shared: shared.clone(), owner: 5, is_local: false, items: "[]".into(), inputs: 0 };
        let mut encoder = encoder(false, json!([]), Some(store));
        let mut frames = vec![encoder.begin()];
        frames
            .extend([Delta::Thinking("hm".into()), text("a"), text("b")].map(|delta| encoder.delta(0, delta).unwrap()));
        frames.push(if is_cancelled { encoder.cancel() } else { encoder.fail(&ApiError::field("x", "broke")) });
        let came = data_of(frames);
        let last = came.last().unwrap();
        let expected = if is_cancelled { ("response.incomplete", "cancelled") } else { ("response.failed", "failed") };
        assert_eq!((last["type"].as_str(), last["response"]["status"].as_str()), (Some(expected.0), Some(expected.1)));
        let stored = shared.responses.get(5, "resp_1").unwrap();
        let replayed = data_of(Replay::new(stored.response, stored.numbering, None).unwrap());
        assert_eq!((&replayed[0], replayed.last()), (&came[0], came.last()));
        let given_up = came.iter().rposition(|event| event["type"] == "response.output_item.added").unwrap();
        assert_eq!(replayed[..replayed.len() - 1], came[..given_up]);
    }
}
