//! Conversations that outgrow their context, over the wire: what is cut stays cut in the turns after, so that they find
//! their prompts in the cache, and a summary takes a conversation's place.

use serde_json::{Value, json};
use std::path::Path;

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, post},
        server::{Options, Server},
    },
    scripted,
};

const CONTEXT: u64 = 4096;
const SUMMARY: &str = "The launch is on Tuesday.";

/// A server with a small context.
fn serve(root: &Path) -> Server {
    let source = root.join("scripted");
    scripted::checkpoint(&source, &[("Sum up", SUMMARY), ("in French", "Mardi."), ("silence", ""), ("", "Good.")]);
    let source = source.display();
    let config = format!("[[models]]\nid = \"scripted\"\nsource = \"{source}\"\ncontext = {CONTEXT}\n");
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, config, ..Options::default() }.start()
}

fn ask(server: &Server, path: &str, body: &Value) -> Reply {
    let reply = post(server.address, path, body);
    assert_eq!(reply.status(), 200, "{reply:?}");
    reply
}

fn message(server: &Server, messages: &[Value], more: &Value) -> Value {
    ask(server, "/v1/messages", &body(messages, more)).json()
}

fn body(messages: &[Value], more: &Value) -> Value {
    let mut body = json!({"model": "scripted", "max_tokens": 50, "messages": messages});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn assistant(content: impl Into<Value>) -> Value {
    json!({"role": "assistant", "content": content.into()})
}

/// Prompt and cached tokens of an answer of Anthropic's API.
fn read(message: &Value) -> (u64, u64) {
    let of = |name: &str| message["usage"][name].as_u64().unwrap();
    (of("input_tokens") + of("cache_read_input_tokens"), of("cache_read_input_tokens"))
}

/// Counts how often a cut moved; in all other turns, 95 % of the prompt before must be reused.
#[derive(Default)]
struct Session {
    prompt: u64,
    cut: u64,
    moved: usize,
    turns: usize,
}

impl Session {
    fn turn(&mut self, (prompt, cached): (u64, u64), cut: u64) {
        println!("turn {}: {cached} of {prompt} tokens cached, cut {cut}", self.turns);
        assert!(cut >= self.cut, "a cut is taken back: {cut} after {}", self.cut);
        if cut > self.cut {
            self.moved += 1;
        } else {
            assert!(cached * 100 >= self.prompt * 95, "{cached} of {} tokens are reused", self.prompt);
        }
        (self.prompt, self.cut, self.turns) = (prompt, cut, self.turns + 1);
    }
}

/// A call with a result of about 200 tokens.
fn round(number: usize) -> [Value; 2] {
    let id = format!("toolu_{number}");
    let text = format!("file {number} ").repeat(25);
    [
        assistant(
            json!([{"type": "tool_use", "id": id, "name": "Read", "input": {"path": format!("src/{number}.rs")}}]),
        ),
        user(json!([{"type": "tool_result", "tool_use_id": id, "content": text}])),
    ]
}

#[test]
fn results_of_tools_are_cleared_and_the_turns_after_find_their_prompt() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let edit = json!({
        "type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 2500},
        "keep": {"type": "tool_uses", "value": 2},
    });
    let tools =
        json!([{"name": "Read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}]);
    let more = json!({"tools": tools, "context_management": {"edits": [edit]}});
    let mut messages = vec![user("Read all files.")];
    let mut session = Session::default();
    for number in 0..32 {
        messages.extend(round(number));
        let answer = message(&server, &messages, &more);
        let applied = &answer["context_management"]["applied_edits"];
        assert!(applied.as_array().unwrap().len() <= 1, "{applied}");
        let (prompt, cached) = read(&answer);
        assert!(prompt < 3600, "a prompt of {prompt} tokens");
        session.turn((prompt, cached), applied[0]["cleared_tool_uses"].as_u64().unwrap_or(0));
    }
    assert!((2..=6).contains(&session.moved), "cleared in {} of {} turns", session.moved, session.turns);
    // The same request counts the same, and what it would be without the edit.
    let body = body(&messages, &more);
    let short = json!({"model": "scripted", "messages": body["messages"], "tools": body["tools"]});
    let counted = ask(&server, "/v1/messages/count_tokens", &body).json();
    assert_eq!(counted["input_tokens"], session.prompt);
    let original = counted["context_management"]["original_input_tokens"].as_u64().unwrap();
    assert!(original > session.prompt + 2000, "{original}");
    assert_eq!(ask(&server, "/v1/messages/count_tokens", &short).json()["input_tokens"], original);
}

#[test]
fn the_oldest_turns_are_left_out_and_the_turns_after_find_their_prompt() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut input = vec![json!({"role": "developer", "content": "Answer in one word. ".repeat(20)})];
    let mut session = Session::default();
    let mut refused = None;
    for turn in 0..60 {
        input.push(json!({"role": "user", "content": format!("Question {turn}: {}", "is this good? ".repeat(30))}));
        let body = |truncation: &str| json!({"model": "scripted", "input": input, "truncation": truncation});
        if refused.is_none() && turn % 10 == 9 {
            let reply = post(server.address, "/v1/responses", &body("disabled"));
            refused = (reply.status() == 400).then_some(turn);
        }
        let reply = ask(&server, "/v1/responses", &body("auto"));
        let left_out = |warning: &str| warning.split_whitespace().find_map(|word| word.parse().ok());
        let warning = reply.header("warning").unwrap_or_default().replace("299 ", "");
        let answer = reply.json();
        let of = |field: &Value| field.as_u64().unwrap();
        let usage = &answer["usage"];
        let read = (of(&usage["input_tokens"]), of(&usage["input_tokens_details"]["cached_tokens"]));
        session.turn(read, left_out(&warning).unwrap_or(0));
        input.extend(answer["output"].as_array().unwrap().iter().cloned());
    }
    assert!(refused.is_some(), "without truncation it has to be refused");
    assert!((3..=8).contains(&session.moved), "cut in {} of {} turns", session.moved, session.turns);
}

#[test]
fn a_summary_takes_the_place_of_a_conversation_and_the_turns_after_find_their_prompt() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let edit = |more: Value| {
        let mut edit = json!({"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1000}});
        edit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"context_management": {"edits": [edit]}})
    };
    let long = "We talk about the launch. ".repeat(150);
    let mut messages = vec![user(long.as_str()), assistant("Good."), user("When is it?")];
    let small = message(&server, &[user("When is it?")], &edit(json!({})));
    assert_eq!((small["content"].as_array().unwrap().len(), &small["usage"]["iterations"]), (1, &Value::Null));

    let answer = message(&server, &messages, &edit(json!({})));
    let summary = answer["content"][0]["content"].as_str().unwrap();
    assert_eq!(answer["content"][0]["type"], "compaction");
    assert!(summary.starts_with(SUMMARY) && summary.ends_with("When is it?"), "{summary}");
    assert_eq!(answer["content"][1]["text"], "Good.");
    let (prompt, _) = read(&answer);
    let making = &answer["usage"]["iterations"][0];
    assert!(making["input_tokens"].as_u64().unwrap() + making["cache_read_input_tokens"].as_u64().unwrap() > 1000);
    assert!(prompt < 250, "{prompt} tokens after the summary");

    // It goes on from the summary, whatever stands before it, and with or without the edit.
    messages.extend([assistant(answer["content"].clone()), user("Where?")]);
    for more in [edit(json!({})), json!({})] {
        let next = message(&server, &messages, &more);
        let (next, cached) = read(&next);
        // All but the blocks that the answer ends in.
        assert!(next < prompt + 60 && cached + 32 >= prompt, "{cached} of {prompt} reused, {next} in all");
    }

    // A pause after it, in other words; and on demand.
    let paused = edit(json!({"pause_after_compaction": true, "instructions": "Tell it in French."}));
    for (more, expect) in [(paused, "Mardi."), (json!({"compaction": {"type": "summarize"}}), SUMMARY)] {
        let answer = message(&server, &messages[..3], &more);
        assert_eq!((&answer["stop_reason"], answer["content"].as_array().unwrap().len()), (&json!("compaction"), 1));
        assert!(answer["content"][0]["content"].as_str().unwrap().starts_with(expect), "{answer}");
    }

    // Without a summary the conversation stays as it is.
    let failed = message(&server, &messages[..3], &edit(json!({"instructions": "silence"})));
    assert_eq!((&failed["content"][0]["content"], &failed["content"][1]["text"]), (&Value::Null, &json!("Good.")));
}

#[test]
fn a_response_begins_with_a_summary_beyond_its_threshold() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let managed = json!([{"type": "compaction", "compact_threshold": 1000}]);
    let long = "We talk about the launch. ".repeat(150);
    let first = json!({"model": "scripted", "input": long, "context_management": managed});
    let answer = ask(&server, "/v1/responses", &first).json();
    let output = answer["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["compaction", "message"]);
    assert!(answer["usage"]["pensieve"]["compaction"]["input_tokens"].as_u64().unwrap() > 1000);
    let prompt = answer["usage"]["input_tokens"].as_u64().unwrap();

    // The whole list, as clients send it, and the stored response go on from the summary.
    let mut input = vec![json!({"role": "user", "content": long})];
    input.extend(output.iter().cloned());
    input.push(json!({"role": "user", "content": "Where?"}));
    let id = &answer["id"];
    for body in [
        json!({"model": "scripted", "input": input, "context_management": managed}),
        json!({"model": "scripted", "input": "Where?", "previous_response_id": id}),
    ] {
        let next = ask(&server, "/v1/responses", &body).json();
        let usage = &next["usage"];
        let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(usage["input_tokens"].as_u64().unwrap() < prompt + 60, "{next}");
        assert!(cached + 32 >= prompt, "{cached} of {prompt} reused");
    }
    let odd = json!({"model": "scripted", "input": "hi", "context_management": [{"type": "clear"}]});
    let refused = post(server.address, "/v1/responses", &odd);
    assert_eq!((refused.status(), &refused.json()["error"]["param"]), (400, &json!("context_management.0.type")));
}
