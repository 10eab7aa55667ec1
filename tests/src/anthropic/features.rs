//! Features of messages, streamed and whole.

use serde_json::{Value, json};

use super::{COUNT, MESSAGES, about, both, calls, input_tokens, serve, streamed, text, tools, whole};
use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{post, request},
        server::{Options, Server},
    },
    scripted,
};

fn with_server(test: impl FnOnce(&Server)) {
    let root = tempfile::tempdir().unwrap();
    test(&serve(root.path()));
}

#[test]
fn a_message_is_answered() {
    with_server(|server| {
        let message = both(server, &about("Say hello", &json!({"system": "Be kind.", "temperature": 1})));
        assert_eq!(message["content"], json!([{"type": "text", "text": "Hello there, blåbær friend 🫐."}]));
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("end_turn"), &Value::Null));
        assert_eq!((&message["model"], &message["role"]), (&json!("scripted"), &json!("assistant")));
        assert!(message["usage"]["output_tokens"].as_u64().unwrap() > 5);
        let other = both(server, &about("Say hello", &json!({"model": "claude-haiku-background"})));
        assert_eq!((text(&other), &other["model"]), (text(&message), &json!("claude-haiku-background")));
    });
}

#[test]
fn an_answer_may_be_nothing() {
    with_server(|server| {
        let message = both(server, &about("Say nothing", &json!({})));
        assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!("end_turn")));
    });
}

#[test]
fn every_reason_to_stop_is_told() {
    with_server(|server| {
        let hello = |more: Value| both(server, &about("Say hello", &more));
        let stopped = hello(json!({"stop_sequences": ["x", "there,", "blå"]}));
        assert_eq!(text(&stopped), "Hello ");
        assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!("there,")));
        let cut = hello(json!({"max_tokens": 3}));
        assert_eq!((&cut["stop_reason"], &cut["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(3)));
        // A limit beyond the context is reduced to the context.
        assert_eq!(hello(json!({"max_tokens": 32_000_000_000_000_u64}))["stop_reason"], "end_turn");
    });
}

#[test]
fn a_full_context_is_told_from_a_full_answer() {
    let root = tempfile::tempdir().unwrap();
    let server = super::serve_with(root.path(), "context = 64");
    let message = both(&server, &about("Go on forever", &json!({"max_tokens": 1000})));
    assert_eq!(message["stop_reason"], "model_context_window_exceeded");
    assert_eq!(input_tokens(&message) + message["usage"]["output_tokens"].as_u64().unwrap(), 64);
}

#[test]
fn thoughts_are_a_block_with_a_signature() {
    with_server(|server| {
        let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
        let message = both(server, &about("Please think", &enabled));
        assert_eq!(message["content"][0]["thinking"], "Let me see.");
        assert!(message["content"][0]["signature"].as_str().is_some_and(|signature| !signature.is_empty()));
        assert_eq!(message["content"][1], json!({"type": "text", "text": "Forty-two."}));
        let messages = json!([
            {"role": "user", "content": "Please think"},
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": "Say hello"},
        ]);
        let adaptive =
            json!({"thinking": {"type": "adaptive"}, "messages": messages, "output_config": {"effort": "high"}});
        assert_eq!(text(&both(server, &about("", &adaptive))), "Hello there, blåbær friend 🫐.");
    });
}

#[test]
fn tools_are_called() {
    with_server(|server| {
        let ask = |text: &str, more: Value| {
            let mut more = more;
            more["tools"] = tools();
            both(server, &about(text, &more))
        };
        let ls = |command: &str| ("Bash".to_owned(), json!({ "command": command }));
        let now = ("Now".to_owned(), json!({}));
        let one = ask("Please call", json!({}));
        assert_eq!((calls(&one), &one["stop_reason"]), (vec![ls("ls -l")], &json!("tool_use")));
        let two = ask("Please call twice", json!({}));
        assert_eq!((calls(&two), text(&two)), (vec![ls("ls"), now.clone()], "Both.".to_owned()));
        let choice = |choice: Value| json!({ "tool_choice": choice });
        let single = ask("Please call twice", choice(json!({"type": "auto", "disable_parallel_tool_use": true})));
        assert_eq!(calls(&single), [ls("ls")]);
        // The model would rather talk, but must call a tool.
        let any = ask("Say hello", choice(json!({"type": "any"})));
        assert_eq!((calls(&any).len(), &any["stop_reason"]), (1, &json!("tool_use")));
        let named = ask("Please call", choice(json!({"type": "tool", "name": "Now"})));
        assert_eq!(calls(&named), [now]);
        let none = ask("Say hello", choice(json!({"type": "none"})));
        assert_eq!(text(&none), "Hello there, blåbær friend 🫐.");
        assert!(calls(&ask("Please call", choice(json!({"type": "none"})))).is_empty());
    });
}

#[test]
fn arguments_come_in_pieces() {
    with_server(|server| {
        let (events, _) = streamed(server, &about("Please call", &json!({"tools": tools()})));
        let pieces: Vec<&str> = events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str()).collect();
        assert!(pieces.len() > 2, "{pieces:?}");
        let arguments: Value = serde_json::from_str(&pieces.concat()).unwrap();
        assert_eq!(arguments, json!({"command": "ls -l"}));
    });
}

