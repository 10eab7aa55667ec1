//! Answers in the background that are followed, stopped and deleted while they are made.

use futures_util::{StreamExt, stream::unfold};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use pensieve_protocol::job::Finish;

use super::{StoreTarget, encoder, finished, text};
use crate::{
    chat::Delta,
    dialects::{
        ApiBody, ApiRequest, Frame, StreamPermit,
        responses::{background, cancel, delete, retrieve},
        stream::Generations,
    },
};

/// An answer in the making, and where its deltas come from.
fn begun() -> (ApiRequest, mpsc::Sender<Delta>) {
    let call = ApiRequest { id: "resp_1".into(), ..ApiRequest::default() };
    let (shared, owner) = (call.shared.clone(), call.client().id);
    let store = StoreTarget { shared, owner, is_local: false, items: "[]".into(), inputs: 0 };
    let (sender, receiver) = mpsc::channel(4);
    let mut generations = Generations::empty();
    generations.push(0, unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }));
    let encoder = encoder(false, json!([]), Some(store));
    background::start(&call, encoder, generations, StreamPermit::default(), false).unwrap();
    (call, sender)
}

/// The next event of a stream.
async fn next(frames: &mut (impl StreamExt<Item = Frame> + Unpin)) -> Option<Value> {
    let text = String::from_utf8(frames.next().await?.concat().to_vec()).unwrap();
    let data = text.lines().rev().find_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
}

#[tokio::test]
async fn an_answer_that_is_deleted_while_it_is_made_stays_deleted() {
    let (call, sender) = begun();
    sender.send(text("a")).await.unwrap();
    delete(call.clone()).await.unwrap();
    // The task has ended, and has nothing left to store.
    sender.closed().await;
    assert!(call.shared.responses.get(call.client().id, "resp_1").is_none());
    assert!(delete(call).await.is_err());
}

#[tokio::test]
async fn a_follower_hears_the_rest_and_how_it_ends() {
    let (call, sender) = begun();
    sender.send(text("a")).await.unwrap();
    let follow = ApiRequest { query: "stream=true&starting_after=1".into(), ..call.clone() };
    let ApiBody::Stream(mut frames, _permit) = retrieve(follow).await.unwrap().body else { panic!("a stream") };
    sender.send(text("b")).await.unwrap();
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Value| event["delta"] != "b") {
        events.push(next(&mut frames).await.unwrap());
    }
    assert!(cancel(call.clone()).await.is_ok());
    while let Some(event) = next(&mut frames).await {
        events.push(event);
    }
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.incomplete"), &json!("cancelled")));
    assert!(events.iter().all(|event| event["sequence_number"].as_u64() > Some(1)));
    // Afterwards it is replayed from the store.
    let again = ApiRequest { query: "stream=true".into(), ..call };
    let ApiBody::Stream(mut frames, _permit) = retrieve(again).await.unwrap().body else { panic!("a stream") };
    let mut replayed = Vec::new();
    while let Some(event) = next(&mut frames).await {
        replayed.push(event);
    }
    assert_eq!(replayed.last(), events.last());
}

#[tokio::test]
async fn a_follower_that_comes_after_the_last_event_reads_the_stored_answer() {
    let (call, sender) = begun();
    sender.send(text("a")).await.unwrap();
    // The source of the answer stays open, as one does for a moment.
    sender.send(finished(Finish::EndOfTurn)).await.unwrap();
    sender.closed().await;
    let follow = ApiRequest { query: "stream=true".into(), ..call };
    let ApiBody::Stream(mut frames, _permit) = retrieve(follow).await.unwrap().body else { panic!("a stream") };
    let mut last = Value::Null;
    while let Some(event) = next(&mut frames).await {
        last = event;
    }
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.completed"), &json!("completed")));
}
