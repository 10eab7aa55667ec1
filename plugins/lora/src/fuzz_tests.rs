//! Damaged adapters: each is read or rejected, within memory proportional to its size.

use std::{fs, path::Path};

use pensieve_fuzz::{Target, files};
use pensieve_sdk::{AdapterData, AdapterFormat, Result};

use crate::{gguf::Gguf, peft::Peft};

const MEMORY_MAX: usize = 64 << 20;

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/lora")
}

/// The outcome in words, without the path.
fn outcome(path: &Path, read: Result<AdapterData>) -> String {
    match read {
        Ok(data) => format!("{} pairs", data.pairs.len().min(1)),
        Err(error) => error.to_string().replace(&path.display().to_string(), ""),
    }
}

/// Damages one file of a PEFT folder.
fn damage(name: &str, file: &str) {
    let folder = pensieve_fuzz::folder();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(fixtures().join("rank1").join(file), folder.path().join(file)).unwrap();
    }
    let corpus = files(&fixtures(), file);
    let path = folder.path().join(file);
    Target { name, corpus, memory_max: MEMORY_MAX, input_max: 128 << 10 }.run(|bytes| {
        fs::write(&path, bytes).unwrap();
        outcome(folder.path(), Peft.open(folder.path()))
    });
}

#[test]
fn a_damaged_configuration_of_an_adapter_is_read_or_refused() {
    damage("adapter-config", "adapter_config.json");
}

#[test]
fn damaged_weights_of_an_adapter_are_read_or_refused() {
    damage("adapter-safetensors", "adapter_model.safetensors");
}

#[test]
fn a_damaged_gguf_adapter_is_read_or_refused() {
    let folder = pensieve_fuzz::folder();
    let path = folder.path().join("adapter.gguf");
    let corpus = files(&fixtures(), "adapter.gguf");
    Target { name: "adapter-gguf", corpus, memory_max: MEMORY_MAX, input_max: 128 << 10 }.run(|bytes| {
        fs::write(&path, bytes).unwrap();
        outcome(&path, Gguf.open(&path))
    });
}
