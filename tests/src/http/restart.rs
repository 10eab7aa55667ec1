//! A restarted server continues from what it has on disk.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

use super::{
    client::request,
    server::{Options, Server},
};
use crate::{artifacts::plugin, checkpoints::llama, random::Random};

/// Words of letters, each of which is a token of the fixture's tokenizer.
fn words(random: &mut Random, letters: usize) -> String {
    let letter = |random: &mut Random| match random.below(7) {
        0 => ' ',
        _ => char::from(b'a' + random.below(26) as u8),
    };
    (0..letters).map(|_| letter(random)).collect()
}

/// Requests the next turn with a key; returns the time it took and the response.
fn turn(server: &Server, key: &str, messages: &Value) -> (Duration, Value) {
    let body = json!({ "model": "llama", "max_tokens": 4, "temperature": 0, "messages": messages });
    let headers = [("content-type", "application/json"), ("x-api-key", key)];
    let began = Instant::now();
    let reply = request(server.address, "POST", "/v1/messages", &headers, body.to_string().as_bytes());
    let took = began.elapsed();
    assert_eq!(reply.status(), 200, "{reply:?}");
    (took, reply.json())
}

#[test]
fn the_next_turn_of_a_long_conversation_comes_from_disk() {
    let checkpoint = llama(16_384);
    let options = Options {
        plugins: vec![plugin("pensieve-llama"), plugin("pensieve-samplers")],
        config: format!(
            "[server]\nkey = [\"one\", \"two\"]\n[[models]]\nid = \"llama\"\nsource = \"{}\"\ndevice = \"cpu\"\n\
            kv_budget = \"128MiB\"\n",
            checkpoint.path().display()
        ),
        ..Options::default()
    };
    let mut random = Random(1);
    let first = words(&mut random, 8200);
    let server = options.start();
    let (_, answer) = turn(&server, "one", &json!([{ "role": "user", "content": first }]));
    assert!(answer["usage"]["input_tokens"].as_u64().unwrap() > 8000, "{answer}");
    let home = server.home().clone();
    let log = server.stop();

    let server = options.start_in(&home);
    // Load the model first, so that only the turn is measured.
    turn(&server, "two", &json!([{ "role": "user", "content": "hello" }]));
    let second = words(&mut random, 100);
    let messages = json!([
        { "role": "user", "content": first },
        { "role": "assistant", "content": answer["content"] },
        { "role": "user", "content": second },
    ]);
    let (with, reused) = turn(&server, "one", &messages);
    let usage = &reused["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let total = count("input_tokens") + count("cache_read_input_tokens") + count("cache_creation_input_tokens");
    assert!(count("cache_read_input_tokens") * 100 >= total * 95, "{usage} after {log}");
    // Requests with the other key do not see this one's cache.
    let (without, computed) = turn(&server, "two", &messages);
    assert_eq!(computed["usage"]["cache_read_input_tokens"].as_u64().unwrap_or(0), 0);
    assert_eq!(reused["content"], computed["content"]);
    println!("{total} tokens: {with:?} from disk, {without:?} without");
    assert!(with * 10 <= without, "{with:?} from disk, {without:?} without");
}
