//! Another Pensieve as the upstream, whose model follows a script: what clients get through the first is what the second says.

use serde_json::{Value, json};
use std::path::Path;

use super::APIS;
use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post},
        server::{Options, Server},
    },
    scripted,
};

const CALL: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"birds\"}}\n</tool_call>";
const SCRIPT: [(&str, &str); 4] =
    [("look", CALL), ("json", "{\"a\": 1}"), ("think", "<think>\nHm.\n</think>\n\nYes."), ("", "What is it?")];

/// The server that computes, and the one that clients ask.
fn start(root: &Path) -> (Server, Server) {
    let source = root.join("scripted");
    scripted::checkpoint(&source, &SCRIPT);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let engine = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    let url = format!("http://{}/v1", engine.address);
    let config = format!("[[models]]\nid = \"big\"\nupstream = \"{url}\"\nupstream_model = \"scripted\"\n");
    (engine, Options::configured(&config).start())
}

/// The parts in which two answers that say the same do not differ.
fn said(reply: &Reply) -> Value {
    assert_eq!(reply.status(), 200, "{reply:?}");
    let mut body = reply.json();
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                let own = [
                    "id",
                    "call_id",
                    "item_id",
                    "model",
                    "created",
                    "created_at",
                    "completed_at",
                    "system_fingerprint",
                ];
                let of_time =
                    ["load_duration", "total_duration", "prompt_eval_duration", "eval_duration", "responseId"];
                members.retain(|name, _| !own.contains(&name.as_str()) && !of_time.contains(&name.as_str()));
                // The second time the prompt comes from the cache; a cache miss has no reason through an upstream.
                members.retain(|name, _| !name.contains("cache") && name != "pensieve" && name != "modelVersion");
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut body);
    // Anthropic's input tokens are those that are not cached.
    body["usage"].as_object_mut().map(|usage| usage.shift_remove("input_tokens"));
    body
}

#[test]
fn every_api_says_what_the_upstream_says_itself() {
    let root = tempfile::tempdir().unwrap();
    let (engine, door) = start(root.path());
    for (api, path, body) in APIS.into_iter().filter(|(api, ..)| *api != "completions") {
        for word in ["hi", "look", "json", "think"] {
            let body: Value = serde_json::from_str(&body.replace("hi", word)).unwrap();
            let mut direct = body.clone();
            if direct.get("model").is_some() {
                direct["model"] = "scripted".into();
            }
            let expected = said(&post(engine.address, &path.replace("big", "scripted"), &with_tools(api, direct)));
            let found = said(&post(door.address, path, &with_tools(api, body)));
            assert_eq!(found, expected, "{api}, {word}");
        }
    }
    let tokens = |server: &Server, model: &str| {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "How many?" }] });
        post(server.address, "/v1/messages/count_tokens", &body).json()["input_tokens"].clone()
    };
    assert_eq!(tokens(&door, "big"), tokens(&engine, "scripted"));
}

/// A body with a tool, in its API's form.
fn with_tools(api: &str, mut body: Value) -> Value {
    let schema = json!({ "type": "object", "properties": { "at": { "type": "string" } } });
    body["stream"] = false.into();
    match api {
        "messages" => body["tools"] = json!([{ "name": "look", "description": "looks", "input_schema": schema }]),
        "responses" => {
            body["tools"] =
                json!([{ "type": "function", "name": "look", "description": "looks", "parameters": schema }]);
        }
        "gemini" => {
            body.as_object_mut().map(|body| body.shift_remove("stream"));
            let function = json!({ "name": "look", "description": "looks", "parameters": schema });
            body["tools"] = json!([{ "functionDeclarations": [function] }]);
        }
        _ => {
            let function = json!({ "name": "look", "description": "looks", "parameters": schema });
            body["tools"] = json!([{ "type": "function", "function": function }]);
        }
    }
    body
}

#[test]
fn a_prompt_that_is_too_long_for_a_model_goes_to_the_one_that_takes_over() {
    let root = tempfile::tempdir().unwrap();
    let (engine, _) = start(root.path());
    let source = root.path().join("scripted");
    let config = format!(
        "[[models]]\nid = \"small\"\nsource = {source:?}\ncontext = 256\n[models.handover]\nto = \"big\"\n\
         [[models]]\nid = \"big\"\nupstream = \"http://{}/v1\"\nupstream_model = \"scripted\"\n",
        engine.address
    );
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let door = Options { plugins, config, ..Options::default() }.start();
    let ask = |words: usize| {
        let text = "word ".repeat(words);
        let body = json!({ "model": "small", "max_tokens": 20, "messages": [{ "role": "user", "content": text }] });
        let reply = post(door.address, "/v1/messages", &body);
        assert_eq!(reply.status(), 200, "{reply:?}");
        (reply.header("pensieve-model").map(str::to_owned), reply.header("pensieve-handover").map(str::to_owned))
    };
    assert_eq!(ask(3), (None, None));
    assert_eq!(ask(300), (Some("big".into()), Some("prompt-too-long".into())));
    assert!(door.stop().contains("handed over"));
}