#[test]
fn answers_keep_to_schemas_and_grammars() {
    with_server(|server| {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
            "required": ["city", "degrees"], "additionalProperties": false});
        let format = json!({"format": {"type": "json_schema", "schema": schema}});
        let answer = both(server, &about("Give me json", &json!({ "output_config": format })));
        assert_eq!(text(&answer), r#"{"city": "Oslo", "degrees": 21}"#);
        let forced = both(server, &about("Say hello", &json!({ "output_config": format })));
        let forced: Value = serde_json::from_str(&text(&forced)).unwrap();
        // JSON Schema accepts 2.0 as an integer.
        assert!(forced["degrees"].as_f64().is_some_and(|degrees| degrees.fract() == 0.0), "{forced}");
        let grammar = json!({"pensieve": {"grammar": {"regex": "(yes|no)"}, "seed": 7}});
        assert!(["yes", "no"].contains(&text(&both(server, &about("Say hello", &grammar))).as_str()));
        let samplers = json!({"pensieve": {"samplers": [{"sampler": "top_k", "k": 5}, "seeded"]}});
        assert_eq!(text(&both(server, &about("Say hello", &samplers))), "Hello there, blåbær friend 🫐.");
    });
}

#[test]
fn an_assistant_message_at_the_end_is_continued() {
    with_server(|server| {
        let messages = json!([
            {"role": "user", "content": "Say hello"}, {"role": "assistant", "content": "Hello there,"},
        ]);
        assert_eq!(text(&both(server, &about("", &json!({ "messages": messages })))), " blåbær friend 🫐.");
    });
}

#[test]
fn tokens_are_counted_without_loading_the_model() {
    with_server(|server| {
        let count = |body: &Value| {
            let reply = post(server.address, COUNT, body);
            assert_eq!(reply.status(), 200, "{reply:?}");
            reply.json()["input_tokens"].as_u64().unwrap()
        };
        let without_max = |mut body: Value| {
            body.as_object_mut().unwrap().remove("max_tokens");
            body
        };
        let plain = about("Say hello", &json!({}));
        let full = about("Say hello", &json!({"system": "Be kind.", "tools": tools()}));
        let counted = [&plain, &full].map(|body| count(&without_max(body.clone())));
        assert!(counted[0] + 50 < counted[1], "{counted:?}");
        // Tools whose loading is deferred cost nothing until they are found.
        let mut deferred = full.clone();
        let store = |place: usize| {
            let (name, description) = (format!("mcp__store__{place}"), "Looks a record up. ".repeat(20));
            json!({"name": name, "description": description, "input_schema": {"type": "object"}, "defer_loading": true})
        };
        deferred["tools"].as_array_mut().unwrap().extend((0..80).map(store));
        assert_eq!(count(&without_max(deferred)), counted[1]);
        // Requests that do not fit are counted, too.
        assert!(count(&about(&"word ".repeat(80_000), &json!({}))) > 65_536);
        let health = server.get("/health").json();
        assert_eq!(health["models"][0]["loads"], 0, "{health}");
        assert_eq!([&plain, &full].map(|body| input_tokens(&whole(server, body))), counted);
        let (events, _) = streamed(server, &full);
        assert_eq!(events[0].1["message"]["usage"]["input_tokens"], counted[1]);
    });
}

