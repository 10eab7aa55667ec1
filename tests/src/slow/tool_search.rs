//! The real Claude Code with its tool search, ten MCP servers and the real program, without a network: the model searches
//! for a tool, Claude Code says by a reference which one it found, and the model, which now reads its description, calls it.

#![cfg(target_os = "linux")]

use serde_json::{Value, json};
use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use super::claude_code::CLAUDE_CODE;
use crate::{
    agents,
    artifacts::{plugin, test_plugin},
    http::{client::get, server::Options},
    scripted,
};

const SERVERS: usize = 10;
const TOOL: &str = "mcp__store3__lookup";

#[test]
fn claude_code_calls_a_tool_that_it_had_to_find() {
    CLAUDE_CODE.run("slow::tool_search::among_ten_servers");
}

#[test]
#[ignore = "the test above runs it in a network of its own"]
fn among_ten_servers() {
    let Some(claude) = agents::client() else { return };
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>\n{}\n</tool_call>", json!({ "name": name, "arguments": arguments }))
    };
    let search = call("ToolSearch", json!({"query": format!("select:{TOOL}"), "max_results": 5}));
    let lookup = call(TOOL, json!({"id": "7"}));
    let definition = format!("<function>{{\"name\":\"{TOOL}\",\"description\":\"lookup in store3. ");
    let script = [
        ("tangerine-7", "The record is a tangerine."),
        (definition.as_str(), lookup.as_str()),
        ("Look up record 7", search.as_str()),
        ("", "Background."),
    ];
    scripted::checkpoint(&source, &script);
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, models: vec![("scripted".into(), source)], ..Options::default() }.start();
    let home = root.path().join("home");
    fs::create_dir(&home).unwrap();
    let mcp = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/mcp_server.mjs");
    let ask = |question: &str, servers: usize| {
        let servers: Value = (0..servers)
            .map(|place| (format!("store{place}"), json!({"command": "node", "args": [mcp, format!("store{place}")]})))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let config = root.path().join("mcp.json");
        fs::write(&config, json!({ "mcpServers": servers }).to_string()).unwrap();
        let mut command = Command::new(&claude);
        command.args(["-p", question, "--allowedTools", TOOL, "--output-format", "json"]);
        // Claude Code never defers these, and they are twice as long as all others together.
        command.args(["--disallowedTools", "Workflow,Agent,Skill,ReportFindings", "--model", "pensieve-x"]);
        command.arg("--mcp-config").arg(&config).current_dir(&home).stdin(Stdio::null());
        command.env_clear().env("HOME", &home).env("PATH", env::var_os("PATH").unwrap());
        command.env("ENABLE_TOOL_SEARCH", "true").env("ANTHROPIC_API_KEY", "pensieve-local-key");
        command.env("ANTHROPIC_BASE_URL", format!("http://{}", server.address));
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let result: Option<Value> = serde_json::from_str(&said).ok();
        result.unwrap_or_else(|| panic!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log()))
    };
    // The prompts of a run's turns, in order.
    let prompts = |seen: usize| -> Vec<u64> {
        let listed = get(server.address, "/v1/requests").json();
        let ended = listed["data"].as_array().unwrap().iter().rev().skip(seen);
        ended.map(|ended| ended["input_tokens"].as_u64().unwrap()).collect()
    };
    ask("Say hello.", 0);
    let without = prompts(0);
    let result = ask("Look up record 7 in store3.", SERVERS);
    let with = prompts(without.len());
    let log = || format!("{result}\n{without:?} {with:?}\n{}", server.log());
    assert_eq!(
        (&result["result"], &result["num_turns"]),
        (&"The record is a tangerine.".into(), &3.into()),
        "{}",
        log()
    );
    let cost = with[0].saturating_sub(without[0]);
    println!("ten servers cost {cost} tokens at the start: {without:?} and {with:?}");
    // The eighty tools themselves would be forty thousand tokens.
    assert!(cost <= 3_000, "{}", log());
    // What was computed is the first prompt, and in each turn what is new; the found tool has not moved the head.
    let computed = result["usage"]["input_tokens"].as_u64().unwrap();
    let cached = result["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    println!("{computed} tokens computed, {cached} found in the cache");
    assert!(cached > computed, "{}", log());
    assert!(computed < 12_000, "{}", log());
}
