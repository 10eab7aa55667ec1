//! Checkpoints for `tests/plugins/scripted.rs`, the model that follows a script.

use pensieve_protocol::{
    job::{Event, Finish, Job, StageSpec},
    wire::ModelSpec,
};
use pensieve_server::fleet::{Config, Fleet, ModelConfig, Update};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::artifacts::{library_name, plugin, program, test_plugin};

/// Writes a checkpoint whose model answers with the second text of the first pair whose first text is in the last turn.
/// Special tokens are written by name; `<|im_end|>` is added automatically.
pub fn checkpoint(folder: &Path, script: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scripted");
    for name in ["tokenizer.json", "chat_template.jinja"] {
        fs::copy(fixture.join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("config.json"), r#"{"architectures": ["ScriptedForCausalLM"]}"#).unwrap();
    let lines: Vec<_> = script.iter().map(|(when, say)| json!({ "when": when, "say": say })).collect();
    fs::write(folder.join("script.json"), json!(lines).to_string()).unwrap();
}

/// A model of that name whose checkpoint is written below `root`.
pub fn model(root: &Path, id: &str, script: &[(&str, &str)]) -> ModelConfig {
    let source = root.join(id);
    checkpoint(&source, script);
    let spec = ModelSpec { kv_budget: Some(4 << 20), threads: 1, ..ModelSpec::default() };
    ModelConfig { id: id.into(), source, spec, ..ModelConfig::default() }
}

/// A plugin folder below `root` with the scripted model and the usual samplers.
pub fn plugins(root: &Path) -> PathBuf {
    let folder = root.join("plugins");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(test_plugin("scripted"), folder.join(library_name("scripted"))).unwrap();
    fs::copy(plugin("pensieve-samplers"), folder.join(library_name("samplers"))).unwrap();
    folder
}

/// A fleet of one scripted model, which also answers for unknown names.
pub fn fleet(root: &Path, id: &str, script: &[(&str, &str)]) -> Config {
    let mut config = Config::new(&[], root);
    config.plugins.folders = vec![plugins(root)];
    config.plugins.program = program();
    config.program = program();
    config.plugins.limits.settle = Duration::from_millis(50);
    config.models = vec![model(root, id, script)];
    config.default_model = Some(id.into());
    config
}

/// Token ids of a text, one per ASCII character, after tokens given by name.
fn spelled(names: &[&str], text: &str) -> Vec<u32> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scripted/tokenizer.json");
    let tokenizer: serde_json::Value = serde_json::from_str(&fs::read_to_string(fixture).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let added = |name: &&str| added.iter().find(|token| token["content"] == *name).unwrap()["id"].as_u64().unwrap();
    let letter = |char: char| match char {
        '\n' => "Ċ".to_owned(),
        ' ' => "Ġ".to_owned(),
        other => other.to_string(),
    };
    let letters = text.chars().map(|char| tokenizer["model"]["vocab"][letter(char)].as_u64().unwrap());
    names.iter().map(added).chain(letters).map(|id| u32::try_from(id).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripted_model_says_what_its_script_tells_it() {
    let root = tempfile::tempdir().unwrap();
    let script = [("weather", "It rains.<|im_end|>"), ("calls", "<tool_call>\n{}\n</tool_call>"), ("", "What?")];
    let fleet = Fleet::start(fleet(root.path(), "scripted", &script)).await.unwrap();
    let ask = async |turn: &str, max_tokens, stages: &[(&str, &str)]| {
        let mut tokens = spelled(&["<|im_start|>"], &format!("user\n{turn}"));
        tokens.extend(spelled(&["<|im_end|>", "<|im_start|>"], "assistant\n"));
        let stages = stages.iter().map(|(sampler, parameters)| StageSpec {
            sampler: (*sampler).into(),
            parameters: (*parameters).into(),
            ..StageSpec::default()
        });
        let job = Job { tokens, max_tokens, stages: stages.collect(), ..Job::default() };
        let mut stream = fleet.submit_to("anything", job).unwrap();
        let mut text = Vec::new();
        loop {
            match stream.next().await.unwrap() {
                Update::Event(Event::Tokens(tokens)) => text.extend(tokens.bytes),
                Update::Event(Event::Finished { reason, .. }) => return (String::from_utf8(text).unwrap(), reason),
                Update::Event(Event::Failed(failure)) => panic!("{failure}"),
                _ => {}
            }
        }
    };
    assert_eq!(ask("the weather?", 99, &[]).await, ("It rains.".into(), Finish::EndOfTurn));
    let hot = [("temperature", r#"{"temperature": 2.0}"#), ("seeded", "")];
    assert_eq!(ask("calls", 99, &hot).await, ("<tool_call>\n{}\n</tool_call>".into(), Finish::EndOfTurn));
    assert_eq!(ask("hm", 1, &[]).await, ("What".into(), Finish::Length));
}
