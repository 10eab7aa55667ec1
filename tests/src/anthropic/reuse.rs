//! The recorded tool loop of Claude Code: every request repeats the previous one, and nothing that changes between them
//! may alter the start of the prompt.

use serde_json::{Value, json};

use super::{COUNT, about, calls, input_tokens, serve, serve_with, streamed, text, tools};
use crate::http::client::post;

/// A round's request: a billing line that is always different, `cache_control` on the last block, and a reminder of the
/// remaining tokens after every result.
fn request(round: usize, turns: &[Value]) -> Value {
    let billing =
        format!("x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli; cch={:05x};", round * 7919);
    let system = json!([
        {"type": "text", "text": billing},
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be careful with what is not yours, and say what you are about to do. ".repeat(60)},
    ]);
    let mut messages = turns.to_vec();
    if let Some(block) = messages.last_mut().and_then(|turn| turn["content"].as_array_mut()?.last_mut()) {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
    about("", &json!({"system": system, "tools": tools(), "messages": messages, "max_tokens": 32_000}))
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

#[test]
fn a_tool_loop_reuses_its_prompt_although_the_billing_line_changes() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let mut turns = vec![user(json!([{"type": "text", "text": "Please call"}]))];
    let mut before = 0;
    for round in 0..4 {
        let (_, message) = streamed(&server, &request(round, &turns));
        let (total, read) = (input_tokens(&message), message["usage"]["cache_read_input_tokens"].as_u64().unwrap());
        println!("round {round}: {total} tokens of input, {read} of them read, {before} in the round before");
        assert!(read * 100 >= before * 95, "only {read} of {before} tokens are reused");
        assert_eq!(message["usage"]["cache_creation_input_tokens"], 0);
        before = total;
        if round == 0 {
            assert_eq!(calls(&message), [("Bash".to_owned(), json!({"command": "ls -l"}))]);
        }
        turns.push(json!({"role": "assistant", "content": message["content"]}));
        let call = message["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use");
        match call {
            Some(call) => {
                turns.push(user(json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "a\nb\nc"}])));
                let left = format!("<total_tokens>{} tokens left</total_tokens>", 100_000 - 37 * round);
                turns.push(json!({"role": "system", "content": left}));
            }
            None => {
                assert_eq!(text(&message), "There are three files.");
                turns.push(user(json!([{"type": "text", "text": "Please call"}])));
            }
        }
    }
}

#[test]
fn a_tool_that_is_added_leaves_the_head_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let system = "Be careful with what is not yours, and say what you are about to do. ".repeat(40);
    let mut list = tools();
    let mut turns = vec![user(json!("Please say hello"))];
    let mut before = 0;
    for round in 0..4 {
        let fields = json!({"system": system, "tools": list, "messages": turns, "max_tokens": 100});
        let (_, message) = streamed(&server, &about("", &fields));
        let (total, read) = (input_tokens(&message), message["usage"]["cache_read_input_tokens"].as_u64().unwrap());
        println!("round {round}: {total} tokens of input, {read} of them read, {before} in the round before");
        assert!(read * 100 >= before * 95, "only {read} of {before} tokens are reused");
        before = total;
        turns.push(json!({"role": "assistant", "content": message["content"]}));
        turns.push(user(json!("Please say hello")));
        let name = format!("added_{round}");
        let added = json!({"name": name, "description": "Does more.", "input_schema": {"type": "object"}});
        // In front of the others, as a client that sorts them sends it.
        list.as_array_mut().unwrap().insert(0, added);
    }
    // An added tool can be called, and must be if the request says so.
    let choice = json!({"type": "tool", "name": "added_1"});
    let fields = json!({"system": system, "tools": list, "messages": turns, "tool_choice": choice, "max_tokens": 100});
    let (_, message) = streamed(&server, &about("", &fields));
    assert_eq!(calls(&message)[0].0, "added_1");
}

/// Codex asks for its summaries without tools.
#[test]
fn a_request_without_tools_finds_its_conversation_in_the_cache_unless_that_makes_it_too_long() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let length = |body: &Value| post(server.address, COUNT, body).json()["input_tokens"].as_u64().unwrap();
    let system = "Be careful with what is not yours. ".repeat(40);
    let hello = user(json!("Please say hello"));
    let first = about("", &json!({"system": system, "tools": tools(), "messages": [hello], "max_tokens": 100}));
    let go_on = |words: &str| {
        let turns = json!([hello, {"role": "assistant", "content": "Hello."}, user(json!(words))]);
        about("", &json!({"system": system, "messages": turns, "max_tokens": 100}))
    };
    let cached = |message: &Value| message["usage"]["cache_read_input_tokens"].as_u64().unwrap();

    let (_, message) = streamed(&server, &first);
    let before = input_tokens(&message);
    // The tools are shown again, though they cannot be called.
    let (_, message) = streamed(&server, &go_on("Please call"));
    assert!(cached(&message) * 100 >= before * 95, "{message:#}");
    assert!(calls(&message).is_empty(), "{message:#}");
    // They are not counted, as the request does not have them.
    let (bare, tools) =
        (length(&go_on("Please call")), before - length(&about("", &json!({"system": system, "messages": [hello]}))));
    assert!(bare + tools > before && bare < before, "{bare} {tools} {before}");

    let long = go_on(&format!("Please say hello {}", "again ".repeat(tools as usize / 3)));
    let context = before.max(length(&long)) + 20;
    assert!(length(&long) + tools > context, "{tools} tokens of tools are too few for this test");
    let root = tempfile::tempdir().unwrap();
    let server = serve_with(root.path(), &format!("context = {context}"));
    streamed(&server, &first);
    let (_, message) = streamed(&server, &long);
    assert_eq!(input_tokens(&message), length(&long));
}

#[test]
fn a_billing_line_costs_no_token() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let count = |system: Value| {
        let reply = crate::http::client::post(server.address, super::COUNT, &about("a", &json!({ "system": system })));
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    let billing = "x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli; cch=1c8b4;";
    let plain = count(json!("Be kind."));
    assert_eq!(count(json!(format!("{billing}\nBe kind."))), plain);
    assert_eq!(count(json!([{"type": "text", "text": billing}, {"type": "text", "text": "Be kind."}])), plain);
}
