//! Broken checkpoints, loaded through the shipped plugin: each is an error that says what is wrong, and the process
//! survives.

use pensieve_plugin_api::{ErrorCode, PluginError};
use std::fs;

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    reference::fixture,
};

/// The plugin's reply to a GGUF file with these bytes.
fn refusal(bytes: &[u8]) -> PluginError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    fs::write(&path, bytes).unwrap();
    match Driver::load(&plugin("pensieve-llama"), &path, &Options::default()) {
        Ok(_) => panic!("a broken checkpoint of {} bytes was loaded", bytes.len()),
        Err(error) => error,
    }
}

fn good() -> Vec<u8> {
    fs::read(fixture("llama/mha/f32.gguf")).unwrap()
}

fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap_or_else(|| panic!("no {text}"))
}

fn put<const N: usize>(mut bytes: Vec<u8>, at: usize, value: [u8; N]) -> Vec<u8> {
    bytes[at..at + N].copy_from_slice(&value);
    bytes
}

/// Offset of a matrix's record after its name: dimensions (u32), two sizes (u64), type (u32), offset (u64).
fn record(bytes: &[u8], name: &str) -> usize {
    find(bytes, name) + name.len()
}

fn check(bytes: &[u8], says: &[&str]) {
    let error = refusal(bytes);
    for text in says {
        assert!(error.message.contains(text), "'{text}' is missing in: {error}");
    }
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let bytes = good();
    for cut in (0..60).map(|i| i * bytes.len() / 60) {
        let error = refusal(&bytes[..cut]);
        assert!(error.message.contains("bad.gguf"), "{cut}: {error}");
    }
    check(&bytes[..bytes.len() - 1], &["1 of its"]);
}

#[test]
fn counts_beyond_the_file_are_refused() {
    check(&put(good(), 8, u64::MAX.to_le_bytes()), &["tensor"]);
    check(&put(good(), 16, (1u64 << 40).to_le_bytes()), &["metadata"]);
}

#[test]
fn an_alignment_of_zero_is_refused() {
    let (old, new) = ("llama.block_count", "general.alignment");
    let bytes = good();
    let at = find(&bytes, old);
    let bytes = put(bytes, at, *new.as_bytes().first_chunk::<17>().unwrap());
    // The key is followed by the value's type and the value.
    check(&put(bytes, at + old.len() + 4, 0u32.to_le_bytes()), &["general.alignment", "0"]);
}

#[test]
fn a_tensor_outside_of_the_file_is_refused() {
    let name = "blk.0.attn_q.weight";
    let at = record(&good(), name) + 4 + 16 + 4;
    check(&put(good(), at, (1u64 << 40).to_le_bytes()), &["attn_q"]);
    check(&put(good(), at, (u64::MAX - 31).to_le_bytes()), &["attn_q"]);
    check(&put(good(), at, 7u64.to_le_bytes()), &["attn_q"]);
}

#[test]
fn an_unknown_type_is_refused_with_those_that_are_known() {
    let at = record(&good(), "blk.0.attn_q.weight") + 4 + 16;
    check(&put(good(), at, 99u32.to_le_bytes()), &["attn_q", "99"]);
}

#[test]
fn sizes_that_overflow_are_refused() {
    let at = record(&good(), "blk.0.attn_q.weight") + 4;
    let bytes = put(good(), at, (1u64 << 40).to_le_bytes());
    check(&put(bytes, at + 8, (1u64 << 40).to_le_bytes()), &["attn_q"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let bytes = good();
    let at = find(&bytes, "blk.1.attn_k.weight");
    check(&put(bytes, at, *b"blk.1.attn_z"), &["model.layers.1.self_attn.k_proj.weight"]);
}

#[test]
fn a_head_that_is_neither_there_nor_tied_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture("llama/mha").join(name), folder.path().join(name)).unwrap();
    }
    let mut weights = fs::read(fixture("llama/mha/model.safetensors")).unwrap();
    let at = find(&weights, "lm_head.weight");
    weights[at..at + 7].copy_from_slice(b"lm_tail");
    fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let error = Driver::load(&plugin("pensieve-llama"), folder.path(), &Options::default()).err().unwrap();
    assert!(error.message.contains("lm_head.weight"), "{error}");
}

#[test]
fn a_checkpoint_of_another_architecture_is_declined() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture("llama/mha").join(name), folder.path().join(name)).unwrap();
    }
    let config = fs::read_to_string(fixture("llama/mha/config.json")).unwrap();
    fs::write(folder.path().join("config.json"), config.replace("LlamaForCausalLM", "OtherForCausalLM")).unwrap();
    let error = Driver::load(&plugin("pensieve-llama"), folder.path(), &Options::default()).err().unwrap();
    assert_eq!(error.code, ErrorCode::DECLINED, "{error}");
    assert!(error.message.contains("OtherForCausalLM"), "{error}");
}

