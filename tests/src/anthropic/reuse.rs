//! The recorded tool loop of Claude Code: every request repeats the previous one, and nothing that changes between them
//! may alter the start of the prompt.

use serde_json::{Value, json};

use super::{about, calls, input_tokens, serve, streamed, text, tools};

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
