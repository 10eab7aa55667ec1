//! Answers that are generated while their client is away: fetched, followed, cancelled and deleted.

use serde_json::{Value, json};

use super::{RESPONSES, body, serve, text_of};
use crate::http::client::{Incoming, ServerEvent, get, post, request};

#[test]
fn an_answer_in_the_background_is_fetched_or_cancelled() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let background = json!({"background": true});
    let begun = post(server.address, RESPONSES, &body("hi", &background)).json();
    assert_eq!((&begun["status"], &begun["background"]), (&json!("in_progress"), &json!(true)));
    let path = format!("{RESPONSES}/{}", begun["id"].as_str().unwrap());
    let mut response = begun;
    while response["status"] == "in_progress" {
        response = get(server.address, &path).json();
    }
    assert_eq!((&response["status"], text_of(&response)), (&json!("completed"), "Hello there."));

    let endless = post(server.address, RESPONSES, &body("forever", &background)).json();
    let cancel = format!("{RESPONSES}/{}/cancel", endless["id"].as_str().unwrap());
    let cancelled = request(server.address, "POST", &cancel, &[], b"");
    assert_eq!((cancelled.status(), &cancelled.json()["status"]), (200, &json!("cancelled")));
    let again = request(server.address, "POST", &cancel, &[], b"");
    assert_eq!((again.status(), &again.json()["status"]), (200, &json!("cancelled")));
    server.until("the answer is no longer generated", |metrics| {
        metrics.iter().all(|(name, value)| !name.starts_with("pensieve_sequences_running") || *value == 0.0)
    });

    // A stream in the background outlives its client, and nothing goes on from an answer that is not there.
    let streamed = body("forever", &json!({"background": true, "stream": true}));
    let mut incoming = Incoming::open(server.address, RESPONSES, &[], &streamed);
    let created = incoming.event().unwrap();
    assert_eq!(created.name, "response.created");
    drop(incoming);
    let id = created.json()["response"]["id"].as_str().unwrap().to_owned();
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(get(server.address, &path).json()["status"], "in_progress");
    let early = post(server.address, RESPONSES, &body("hi", &json!({"previous_response_id": id})));
    assert_eq!((early.status(), &early.json()["error"]["param"]), (400, &json!("previous_response_id")));
    assert_eq!(request(server.address, "POST", &format!("{path}/cancel"), &[], b"").status(), 200);
    let streamed = body("hi", &json!({"background": true, "stream": true}));
    let events = Incoming::open(server.address, RESPONSES, &[], &streamed).events();
    assert_eq!(events.last().unwrap().name, "response.completed");

    let usual = post(server.address, RESPONSES, &body("hi", &json!({}))).json();
    let cancel = format!("{RESPONSES}/{}/cancel", usual["id"].as_str().unwrap());
    assert_eq!(request(server.address, "POST", &cancel, &[], b"").status(), 400);
    let unstored = body("hi", &json!({"background": true, "store": false}));
    assert_eq!(post(server.address, RESPONSES, &unstored).status(), 400);
}

fn json_of(stream: Incoming) -> Vec<Value> {
    stream.events().iter().map(ServerEvent::json).collect()
}

#[test]
fn an_answer_in_the_background_is_followed_under_the_same_numbers() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    for (input, end, status) in
        [("hi", "response.completed", "completed"), ("forever", "response.incomplete", "cancelled")]
    {
        let asked = body(input, &json!({"background": true, "stream": true}));
        let mut live = Incoming::open(server.address, RESPONSES, &[], &asked);
        let mut came: Vec<Value> = (0..6).map(|_| live.event().unwrap().json()).collect();
        let id = came[0]["response"]["id"].as_str().unwrap().to_owned();
        let path = format!("{RESPONSES}/{id}");
        let follow = |query: &str| Incoming::get(server.address, &format!("{path}?stream=true{query}"));
        let followers = [follow(""), follow("&starting_after=3")];
        if status == "cancelled" {
            assert_eq!(request(server.address, "POST", &format!("{path}/cancel"), &[], b"").status(), 200);
        }
        let [whole, rest] = followers.map(json_of);
        came.extend(json_of(live));
        assert_eq!(came.last().unwrap()["type"], end);
        assert_eq!(came.last().unwrap()["response"]["status"], status);
        assert_eq!(whole, came, "what came before is replayed, and the rest follows");
        assert_eq!(rest, came[4..]);
        let replayed = json_of(follow(""));
        assert_eq!(replayed.last(), came.last());
        if status == "completed" {
            assert_eq!(replayed, came);
        }
    }
}

#[test]
fn a_deleted_answer_stays_deleted_when_it_was_being_generated() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let begun = post(server.address, RESPONSES, &body("forever", &json!({"background": true}))).json();
    let path = format!("{RESPONSES}/{}", begun["id"].as_str().unwrap());
    let deleted = request(server.address, "DELETE", &path, &[], b"");
    assert_eq!((deleted.status(), &deleted.json()["deleted"]), (200, &json!(true)));
    assert_eq!(get(server.address, &path).status(), 404);
    server.until("the answer is no longer generated", |metrics| {
        metrics.iter().all(|(name, value)| !name.starts_with("pensieve_sequences_running") || *value == 0.0)
    });
    assert_eq!(get(server.address, &path).status(), 404);
}