#[test]
fn exhausted_memory_is_an_error_on_either_path() {
    for kernels in ["auto", "generic"] {
        let settings = format!(r#"{{"kernels": "{kernels}"}}"#);
        let options = Options { state_bytes: 1 << 60, ..Options::with_settings(settings) };
        let error = Driver::load(&plugin("pensieve-llama"), &fixture("llama/mha"), &options).err().unwrap();
        assert_eq!(error.code, ErrorCode::OUT_OF_MEMORY, "{error}");
    }
}

#[test]
fn a_wrong_shape_is_named_with_the_right_one() {
    // 32 × 32 read as 16 × 64 has the same number of bytes.
    let at = record(&good(), "blk.1.attn_k.weight") + 4;
    let bytes = put(good(), at, 16u64.to_le_bytes());
    check(&put(bytes, at + 8, 64u64.to_le_bytes()), &["self_attn.k_proj.weight", "[64, 16]", "[32, 32]"]);
}

#[test]
fn a_configuration_beyond_its_limits_is_refused() {
    for (key, value) in [
        ("llama.attention.head_count", 0u32),
        ("llama.embedding_length", u32::MAX),
        ("llama.block_count", 1 << 30),
        ("llama.attention.head_count_kv", 3),
    ] {
        let bytes = good();
        // The key's name is a prefix of other keys, too: the right one is followed by the value's type, u32.
        let at = find(&bytes, &format!("{key}\u{4}\0\0\0")) + key.len() + 4;
        let error = refusal(&put(bytes, at, value.to_le_bytes()));
        assert!(!error.message.contains("panicked"), "{key}: {error}");
    }
}

#[test]
fn a_folder_with_a_broken_part_is_refused() {
    let copy = |spoil: &dyn Fn(&std::path::Path)| {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(fixture("llama/sharded")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        spoil(folder.path());
        match Driver::load(&plugin("pensieve-llama"), folder.path(), &Options::default()) {
            Ok(_) => panic!("a broken folder was loaded"),
            Err(error) => error.message.into_string(),
        }
    };
    let shard = "model-00002-of-00003.safetensors";
    let missing = copy(&|folder| fs::remove_file(folder.join(shard)).unwrap());
    assert!(missing.contains(shard), "{missing}");
    let cut = copy(&|folder| {
        let bytes = fs::read(folder.join(shard)).unwrap();
        fs::write(folder.join(shard), &bytes[..bytes.len() - 3]).unwrap();
    });
    assert!(cut.contains(shard), "{cut}");
    let config = copy(&|folder| fs::write(folder.join("config.json"), "{").unwrap());
    assert!(config.contains("config.json"), "{config}");
    let escape = copy(&|folder| {
        let index = folder.join("model.safetensors.index.json");
        let text = fs::read_to_string(&index).unwrap().replace(shard, "../../etc/passwd");
        fs::write(index, text).unwrap();
    });
    assert!(escape.contains("passwd"), "{escape}");
}

#[test]
fn a_budget_without_room_for_a_block_is_refused() {
    let options = Options { state_bytes: 100, ..Options::default() };
    let error = Driver::load(&plugin("pensieve-llama"), &fixture("llama/mha"), &options).err().unwrap();
    assert!(error.message.contains("100 bytes") && error.help.contains("kv_budget"), "{error}");
}

#[test]
fn the_number_of_threads_is_bounded() {
    let options = Options { threads: u32::MAX, ..Options::default() };
    let mut driver = Driver::load(&plugin("pensieve-llama"), &fixture("llama/mha"), &options).unwrap();
    assert!(driver.resident.note.contains("256 threads"), "{}", driver.resident.note);
    driver.generate(&[5, 6], 2).unwrap();
}

#[test]
fn settings_and_devices_that_are_unknown_are_refused() {
    let load = |settings: &str, device| {
        let options = Options { settings: settings.to_owned(), device, ..Options::default() };
        Driver::load(&plugin("pensieve-llama"), &fixture("llama/mha"), &options).err().unwrap().to_string()
    };
    assert!(load(r#"{"kb": "f16"}"#, "cpu").contains("kb"));
    assert!(load(r#"{"kv": "f8"}"#, "cpu").contains("f8"));
    assert!(load(r#"{"kernels": "best"}"#, "cpu").contains("best"));
    assert!(load("", "cuda:7").contains("cuda:7"));
    assert!(load("", "abacus").contains("metal:N"));
}
