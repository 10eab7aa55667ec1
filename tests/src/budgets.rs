//! Budgets of reasoning over the wire: in every API, each way of asking for one keeps to it, and an answer follows.

use serde_json::{Value, json};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::post,
        server::{Options, Server},
    },
    scripted,
};

const CONCLUSION: &str = "so I answer now.";
/// Budgets hold within this many tokens.
const WITHIN: u64 = 32;
/// Places of the tokens of an answer, reasoning included, in the usage of all APIs.
const USAGES: [&str; 5] = [
    "/usage/output_tokens",
    "/usage/completion_tokens",
    "/response/usage/output_tokens",
    "/eval_count",
    "/usageMetadata/candidatesTokenCount",
];

/// An API: where a stream's events have reasoning, and where the answer.
struct Api {
    path: &'static str,
    /// A request without a budget, whose answer may have 800 tokens.
    body: Value,
    thought: fn(&Value) -> Option<&str>,
    text: fn(&Value) -> Option<&str>,
    /// Fields that ask for a budget, and its tokens.
    budgets: Vec<(Value, u64)>,
}

fn at<'a>(event: &'a Value, pointer: &str) -> Option<&'a str> {
    event.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

fn kind_is<'a>(event: &'a Value, kind: &str) -> Option<&'a str> {
    (event["type"] == kind).then(|| at(event, "/delta")).flatten()
}

/// The text of a part of Google's API, reasoning or not.
fn part(event: &Value, is_thought: bool) -> Option<&str> {
    let part = event.pointer("/candidates/0/content/parts/0")?;
    (part["thought"] == json!(true)).eq(&is_thought).then(|| at(part, "/text")).flatten()
}

/// An effort is a share of the answer's 800 tokens: low an eighth, medium a quarter.
fn apis() -> Vec<Api> {
    let messages = json!([{"role": "user", "content": "ponder"}]);
    let chat = json!({"model": "scripted", "messages": messages, "stream": true, "max_tokens": 800});
    let ollama = json!({"model": "scripted", "options": {"num_predict": 800}});
    let with = |body: &Value, more: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let gemini = |config: Value| {
        let config = with(
            &json!({"maxOutputTokens": 800}),
            json!({"thinkingConfig": with(&json!({"includeThoughts": true}), config)}),
        );
        json!({"generationConfig": config})
    };
    vec![
        Api {
            path: "/v1/messages",
            body: with(&chat, json!({"thinking": {"type": "adaptive"}})),
            thought: |event| at(event, "/delta/thinking"),
            text: |event| at(event, "/delta/text"),
            budgets: vec![
                (json!({"thinking": {"type": "enabled", "budget_tokens": 150}}), 150),
                (json!({"output_config": {"effort": "low"}}), 100),
            ],
        },
        Api {
            path: "/v1/chat/completions",
            body: with(&chat, json!({"stream_options": {"include_usage": true}})),
            thought: |event| at(event, "/choices/0/delta/reasoning_content"),
            text: |event| at(event, "/choices/0/delta/content"),
            budgets: vec![
                (json!({"reasoning": {"max_tokens": 150}}), 150),
                (json!({"reasoning_effort": "medium"}), 200),
                (json!({"chat_template_kwargs": {"thinking_budget": 120}}), 120),
            ],
        },
        Api {
            path: "/v1/responses",
            body: json!({"model": "scripted", "input": "ponder", "stream": true, "max_output_tokens": 800}),
            thought: |event| kind_is(event, "response.reasoning_text.delta"),
            text: |event| kind_is(event, "response.output_text.delta"),
            budgets: vec![
                (json!({"reasoning": {"max_tokens": 150}}), 150),
                (json!({"reasoning": {"effort": "low"}}), 100),
            ],
        },
        Api {
            path: "/api/chat",
            body: with(&ollama, json!({"messages": messages})),
            thought: |event| at(event, "/message/thinking"),
            text: |event| at(event, "/message/content"),
            budgets: vec![(json!({"think": "low"}), 100), (json!({"think": "medium"}), 200)],
        },
        Api {
            path: "/api/generate",
            body: with(&ollama, json!({"prompt": "ponder"})),
            thought: |event| at(event, "/thinking"),
            text: |event| at(event, "/response"),
            budgets: vec![(json!({"think": "low"}), 100), (json!({"think": "medium"}), 200)],
        },
        Api {
            path: "/v1beta/models/scripted:streamGenerateContent?alt=sse",
            body: json!({"contents": [{"role": "user", "parts": [{"text": "ponder"}]}]}),
            thought: |event| part(event, true),
            text: |event| part(event, false),
            budgets: vec![
                (gemini(json!({"thinkingBudget": 150})), 150),
                (gemini(json!({"thinkingLevel": "LOW"})), 100),
            ],
        },
    ]
}

/// An answer's reasoning with its tokens, and its text.
fn ask(server: &Server, api: &Api, more: &Value) -> (String, u64, String) {
    let mut body = api.body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = post(server.address, api.path, &body);
    assert_eq!(reply.status(), 200, "{} {body}: {reply:?}", api.path);
    let stream = reply.text();
    let lines = stream.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let events: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let used = events.iter().rev().find_map(|event| USAGES.iter().find_map(|usage| event.pointer(usage)?.as_u64()));
    // Each token of the answer comes by itself; another one ends it.
    let texts: Vec<&str> = events.iter().filter_map(api.text).collect();
    let spent = used.unwrap_or_else(|| panic!("no usage: {stream}")) - texts.len() as u64 - 1;
    (events.iter().filter_map(api.thought).collect(), spent, texts.concat())
}

#[test]
fn reasoning_keeps_to_its_budget_in_every_api() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    let numbers: String = (1..200).map(|number| format!("step {number}, ")).collect();
    let pondering = format!("<think>\n{numbers}\n</think>\n\nIt is six.");
    scripted::checkpoint(&source, &[("ponder", pondering.as_str()), ("", "Hello.")]);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    for api in apis() {
        for (more, budget) in &api.budgets {
            let (all, spent, text) = ask(&server, &api, more);
            println!("{}: {spent} of {budget} tokens with {more}", api.path);
            assert!(spent.abs_diff(*budget) <= WITHIN, "{}: {spent} of {budget}: {more}", api.path);
            assert!(all.starts_with("step 1,") && all.ends_with(CONCLUSION), "{}: {all}", api.path);
            assert!(!text.is_empty(), "{}: no answer follows", api.path);
        }
    }
}
