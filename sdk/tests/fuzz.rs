//! Damaged checkpoints: each is read or refused, within the memory that its size explains.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use pensieve_fuzz::{Target, files};
use pensieve_sdk::{
    Result,
    weights::{Checkpoint, Config, Weights},
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// The memory that reading may take: tokenizers and tables become several times what they are in the file.
const MEMORY_MAX: usize = 128 << 20;

/// All that an architecture reads in its configuration.
fn read_config(config: &Config) -> Result<()> {
    config.usize("hidden_size")?;
    let layers = config.usize("num_hidden_layers")?;
    config.usizes("layer_types").ok();
    config.f64_or("rms_norm_eps", 1e-6)?;
    config.experts()?;
    config.rope()?;
    config.sliding_window()?;
    // The limit on layers that a plugin checks.
    config.sliding_windows(layers.min(1024))?;
    config.ropes()?;
    Ok(())
}

fn read_weights(weights: &Weights) -> Result<()> {
    for tensor in weights.iter() {
        let rows = tensor.shape.first().copied().unwrap_or(0);
        tensor.rows(0..rows.min(2))?.to_f32()?;
        tensor.every(0, 2).ok();
        tensor.part(rows / 2).ok();
    }
    Ok(())
}

fn read(path: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = checkpoint.tokenizer();
    read_config(checkpoint.config())?;
    read_weights(checkpoint.weights())?;
    checkpoint.fingerprint(&tokenizer?)?;
    Ok(())
}

/// In words, without the path.
fn outcome(path: &Path, read: Result<()>) -> String {
    match read {
        Ok(()) => "read".to_owned(),
        Err(error) => error.to_string().replace(&path.display().to_string(), ""),
    }
}

#[test]
fn a_damaged_gguf_is_read_or_refused() {
    let folder = pensieve_fuzz::folder();
    let path = folder.path().join("model.gguf");
    let small =
        ["llama/llama3/q8_0.gguf", "llama/head_dim/q8_0.gguf", "tokenizers/llama-spm.gguf", "tokenizers/smollm.gguf"];
    let corpus = small.map(|name| fs::read(fixture(name)).unwrap()).to_vec();
    Target { name: "gguf", corpus, memory_max: MEMORY_MAX, input_max: 256 << 10 }.run(|bytes| {
        fs::write(&path, bytes).unwrap();
        outcome(&path, read(&path))
    });
}

/// A folder with the files of a fixture, one of which is damaged.
fn damage(name: &str, file: &str, endings: &[&str]) {
    let (folder, source) = (pensieve_fuzz::folder(), fixture("llama/gqa"));
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        let is_part = ["json", "safetensors"].iter().any(|ending| path.extension().is_some_and(|own| own == *ending));
        if is_part && !path.ends_with("reference.safetensors") {
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let corpus = endings.iter().flat_map(|ending| files(&fixture("llama"), ending)).collect();
    let path = folder.path().join(file);
    Target { name, corpus, memory_max: MEMORY_MAX, input_max: 512 << 10 }.run(|bytes| {
        fs::write(&path, bytes).unwrap();
        outcome(folder.path(), read(folder.path()))
    });
}

#[test]
fn a_damaged_safetensors_file_is_read_or_refused() {
    damage("safetensors", "model.safetensors", &["model.safetensors"]);
}

#[test]
fn a_damaged_configuration_is_read_or_refused() {
    damage("config", "config.json", &["config.json"]);
}

#[test]
fn a_damaged_tokenizer_file_is_read_or_refused() {
    damage("tokenizer", "tokenizer.json", &["tokenizer.json"]);
}
