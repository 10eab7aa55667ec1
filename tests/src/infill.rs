//! Filling in the middle over the wire: a model whose vocabulary has the tokens for it sees the text around the gap in its
//! own order, and answers with what belongs between.

use serde_json::{Value, json};
use std::{fs, path::Path};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{client::post, server::Options},
    scripted,
};

const PREFIX: &str = "def add(a, b):\n    return ";
const SUFFIX: &str = "\n\nprint(add(1, 2))\n";

/// A coder, which answers to this very prompt only.
fn coder(folder: &Path) {
    let prompt = format!("<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>");
    scripted::checkpoint(folder, &[(prompt.as_str(), "a + b<|endoftext|>and more")]);
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap().values().filter_map(Value::as_u64).max();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let first = added.iter().filter_map(|token| token["id"].as_u64()).chain(vocabulary).max().unwrap() + 1;
    for (name, id) in ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|endoftext|>"].iter().zip(first..) {
        if added.iter().all(|token| token["content"] != *name) {
            let flags = json!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
            let mut token = json!({"id": id, "content": name, "special": true});
            token.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            added.push(token);
        }
    }
    fs::write(path, tokenizer.to_string()).unwrap();
}

#[test]
fn a_coder_fills_in_the_middle_and_others_say_that_they_cannot() {
    let root = tempfile::tempdir().unwrap();
    let (coder_at, talker_at) = (root.path().join("coder"), root.path().join("talker"));
    coder(&coder_at);
    scripted::checkpoint(&talker_at, &[("", "Hello.")]);
    let models = vec![("coder".into(), coder_at), ("talker".into(), talker_at)];
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models, ..Options::default() }.start();
    let ask = |path: &str, model: &str, more: Value| {
        let mut body = json!({"model": model, "prompt": PREFIX, "suffix": SUFFIX});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.address, path, &body)
    };
    let completion = ask("/v1/completions", "coder", json!({"max_tokens": 50}));
    assert_eq!(completion.status(), 200, "{completion:?}");
    let choice = &completion.json()["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("a + b"), Some("stop")));

    let streamed = ask("/v1/completions", "coder", json!({"max_tokens": 50, "stream": true})).text();
    let events = streamed.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let texts: Vec<String> =
        events.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect();
    assert_eq!(texts.concat(), "a + b");

    let generated = ask("/api/generate", "coder", json!({"stream": false})).json();
    assert_eq!((&generated["response"], &generated["done_reason"]), (&json!("a + b"), &json!("stop")));

    let refused = ask("/v1/completions", "talker", json!({}));
    assert_eq!((refused.status(), &refused.json()["error"]["param"]), (400, &json!("suffix")));
}
