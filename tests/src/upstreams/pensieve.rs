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
    images, scripted,
};

const CALL: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"birds\"}}\n</tool_call>";
const SCRIPT: [(&str, &str); 4] =
    [("look", CALL), ("json", "{\"a\": 1}"), ("think", "<think>\nHm.\n</think>\n\nYes."), ("", "What is it?")];

/// The server that computes, and the one that clients ask, with these settings of its upstream.
fn start(root: &Path, settings: &str) -> (Server, Server) {
    let source = root.join("scripted");
    scripted::checkpoint(&source, &SCRIPT);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let engine = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    let url = format!("http://{}/v1", engine.address);
    let config = format!("[[models]]\nid = \"big\"\nupstream = \"{url}\"\nupstream_model = \"scripted\"\n{settings}\n");
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
    let (engine, door) = start(root.path(), "");
    says_the_same(&engine, &door, &["hi", "look", "json", "think"], |answer| answer);
}

#[test]
fn every_api_says_the_same_of_an_upstream_that_speaks_messages() {
    let root = tempfile::tempdir().unwrap();
    let (engine, door) = start(root.path(), "upstream_kind = \"anthropic\"");
    // Over Messages a model reasons only if it is asked to.
    says_the_same(&engine, &door, &["hi", "look", "json"], without_usage);
}

/// Usage counts only where the upstream reads the same form: templates show tools of another form in other words.
fn without_usage(mut answer: Value) -> Value {
    for name in ["usage", "prompt_eval_count", "usageMetadata"] {
        answer.as_object_mut().map(|answer| answer.shift_remove(name));
    }
    answer
}

fn says_the_same(engine: &Server, door: &Server, words: &[&str], compared: impl Fn(Value) -> Value) {
    for (api, path, body) in APIS.into_iter().filter(|(api, ..)| *api != "completions") {
        for word in words {
            let body: Value = serde_json::from_str(&body.replace("hi", word)).unwrap();
            let mut direct = body.clone();
            if direct.get("model").is_some() {
                direct["model"] = "scripted".into();
            }
            let expected = said(&post(engine.address, &path.replace("big", "scripted"), &with_tools(api, direct)));
            let found = said(&post(door.address, path, &with_tools(api, body)));
            assert_eq!(compared(found), compared(expected), "{api}, {word}");
        }
    }
    let tokens = |server: &Server, model: &str| {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "How many?" }] });
        post(server.address, "/v1/messages/count_tokens", &body).json()["input_tokens"].clone()
    };
    assert_eq!(tokens(door, "big"), tokens(engine, "scripted"));
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

/// Words that a client reads, however they are cut into pieces: all texts, calls and reasons in their order.
fn read_by_a_client(reply: &Reply) -> String {
    fn collect(value: &Value, name: &str, words: &mut String) {
        const READ: [&str; 13] = [
            "text",
            "content",
            "delta",
            "arguments",
            "partial_json",
            "thinking",
            "reasoning_content",
            "name",
            "finish_reason",
            "stop_reason",
            "done_reason",
            "message",
            "error",
        ];
        match value {
            Value::Object(members) => members.iter().for_each(|(name, value)| collect(value, name, words)),
            Value::Array(items) => items.iter().for_each(|item| collect(item, name, words)),
            Value::String(text) if READ.contains(&name) => *words += text,
            _ => {}
        }
    }
    let mut words = reply.status().to_string();
    let text = reply.text();
    for line in text.lines().map(|line| line.trim_start_matches("data: ")).filter(|line| line.starts_with('{')) {
        collect(&serde_json::from_str(line).unwrap(), "", &mut words);
    }
    words
}

/// The four choices of tools, in an API's form; Ollama has none.
fn choices(api: &str) -> Vec<Value> {
    match api {
        "messages" => vec![
            json!({"type": "auto"}),
            json!({"type": "none"}),
            json!({"type": "any"}),
            json!({"type": "tool", "name": "look"}),
        ],
        "chat" => vec![
            json!("auto"),
            json!("none"),
            json!("required"),
            json!({"type": "function", "function": {"name": "look"}}),
        ],
        "responses" => {
            vec![json!("auto"), json!("none"), json!("required"), json!({"type": "function", "name": "look"})]
        }
        _ => vec![Value::Null],
    }
}

