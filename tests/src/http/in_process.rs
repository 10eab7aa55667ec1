//! Models in the server's own process, for authors who debug a plugin.

use serde_json::json;
use std::time::Duration;

use super::{client::Incoming, server::Options};
use crate::{artifacts::plugin, checkpoints::bigram, processes::under};

fn in_process(plugins: Vec<std::path::PathBuf>, checkpoint: &std::path::Path) -> Options {
    let models = vec![("model".into(), checkpoint.into())];
    Options { models, plugins, arguments: vec!["--in-process".into()], ..Options::default() }
}

#[test]
fn a_model_in_the_servers_process_answers_and_ends_with_it() {
    let checkpoint = bigram(64, 256);
    let options = in_process(vec![plugin("bigram"), plugin("pensieve-samplers")], checkpoint.path());
    let mut server = options.start();
    let body = json!({ "prompt": "1 2 3", "model": "model", "max_tokens": 20, "temperature": 0, "stream": true });
    let streams: Vec<_> = (0..4).map(|_| Incoming::open(server.address, "/execute", &[], &body)).collect();
    let answers: Vec<_> = streams.into_iter().map(Incoming::events).collect();
    assert!(answers.iter().all(|events| events.last().unwrap().name == "end"), "{answers:?}");
    assert!(under("worker", server.pid()).is_empty());
    if cfg!(target_os = "linux") {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
        let home = server.home().path().to_str().unwrap();
        assert!(maps.lines().any(|line| line.contains(home) && line.ends_with(".so")), "no plugin is mapped: {maps}");
    }
    assert!(server.log().contains("models run in this process"));
    server.signal(libc::SIGTERM);
    let status = server.ended(Duration::from_secs(20)).expect("it does not end");
    assert!(status.success(), "{status}");
}