#[test]
fn the_other_route_streams_whatever_the_body_says() {
    with_server(|server| {
        for stream in [json!(false), json!(true), Value::Null] {
            let reply = post(server.address, "/v1/messages/stream", &about("Say hello", &json!({ "stream": stream })));
            assert_eq!(reply.header("content-type"), Some("text/event-stream"));
            let events = super::order::events(&reply.text()).unwrap();
            assert_eq!(text(&super::order::message(&events).unwrap()), "Hello there, blåbær friend 🫐.");
        }
    });
}

#[test]
fn models_are_listed() {
    with_server(|server| {
        let version = [("anthropic-version", "2023-06-01")];
        let get = |path: &str| request(server.address, "GET", path, &version, b"");
        let list = get("/v1/models?limit=20").json();
        let model = list["data"][0].clone();
        // Claude Code only keeps ids that contain "claude", so each model is also listed under such a name.
        let alias = list["data"][1].clone();
        assert_eq!(alias["id"], "pensieve/claude-scripted");
        let ends = (&list["has_more"], &list["first_id"], &list["last_id"]);
        assert_eq!(ends, (&json!(false), &json!("scripted"), &alias["id"]));
        assert_eq!(list["data"].as_array().unwrap().len(), 2);
        assert_eq!(get("/v1/models/scripted").json(), model);
        assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("scripted")));
        assert!(model["created_at"].as_str().unwrap().ends_with('Z'));
        let missing = get("/v1/models/nobody");
        assert_eq!((missing.status(), &missing.json()["error"]["type"]), (404, &json!("not_found_error")));
    });
}

#[test]
fn base_models_have_no_name_for_claude_code() {
    let root = tempfile::tempdir().unwrap();
    let models = ["chat", "base"].map(|id| {
        let source = root.path().join(id);
        scripted::checkpoint(&source, &[("", "Hello.")]);
        (id.to_owned(), source)
    });
    std::fs::remove_file(root.path().join("base/chat_template.jinja")).unwrap();
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: models.into(), ..Options::default() }.start();
    let list = request(server.address, "GET", "/v1/models", &[("anthropic-version", "2023-06-01")], b"").json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, ["chat", "base", "pensieve/claude-chat"]);
}

#[test]
fn claude_codes_first_words_are_understood() {
    with_server(|server| {
        assert_eq!(request(server.address, "HEAD", "/", &[], b"").status(), 200);
        let headers = [
            ("content-type", "application/json"),
            ("x-api-key", "pensieve-local-key"),
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "from-the-future-2099-01-01,another"),
            ("accept-encoding", "gzip, deflate, br, zstd"),
        ];
        let body = about(
            "Say hello",
            &json!({
                "metadata": {"user_id": "user_1"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}, "max_tokens": 32000,
            }),
        );
        let path = format!("{MESSAGES}?beta=true");
        let reply = request(server.address, "POST", &path, &headers, body.to_string().as_bytes());
        assert_eq!((reply.status(), text(&reply.json()).as_str()), (200, "Hello there, blåbær friend 🫐."));
    });
}
