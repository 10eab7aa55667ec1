//! Ids out of GGUF vocabularies, against those of the model families' own tokenizers.
//!
//! `tests/reference/tokenizer_ids.py` wrote the files and the expectations; see there for where each reference is from.

#![allow(clippy::unwrap_used)] // Nothing here is untrusted.

use std::path::PathBuf;

use pensieve_sdk::weights::{GgufFamily, Tokenizer};
use serde_json::Value;

struct Case {
    text: String,
    ids: Vec<u32>,
    bos: bool,
    decoded: String,
    without_special: String,
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizers").join(name)
}

fn cases(kind: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(fixture(&format!("{kind}.json"))).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let case = |case: &Value| {
        let text = case["text"].as_str().unwrap();
        let decoded = case["decoded"].as_str().unwrap_or(text);
        Case {
            text: text.to_owned(),
            ids: case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect(),
            bos: case["bos"].as_bool().unwrap(),
            decoded: decoded.to_owned(),
            without_special: case["without_special"].as_str().unwrap_or(decoded).to_owned(),
        }
    };
    all["cases"].as_array().unwrap().iter().map(case).collect()
}

fn load(tokenizer: &Tokenizer) -> tokenizers::Tokenizer {
    tokenizer.json.parse().unwrap()
}

#[track_caller]
fn check(kind: &str) -> Tokenizer {
    check_as(kind, &GgufFamily::USUAL)
}

#[track_caller]
fn check_as(kind: &str, family: &GgufFamily) -> Tokenizer {
    let tokenizer = Tokenizer::open_with(&fixture(&format!("{kind}.gguf")), family).unwrap();
    let loaded = load(&tokenizer);
    let cases = cases(kind);
    assert!(cases.len() > 40);
    for case in cases {
        let ids = loaded.encode(case.text.as_str(), false).unwrap().get_ids().to_vec();
        assert_eq!(ids, case.ids, "{kind}: {:?}", case.text);
        assert_eq!(loaded.decode(&ids, false).unwrap(), case.decoded, "{kind}: {:?}", case.text);
        assert_eq!(loaded.decode(&ids, true).unwrap(), case.without_special, "{kind}: {:?}", case.text);
        let mut expected = case.ids;
        assert_eq!(tokenizer.add_bos, case.bos, "{kind}");
        if case.bos {
            expected.insert(0, tokenizer.bos.unwrap());
        }
        assert_eq!(loaded.encode(case.text.as_str(), true).unwrap().get_ids(), expected, "{kind}: {:?}", case.text);
    }
    tokenizer
}

/// The texts of ids, to compare special ids by name.
fn names(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let loaded = load(tokenizer);
    ids.iter().map(|id| loaded.id_to_token(*id).unwrap()).collect()
}

#[test]
fn llama_3_files_encode_as_tiktoken_does() {
    let tokenizer = check("llama-bpe");
    assert!(tokenizer.add_bos && !tokenizer.add_eos);
    assert_eq!(names(&tokenizer, &tokenizer.eos), ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"]);
    assert_eq!(names(&tokenizer, tokenizer.bos.as_slice()), ["<|begin_of_text|>"]);
}

#[test]
fn tekken_files_encode_as_tiktoken_does() {
    let tokenizer = check("tekken");
    assert_eq!(names(&tokenizer, &tokenizer.eos), ["</s>"]);
}

#[test]
fn phi_4_files_encode_as_tiktoken_does() {
    assert_eq!(names(&check("dbrx"), &check("dbrx").eos), ["<|im_end|>", "<|endoftext|>"]);
    assert_eq!(names(&check("gpt-4o"), &check("gpt-4o").eos), ["<|end|>", "<|endoftext|>"]);
}

#[test]
fn gpt_2_and_phi_2_files_encode_as_transformers_does() {
    check("gpt-2");
    check("phi-2");
}

#[test]
fn qwen_files_encode_as_transformers_does() {
    let tokenizer = check("qwen2");
    assert!(!tokenizer.add_bos && tokenizer.bos.is_none());
    assert_eq!(names(&tokenizer, &tokenizer.eos), ["<|im_end|>", "<|endoftext|>"]);
    check("qwen35");
}

#[test]
fn olmo_and_command_r_files_encode_as_transformers_does() {
    check("olmo");
    check("command-r");
}

#[test]
fn smollm_files_encode_as_published() {
    check("smollm");
}

#[test]
fn deepseek_falcon_and_bloom_files_encode_as_published() {
    ["deepseek-v3", "deepseek-coder", "falcon", "bloom"].iter().for_each(|kind| drop(check(kind)));
}

#[test]
fn llama_2_files_encode_as_sentencepiece_does() {
    let tokenizer = check("llama-spm");
    assert!(tokenizer.add_bos && !tokenizer.add_eos);
    assert_eq!((tokenizer.bos, tokenizer.eos, tokenizer.unknown), (Some(1), vec![2], Some(0)));
}

#[test]
fn phi_3_files_swallow_whitespace_behind_turns() {
    let family = GgufFamily { strips_behind_special: |_| Ok(true), ..GgufFamily::default() };
    let tokenizer = check_as("phi-3-spm", &family);
    assert_eq!(names(&tokenizer, &tokenizer.eos), ["<|end|>", "</s>", "<|endoftext|>"]);
}

#[test]
fn sentencepiece_files_without_a_space_in_front_encode_as_sentencepiece_does() {
    let tokenizer = check("no-prefix-spm");
    assert_eq!(names(&tokenizer, &tokenizer.eos), ["</s>", "<end_of_turn>"]);
}
