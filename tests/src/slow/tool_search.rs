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
    http::server::Options,
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
    let servers: Value = (0..SERVERS)
        .map(|place| (format!("store{place}"), json!({"command": "node", "args": [mcp, format!("store{place}")]})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let config = root.path().join("mcp.json");
    fs::write(&config, json!({ "mcpServers": servers }).to_string()).unwrap();

    let mut command = Command::new(claude);
    command.args(["-p", "Look up record 7 in store3.", "--allowedTools", TOOL, "--output-format", "json"]);
    // Claude Code never defers these, and they are twice as long as all others together.
    command.args(["--disallowedTools", "Workflow,Agent,Skill,ReportFindings", "--model", "pensieve-x"]);
    command.arg("--mcp-config").arg(&config).current_dir(&home).stdin(Stdio::null());
    command.env_clear().env("HOME", &home).env("PATH", env::var_os("PATH").unwrap()).env("ENABLE_TOOL_SEARCH", "true");
    command.env("ANTHROPIC_BASE_URL", format!("http://{}", server.address));
    command.env("ANTHROPIC_API_KEY", "pensieve-local-key").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || format!("{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    let result: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {}", log()));
    assert_eq!(
        (&result["result"], &result["num_turns"]),
        (&"The record is a tangerine.".into(), &3.into()),
        "{}",
        log()
    );
    // What was computed is the first prompt, and in each turn what is new; the found tool has not moved the head.
    let computed = result["usage"]["input_tokens"].as_u64().unwrap();
    let cached = result["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    println!("{computed} tokens computed, {cached} found in the cache");
    assert!(cached > computed, "{}", log());
    // The eighty tools would be forty thousand tokens.
    assert!(computed < 12_000, "{}", log());
}