/// A body that asks for JSON of a schema.
fn with_schema(api: &str, mut body: Value) -> Value {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"], "additionalProperties": false });
    match api {
        "messages" => body["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}}),
        "chat" => {
            body["response_format"] =
                json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": true}});
        }
        "responses" => {
            body["text"] = json!({"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": true}});
        }
        _ => body["format"] = schema,
    }
    body
}

#[test]
fn tools_schemas_log_probabilities_and_refusals_are_the_same_streamed_and_whole() {
    let root = tempfile::tempdir().unwrap();
    for settings in ["", "upstream_kind = \"anthropic\""] {
        let (engine, door) = start(root.path(), settings);
        for (api, path, body) in
            APIS.into_iter().filter(|(api, ..)| ["messages", "chat", "responses", "ollama"].contains(api))
        {
            let asked = |word: &str| {
                let mut body: Value = serde_json::from_str(&body.replace("\"hi\"", &format!("\"{word}\""))).unwrap();
                match api {
                    "ollama" => body["options"] = json!({ "temperature": 0, "num_predict": 50 }),
                    "responses" => (body["temperature"], body["max_output_tokens"]) = (json!(0), json!(50)),
                    _ => (body["temperature"], body["max_tokens"]) = (json!(0), json!(50)),
                }
                body
            };
            let mut bodies: Vec<(String, Value)> = Vec::new();
            for choice in choices(api) {
                let mut body = with_tools(api, asked("look"));
                if !choice.is_null() {
                    body["tool_choice"] = choice.clone();
                }
                bodies.push((choice.to_string(), body));
            }
            bodies.push(("a schema".into(), with_schema(api, asked("json"))));
            if api == "chat" && settings.is_empty() {
                let mut body = asked("hi");
                (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(2));
                bodies.push(("log-probabilities".into(), body));
            }
            bodies.push(("too long".into(), asked(&"word ".repeat(100_000))));
            for (what, body) in bodies {
                for stream in [false, true] {
                    let ask = |server: &Server, model: &str| {
                        let mut body = body.clone();
                        (body["model"], body["stream"]) = (model.into(), stream.into());
                        read_by_a_client(&post(server.address, path, &body))
                    };
                    let (found, expected) = (ask(&door, "big"), ask(&engine, "scripted"));
                    if what == "too long" {
                        // The number of its tokens may be an estimate on either side.
                        let told = ["400", "413"].contains(&&found[..3]) && found.contains("prompt is too long: ");
                        assert!(told && found[..3] == expected[..3], "{settings} {api}, {stream}: {found}; {expected}");
                    } else {
                        assert_eq!(found, expected, "{settings} {api}, {what}, {stream}");
                        assert!(found.starts_with("200"), "{api}, {what}: {found}");
                    }
                }
            }
        }
    }
}

#[test]
fn pictures_are_seen_through_an_upstream() {
    let root = tempfile::tempdir().unwrap();
    let engine = images::serve(root.path(), "");
    for kind in ["", "upstream_kind = \"anthropic\"\nupstream_images = true"] {
        let config = format!("[[models]]\nid = \"eyes\"\nupstream = \"http://{}/v1\"\n{kind}\n", engine.address);
        let door = Options::configured(&config).start();
        let pictures = ["rgb.png", "grey.png"].map(|name| images::asked(&images::picture(name)));
        let mut seen = Vec::new();
        for (path, field, body) in pictures.iter().flatten() {
            let (found, expected) = (post(door.address, path, body), post(engine.address, path, body));
            assert_eq!(found.status(), 200, "{kind} {path} {field}: {found:?}");
            // Chat completions have no pictures in results of tools; they follow after them.
            if !field.contains(".2.") || kind.contains("anthropic") {
                assert_eq!(read_by_a_client(&found), read_by_a_client(&expected), "{kind} {path} {field}");
            }
            seen.push(read_by_a_client(&found));
        }
        assert!(seen[0] != seen[seen.len() / 2], "two pictures look alike: {seen:?}");
    }
}

#[test]
fn a_prompt_that_is_too_long_for_a_model_goes_to_the_one_that_takes_over() {
    let root = tempfile::tempdir().unwrap();
    let (engine, _) = start(root.path(), "");
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
