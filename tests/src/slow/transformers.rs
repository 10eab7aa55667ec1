//! `--reference` with Hugging Face transformers itself, on small checkpoints of every kind that its script tells apart.
//!
//! `PENSIEVE_PYTHON` names a Python with torch and transformers, or `python3` is one. Without them the test skips itself with
//! a line that says so; `PENSIEVE_REQUIRE_TRANSFORMERS=1` makes that a failure.

use serde_json::{Value, json};
use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    artifacts::plugin,
    cli::{Desk, said},
    families::rewritten,
    reference::fixture,
    zoo::changed,
};

#[test]
fn the_script_computes_what_plugins_of_every_kind_compute() {
    let python = env::var_os("PENSIEVE_PYTHON").unwrap_or_else(|| "python3".into());
    let mut imports = Command::new(&python);
    imports.args(["-c", "import torch, transformers, safetensors"]).stdin(Stdio::null());
    if !imports.output().is_ok_and(|output| output.status.success()) {
        let why = format!("{} has no torch, transformers and safetensors", python.display());
        let required = env::var_os("PENSIEVE_REQUIRE_TRANSFORMERS").is_some_and(|value| value == "1");
        assert!(!required, "PENSIEVE_REQUIRE_TRANSFORMERS=1, but {why}");
        println!("skipped --reference with transformers: {why}");
        return;
    }
    let classifier = classifier();
    let headless = changed("encoders/qwen3-reranker", |config| {
        config.insert("architectures".into(), json!(["Qwen3Model"]));
    });
    // As transformers wrote it before version 5.
    let bare = changed("families/mamba2", |_| ());
    let config = bare.path().join("config.json");
    let tagged: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let text = tagged.to_string().replace(r#"{"__float__":"Infinity"}"#, "Infinity");
    assert!(text.contains("Infinity") && !text.contains("__float__"), "{text}");
    fs::write(&config, text).unwrap();
    let cases: [(&str, PathBuf); 6] = [
        ("pensieve-llama", fixture("llama/gqa")),
        ("pensieve-mamba", bare.path().to_owned()),
        ("pensieve-qwen", fixture("encoders/qwen3-reranker")),
        ("pensieve-qwen", headless.path().to_owned()),
        ("pensieve-qwen", classifier.path().to_owned()),
        ("pensieve-bert", fixture("encoders/bert")),
    ];
    for (package, model) in cases {
        let (desk, library) = (Desk::new(), plugin(package));
        let arguments = ["plugins", "check", library.to_str().unwrap(), "--model", model.to_str().unwrap()];
        let arguments = [&arguments[..], &["--device", "cpu", "--options", r#"{"kv": "f32"}"#, "--reference"]].concat();
        let said = said(desk.command(&arguments).env("PENSIEVE_PYTHON", &python).output().unwrap());
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{}: {said:?}", model.display());
        assert!(said.stdout.contains("\nnote   reference "), "{}: {said:?}", model.display());
    }
}

/// A decoder with a head for three labels, which gives one row of logits for a text.
fn classifier() -> tempfile::TempDir {
    let folder = rewritten("encoders/qwen3-reranker", |name, (shape, data)| {
        let table = (name.to_owned(), (shape.clone(), data.clone()));
        if name != "model.embed_tokens.weight" {
            return vec![table];
        }
        let rows = data[..4 * 3 * shape[1]].to_vec();
        vec![table, ("score.weight".to_owned(), (vec![3, shape[1]], rows))]
    });
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
    config["id2label"] = json!({"0": "good", "1": "bad", "2": "odd"});
    fs::write(&path, config.to_string()).unwrap();
    folder
}
