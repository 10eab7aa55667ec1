//! Pictures that crash, stop or fill the process that reads them. Decoders are not known to do so, and the plugin, which
//! runs beside them, does it for them (`tests/plugins/eyes.rs`).

use serde_json::Value;
use std::time::{Duration, Instant};

use crate::{
    http::{
        client::{Reply, post},
        server::Server,
    },
    images::{asked, grey, picture, serve},
};

const CRASHES: u16 = 97;
const STOPS: u16 = 101;
const EXHAUSTS: u16 = 103;

fn shown(server: &Server, bytes: &[u8]) -> Reply {
    let (path, _, body) = asked(bytes).swap_remove(0);
    post(server.address, path, &body)
}

fn message(reply: &Reply) -> String {
    reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_picture_that_crashes_or_fills_its_process_is_a_400_of_its_request() {
    let root = tempfile::tempdir().unwrap();
    // Few pixels, and with them little memory.
    let server = serve(root.path(), "[server]\nimage_pixels_max = 100000\n");
    for side in [CRASHES, EXHAUSTS, CRASHES] {
        let refused = shown(&server, &grey(side));
        assert_eq!(refused.status(), 400, "{side}: {refused:?}");
        let message = message(&refused);
        assert!(message.contains("messages.0.content.1") && message.contains("its process"), "{side}: {message}");
        let answered = shown(&server, &picture("rgb.png"));
        assert_eq!(answered.status(), 200, "after {side}: {answered:?}");
    }
}

#[test]
fn a_picture_that_stops_its_process_leaves_the_server_busy_for_its_request_alone() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let count = |bytes: &[u8]| {
        let body: Value = asked(bytes).swap_remove(0).2;
        post(server.address, "/v1/messages/count_tokens", &body)
    };
    let begun = Instant::now();
    let (stopped, others) = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| count(&grey(STOPS)));
        let mut others = Vec::new();
        while !stopped.is_finished() {
            others.push(count(&picture("rgb.png")).status());
            std::thread::sleep(Duration::from_millis(200));
        }
        (stopped.join().unwrap(), others)
    });
    // Ten seconds each in two processes.
    assert!(begun.elapsed() >= Duration::from_secs(20), "{stopped:?}");
    assert_eq!(stopped.status(), 529, "{stopped:?}");
    assert!(message(&stopped).contains("twice"), "{stopped:?}");
    assert!(!others.is_empty() && others.iter().all(|status| *status == 200), "{others:?}");
}
