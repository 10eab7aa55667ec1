//! Vision models with random weights, served to every API: what they say is noise, so usage, caches and the absence of
//! errors count.

use serde_json::{Value, json};

use crate::{
    artifacts::plugin,
    http::{
        client::post,
        server::{Options, Server},
    },
    images::{asked, base64, picture, used},
    reference::fixture,
};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// Rows that follow each other with positions of their own, and rows that see each other.
const MODELS: [(&str, &str); 2] = [("vision/qwen3_vl", "pensieve-qwen"), ("vision/gemma3", "pensieve-gemma")];

/// A server of a fixture, under the name that requests have.
fn serve(model: &str, family: &str) -> Server {
    let models = vec![("eyes".to_owned(), fixture(model))];
    let plugins = vec![plugin(family), plugin("pensieve-samplers")];
    Options { plugins, models, ..Options::default() }.start()
}

#[test]
fn every_api_shows_pictures_to_real_vision_models_and_counts_their_tokens() {
    for (model, family) in MODELS {
        let server = serve(model, family);
        let (one, other) = (asked(&picture("rgb.png")), asked(&picture("grey.png")));
        for ((path, field, one), (.., other)) in one.iter().zip(&other) {
            let what = format!("{model}, {path}, {field}");
            let ask = |body: &Value| {
                let reply = post(server.address, path, body);
                assert_eq!(reply.status(), 200, "{what}: {reply:?}");
                let warning = reply.header("warning").unwrap_or_default();
                assert!(!warning.contains("reads text only"), "{what}: {reply:?}");
                used(&reply.json())
            };
            let count = ask(one);
            assert!(count > 9, "{what}: {count}");
            assert_eq!([ask(other), ask(one)], [count; 2], "{what}");
            if *path == MESSAGES {
                let counted = post(server.address, COUNT, one).json();
                assert_eq!(counted["input_tokens"], count, "{what}: {counted}");
            }
        }
        let counted = post(server.address, "/v1/responses/input_tokens", &one[4].2).json();
        let answered = post(server.address, one[4].0, &one[4].2).json();
        assert_eq!(counted["input_tokens"], answered["usage"]["input_tokens"], "{model}: {answered}");
    }
}

#[test]
fn the_next_turn_with_a_real_vision_model_is_read_from_the_cache() {
    for (model, family) in MODELS {
        let server = serve(model, family);
        let image = |name: &str| json!({"type": "image", "source": {"type": "base64", "data": base64(&picture(name))}});
        let words = "a long story about a picture, ".repeat(60);
        let content = json!([image("rgb.png"), {"type": "text", "text": words}, image("grey.png")]);
        let mut messages = vec![json!({"role": "user", "content": content})];
        let ask = |messages: &[Value]| {
            let body = json!({"model": "eyes", "max_tokens": 4, "temperature": 0, "messages": messages});
            let counted = post(server.address, COUNT, &body).json();
            let reply = post(server.address, MESSAGES, &body);
            assert_eq!(reply.status(), 200, "{model}: {reply:?}");
            assert_eq!(counted["input_tokens"], used(&reply.json()), "{model}: {reply:?}");
            let usage = &reply.json()["usage"];
            ["cache_read_input_tokens", "input_tokens"].map(|name| usage[name].as_u64().unwrap())
        };
        let [read, _] = ask(&messages);
        assert_eq!(read, 0, "{model}");
        messages.push(json!({"role": "assistant", "content": "I see."}));
        messages.push(json!({"role": "user", "content": "go on"}));
        let [read, new] = ask(&messages);
        assert!(read * 100 >= (read + new) * 95, "{model}: {read} of {}", read + new);
        // With the pictures exchanged the words between them are others.
        messages[0]["content"].as_array_mut().unwrap().swap(0, 2);
        let [read, new] = ask(&messages);
        assert!(read * 10 < read + new, "{model}: {read} of {}", read + new);
    }
}
