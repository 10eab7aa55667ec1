//! Inconsistent vocabularies, and folders that say the same thing in different ways.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Tokenizer;
use crate::{Code, Error, GgufFamily, fixture::Gguf, gguf};
use crate::{PreTokenizer, Split};

const TOKENS: [&str; 6] = ["a", "b", "ab", "abb", "<|im_end|>", "<|im_start|>"];
const TYPES: [i32; 6] = [1, 1, 1, 1, 3, 3];

/// A valid byte-level vocabulary, without its merges.
fn vocabulary() -> Gguf {
    Gguf::new("llama")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .i32s("tokenizer.ggml.token_type", &TYPES)
}

fn merged() -> Gguf {
    vocabulary().texts("tokenizer.ggml.merges", &["a b", "ab b"])
}

/// A valid SentencePiece vocabulary, without its scores.
fn pieces(tokens: &[&str]) -> Gguf {
    let types: Vec<i32> = tokens.iter().map(|token| if token.starts_with('<') { 3 } else { 1 }).collect();
    Gguf::new("llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", tokens)
        .i32s("tokenizer.ggml.token_type", &types)
}

fn read(file: &Gguf) -> Result<Tokenizer, Error> {
    read_in(file, Path::new("nowhere/x.gguf"))
}

fn read_in(file: &Gguf, path: &Path) -> Result<Tokenizer, Error> {
    Tokenizer::from_gguf(path, &gguf::Gguf::read(&file.map())?.metadata, &GgufFamily::USUAL)
}

fn read_as(file: &Gguf, family: &GgufFamily) -> Result<Tokenizer, Error> {
    Tokenizer::from_gguf(Path::new("nowhere/x.gguf"), &gguf::Gguf::read(&file.map())?.metadata, family)
}

#[track_caller]
fn check_refused(file: &Gguf, code: Code, message: &str) {
    let error = read(file).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (code, message));
}

fn parsed(tokenizer: &Tokenizer) -> Value {
    serde_json::from_str(&tokenizer.json).unwrap()
}

fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    let loaded: tokenizers::Tokenizer = tokenizer.json.parse().unwrap();
    loaded.encode(text, special).unwrap().get_ids().to_vec()
}

#[test]
fn reads_a_vocabulary() {
    let tokenizer = read(&merged().u32("tokenizer.ggml.eos_token_id", 4)).unwrap();
    assert_eq!(tokenizer.eos, [4]);
    assert_eq!(encode(&tokenizer, "<|im_start|>abbab<|im_end|>", true), [5, 3, 2, 4]);
}

#[test]
fn rejects_a_file_without_a_tokenizer() {
    check_refused(&Gguf::new("llama"), Code::NotFound, "the metadata has no 'tokenizer.ggml.model'");
    let none = Gguf::new("llama").text("tokenizer.ggml.model", "none");
    check_refused(&none, Code::Unsupported, "metadata 'tokenizer.ggml.model': the file has no tokenizer");
    let bare = Gguf::new("llama").text("tokenizer.ggml.model", "gpt2");
    check_refused(&bare, Code::NotFound, "the metadata has no 'tokenizer.ggml.tokens'");
}

#[test]
fn rejects_kinds_and_pre_tokenizers_that_it_does_not_know() {
    let plamo = Gguf::new("plamo").text("tokenizer.ggml.model", "plamo").texts("tokenizer.ggml.tokens", &TOKENS);
    let message = "metadata 'tokenizer.ggml.model': tokenizers of the kind 'plamo' cannot be read \
                   (known: gpt2, llama, gemma4, bert, t5, rwkv)";
    check_refused(&plamo, Code::Unsupported, message);
    let bert = Gguf::new("bert").text("tokenizer.ggml.model", "bert").texts("tokenizer.ggml.tokens", &TOKENS);
    let message = "metadata 'tokenizer.ggml.tokens': the WordPiece vocabulary has no [CLS]";
    check_refused(&bert, Code::Unsupported, message);
    let strange = Gguf::new("llama")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "tomorrow")
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .texts("tokenizer.ggml.merges", &["a b"]);
    let error = read(&strange).unwrap_err();
    assert!(error.message.contains("the pre-tokenizer 'tomorrow' is not known (known: llama-bpe, "), "{error}");
    let help = "put the model's own tokenizer.json beside the .gguf file, or bring the pre-tokenizer with the plugin";
    assert_eq!(error.help, help);
}

#[test]
fn knows_the_pre_tokenizers_of_every_family_that_comes_with_the_program() {
    for (architecture, pre) in [
        ("cohere2", "command-r"),
        ("cohere2", "tiny_aya"),
        ("deepseek2", "deepseek-llm"),
        ("deepseek2", "deepseek-v3"),
        ("deepseek2", "glm4"),
        ("exaone4", "exaone4"),
        ("falcon-h1", "falcon-h1"),
        ("glm4", "glm4"),
        ("gpt-oss", "gpt-4o"),
        ("granite", "refact"),
        ("granitehybrid", "dbrx"),
        ("lfm2", "lfm2"),
        ("llama", "llama-bpe"),
        ("mamba2", "olmo"),
        ("minimax-m2", "minimax-m2"),
        ("mistral3", "tekken"),
        ("nemotron_h", "pixtral"),
        ("olmo2", "dbrx"),
        ("phi3", "gpt-4o"),
        ("qwen3", "qwen2"),
        ("qwen35", "qwen35"),
        ("seed_oss", "seed-coder"),
        ("smollm3", "smaug-bpe"),
    ] {
        let file = Gguf::new(architecture)
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre)
            .texts("tokenizer.ggml.tokens", &TOKENS)
            .texts("tokenizer.ggml.merges", &["a b"]);
        if let Err(error) = read(&file) {
            panic!("{architecture}, {pre}: {error}");
        }
    }
}

#[test]
fn digits_are_in_threes_from_the_right_in_tiny_aya() {
    let file = Gguf::new("cohere2")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "tiny_aya")
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .texts("tokenizer.ggml.merges", &["a b"]);
    let steps = parsed(&read(&file).unwrap())["pre_tokenizer"]["pretokenizers"].clone();
    assert_eq!(steps[0]["pattern"]["Regex"], r"\d{1,3}(?=(?:\d{3})*\b)");
    assert_eq!(steps.as_array().map(Vec::len), Some(3));
}

#[test]
fn a_file_that_names_no_pre_tokenizer_is_read_where_its_family_has_one() {
    let unnamed = Gguf::new("qwen2")
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .texts("tokenizer.ggml.merges", &["a b"]);
    let family = GgufFamily { pre_tokenizer: Some("qwen2"), ..GgufFamily::default() };
    assert_eq!(parsed(&read_as(&unnamed, &family).unwrap())["normalizer"], json!({ "type": "NFC" }));
    let error = read(&unnamed).unwrap_err();
    assert!(error.message.contains("has no 'tokenizer.ggml.pre'"), "{error}");
}

#[test]
fn a_family_brings_pre_tokenizers_of_its_own() {
    const OWN: &[PreTokenizer] = &[
        PreTokenizer {
            nfc: true,
            add_bos: true,
            ..PreTokenizer::new(&["tomorrow"], &[Split::Regex("b+"), Split::Bytes])
        },
        PreTokenizer::new(&["qwen2"], &[Split::Digits, Split::Gpt2]),
    ];
    let file = |pre: &str| {
        Gguf::new("marmot")
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre)
            .texts("tokenizer.ggml.tokens", &TOKENS)
            .texts("tokenizer.ggml.merges", &["a b"])
            .u32("tokenizer.ggml.bos_token_id", 5)
    };
    let family = GgufFamily { pre_tokenizers: OWN, ..GgufFamily::default() };
    let tokenizer = read_as(&file("tomorrow"), &family).unwrap();
    let written = parsed(&tokenizer);
    assert_eq!(written["normalizer"], json!({ "type": "NFC" }));
    let step = json!({ "type": "Split", "pattern": { "Regex": "b+" }, "behavior": "Isolated", "invert": false });
    assert_eq!(written["pre_tokenizer"]["pretokenizers"][0], step);
    assert!(tokenizer.add_bos);
    assert_eq!(encode(&tokenizer, "aab", false), [0, 0, 1], "the pattern cuts before 'b' and no merge goes across");
    let steps = parsed(&read_as(&file("qwen2"), &family).unwrap())["pre_tokenizer"]["pretokenizers"].clone();
    assert_eq!(steps[0], json!({ "type": "Digits", "individual_digits": true }), "it goes before the SDK's");
    assert!(read_as(&file("llama-bpe"), &family).is_ok());
    let error = read_as(&file("yesterday"), &family).unwrap_err();
    assert!(error.message.contains("is not known (known: tomorrow, qwen2, llama-bpe, "), "{error}");
}

#[test]
fn rejects_counts_that_differ() {
    let file = Gguf::new("llama")
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .i32s("tokenizer.ggml.token_type", &[1, 1]);
    let message = "metadata 'tokenizer.ggml.token_type' has 2 items for the 6 tokens of 'tokenizer.ggml.tokens'";
    check_refused(&file, Code::Corrupt, message);
    let few = pieces(&["<unk>", "<s>", "</s>", "a"]).f32s("tokenizer.ggml.scores", &[0.0]);
    check_refused(&few, Code::Corrupt, "metadata 'tokenizer.ggml.scores' has 1 items for 4 tokens");
    check_refused(&pieces(&["<unk>", "a"]), Code::NotFound, "the metadata has no 'tokenizer.ggml.scores'");
    check_refused(&vocabulary(), Code::NotFound, "the metadata has no 'tokenizer.ggml.merges'");
}

#[test]
fn rejects_tokens_that_are_there_twice() {
    let file = Gguf::new("llama").text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &["a", "b", "a"]);
    check_refused(&file, Code::Corrupt, "metadata 'tokenizer.ggml.tokens': the token 'a' has two ids, 0 and 2");
    let empty = Gguf::new("llama").text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &[]);
    check_refused(&empty, Code::Corrupt, "metadata 'tokenizer.ggml.tokens': has 0 tokens, not 1 to 1048576");
}

#[test]
fn rejects_merges_of_tokens_that_are_not_there() {
    let file = vocabulary().texts("tokenizer.ggml.merges", &["a b", "b b"]);
    let message =
        "metadata 'tokenizer.ggml.merges': merge 1 ('b b') needs the token 'bb', which is not in the vocabulary";
    check_refused(&file, Code::Corrupt, message);
    let file = vocabulary().texts("tokenizer.ggml.merges", &["ab"]);
    let message = "metadata 'tokenizer.ggml.merges': merge 0 ('ab') is not two tokens with a space between";
    check_refused(&file, Code::Corrupt, message);
}

#[test]
fn rejects_ten_million_merges_that_are_only_claimed() {
    let claim = [&8u32.to_le_bytes()[..], &10_000_000u64.to_le_bytes()].concat();
    let error = read(&vocabulary().entry("tokenizer.ggml.merges", 9, &claim)).unwrap_err();
    assert_eq!(error.code, Code::Corrupt);
    assert!(error.message.starts_with("metadata 'tokenizer.ggml.merges': "), "{error}");
}

#[test]
fn rejects_ids_outside_of_the_vocabulary() {
    for name in ["bos", "eos", "eot", "eom", "unknown", "padding"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let message = format!("metadata '{key}' is 6, outside of the vocabulary of 6 tokens");
        check_refused(&merged().u32(&key, 6), Code::Corrupt, &message);
        assert!(read(&merged().u32(&key, u32::MAX)).is_ok(), "{key}: −1 says that there is none");
    }
}

#[test]
fn rejects_scores_that_are_no_numbers_and_pieces_without_end() {
    let file = pieces(&["<unk>", "<s>", "</s>", "a"]).f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, f32::NAN]);
    let message = "metadata 'tokenizer.ggml.tokens': the score of token 3 ('a') is not a number";
    check_refused(&file, Code::Corrupt, message);
    let long = "a".repeat(513);
    let error = read(&pieces(&["<unk>", &long]).f32s("tokenizer.ggml.scores", &[0.0, 0.0])).unwrap_err();
    assert!(error.message.ends_with("has 513 bytes, more than the 512 of a piece"), "{error}");
}

#[test]
fn joins_pieces_by_score_and_spells_the_rest_in_bytes() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "<0xC3>", "<0xA4>"];
    let file = Gguf::new("llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 1, 1, 1, 6, 6])
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, 0.0, 0.0]);
    let tokenizer = read(&file).unwrap();
    assert_eq!(encode(&tokenizer, "ab a", true), [1, 3, 6, 7]);
    assert_eq!(encode(&tokenizer, "ä", false), [3, 8, 9]);
    let without_bos = read(&file.bool("tokenizer.ggml.add_bos_token", false)).unwrap();
    assert_eq!(encode(&without_bos, "ab a", true), [3, 6, 7]);
}

#[test]
fn joins_the_characters_of_lines_and_takes_runs_of_line_breaks_whole() {
    let tokens =
        ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "a", "b", "ab", "▁a", "\n", "\n\n", "<0xC3>", "<0xA4>", "<|turn>"];
    let file = Gguf::new("gemma4")
        .text("tokenizer.ggml.model", "gemma4")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &[3, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 6, 6, 4])
        .texts("tokenizer.ggml.merges", &["▁ a", "a b"])
        .u32("tokenizer.ggml.bos_token_id", 2)
        .u32("tokenizer.ggml.eos_token_id", 1);
    let tokenizer = read(&file).unwrap();
    assert_eq!(encode(&tokenizer, "<|turn>ab a\n\nab", true), [2, 13, 7, 8, 10, 7]);
    assert_eq!(encode(&tokenizer, "ä b", false), [11, 12, 4, 6]);
    let without_merges =
        Gguf::new("gemma4").text("tokenizer.ggml.model", "gemma4").texts("tokenizer.ggml.tokens", &tokens);
    check_refused(&without_merges, Code::NotFound, "the metadata has no 'tokenizer.ggml.merges'");
}

#[test]
fn finds_ends_of_turns_that_the_file_does_not_name() {
    let tokens = ["a", "<|end|>", "<|endoftext|>", "<|return|>", "<|call|>", "</s>"];
    let file = |types: &[i32]| {
        Gguf::new("phi2")
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "phi-2")
            .texts("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", types)
            .texts("tokenizer.ggml.merges", &[])
            .u32("tokenizer.ggml.eos_token_id", 3)
    };
    let ends = |types: &[i32]| read(&file(types)).unwrap().eos;
    assert_eq!(ends(&[1, 3, 3, 3, 3, 3]), [3, 2, 4, 5], "'<|end|>' ends a message where '<|return|>' ends the turn");
    assert_eq!(ends(&[1, 3, 3, 3, 3, 1]), [3, 2, 4], "'</s>' as a normal token is text");
    assert_eq!(ends(&[1, 1, 1, 1, 1, 1]), [3, 2, 4], "a forgotten mark does not hide the unmistakable");
}

#[test]
fn takes_the_default_chat_template() {
    let template = |file: Gguf| read(&file).unwrap().chat_template;
    assert_eq!(template(merged()), None);
    let both = merged().text("tokenizer.chat_template.tool_use", "tools").text("tokenizer.chat_template", "plain");
    assert_eq!(template(both).as_deref(), Some("plain"));
    assert_eq!(template(merged().text("tokenizer.chat_template.only", "only")).as_deref(), Some("only"));
    let long = "x".repeat((1 << 20) + 1);
    let error = read(&merged().text("tokenizer.chat_template", &long)).unwrap_err();
    assert!(error.message.starts_with("metadata 'tokenizer.chat_template' has 1048577 bytes"), "{error}");
}

/// A folder with a `tokenizer.json` whose post-processor is null.
fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), read(&merged()).unwrap().json).unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    folder
}

#[test]
fn a_tokenizer_json_beside_the_file_goes_first_if_it_is_for_the_same_vocabulary() {
    let folder = folder(&[]);
    let path = folder.path().join("x.gguf");
    let strange = |tokens: &[&str]| {
        Gguf::new("llama")
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "tomorrow")
            .texts("tokenizer.ggml.tokens", tokens)
            .i32s("tokenizer.ggml.token_type", &TYPES)
            .u32("tokenizer.ggml.bos_token_id", 5)
            .bool("tokenizer.ggml.add_bos_token", true)
    };
    let taken = read_in(&strange(&TOKENS), &path).unwrap();
    assert_eq!(taken.json, std::fs::read_to_string(folder.path().join("tokenizer.json")).unwrap());
    assert!(!taken.add_bos, "the file beside adds nothing, whatever the metadata says");
    let other = ["a", "b", "ab", "bba", "<|im_end|>", "<|im_start|>"];
    let error = read_in(&strange(&other), &path).unwrap_err();
    let reason = "the tokenizer.json beside the file was not taken: its token 3 is 'abb', the model's is 'bba'";
    assert_eq!((error.code, error.help.as_str()), (Code::Unsupported, reason));
}

#[test]
fn a_folder_collects_its_special_ids_from_all_its_files() {
    let folder = folder(&[
        ("tokenizer_config.json", json!({ "eos_token": { "content": "<|im_end|>" }, "bos_token": null })),
        ("generation_config.json", json!({ "eos_token_id": [5, 4], "pad_token_id": 0 })),
        ("config.json", json!({ "bos_token_id": 5, "eos_token_id": 4 })),
    ]);
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!(tokenizer.eos, [4, 5]);
    assert_eq!((tokenizer.bos, tokenizer.pad), (None, None), "the tokenizer's own file says that there are none");
    assert!(!tokenizer.add_bos && !tokenizer.add_eos);
    std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!((tokenizer.bos, tokenizer.pad), (Some(5), Some(0)));
    std::fs::write(folder.path().join("config.json"), r#"{"eos_token_id": 6}"#).unwrap();
    let error = Tokenizer::from_folder(folder.path()).unwrap_err();
    assert!(
        error.message.ends_with("config.json: 'eos_token_id' is 6, outside of the vocabulary of 6 tokens"),
        "{error}"
    );
}

#[test]
fn a_folder_whose_settings_ask_for_bos_gets_it() {
    let settings = |add: bool| json!({ "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": add });
    let asking = folder(&[("tokenizer_config.json", settings(true))]);
    let tokenizer = Tokenizer::from_folder(asking.path()).unwrap();
    assert!(tokenizer.add_bos);
    assert_eq!(encode(&tokenizer, "ab", true), [5, 2]);
    assert_eq!(encode(&tokenizer, "ab", false), [2]);
    std::fs::write(asking.path().join("tokenizer.json"), &tokenizer.json).unwrap();
    let kept = Tokenizer::from_folder(asking.path()).unwrap();
    assert_eq!(kept, tokenizer, "a file that already agrees is passed on as it is");
    std::fs::write(asking.path().join("tokenizer_config.json"), settings(false).to_string()).unwrap();
    let refusing = Tokenizer::from_folder(asking.path()).unwrap();
    assert!(!refusing.add_bos);
    assert_eq!(encode(&refusing, "ab", true), [2]);
}

#[test]
fn a_file_that_truncates_is_passed_on_without() {
    let folder = folder(&[]);
    let mut document = parsed(&read(&merged()).unwrap());
    document["truncation"] = json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
    std::fs::write(folder.path().join("tokenizer.json"), document.to_string()).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!(encode(&tokenizer, "ababab", true), [2, 2, 2]);
}

#[test]
fn a_template_file_goes_before_templates_in_settings() {
    let named = json!([{ "name": "tool_use", "template": "tools" }, { "name": "default", "template": "plain" }]);
    let folder = folder(&[("tokenizer_config.json", json!({ "chat_template": named }))]);
    let template = || Tokenizer::from_folder(folder.path()).unwrap().chat_template;
    assert_eq!(template().as_deref(), Some("plain"));
    std::fs::write(folder.path().join("chat_template.jinja"), "file").unwrap();
    assert_eq!(template().as_deref(), Some("file"));
}

#[test]
fn rejects_folders_without_a_tokenizer_and_files_that_are_none() {
    let empty = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_folder(empty.path()).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.help.contains("save_pretrained"), "{error}");
    for broken in ["", "{", "[]", "{\"model\": {}}", "{\"model\": {\"vocab\": {\"a\": -1}}}"] {
        std::fs::write(empty.path().join("tokenizer.json"), broken).unwrap();
        let error = Tokenizer::from_folder(empty.path()).unwrap_err();
        assert_eq!(error.code, Code::Corrupt, "{broken}");
        assert!(error.message.contains("tokenizer.json: is not a tokenizer.json: "), "{error}");
    }
}

/// Encodes a length-delimited protobuf field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// Encodes a `tokenizer.model` of pieces with their types; `kind` 2 is BPE.
fn model_file(pieces: &[(&str, u8)], kind: u8) -> Vec<u8> {
    let mut file = vec![];
    for ((text, of), id) in pieces.iter().zip(0u8..) {
        let score = [&[2 << 3 | 5][..], &(-f32::from(id)).to_le_bytes()].concat();
        file.extend(field(1, &[field(1, text.as_bytes()), score, vec![3 << 3, *of]].concat()));
    }
    file.extend(field(2, &[3 << 3, kind]));
    // Spaces are kept as they are.
    file.extend(field(3, &[4 << 3, 0]));
    file
}

const PIECES: [(&str, u8); 7] = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("ab", 1), ("▁", 1), ("a", 1), ("b", 1)];

#[test]
fn reads_a_sentencepiece_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.model"), model_file(&PIECES, 2)).unwrap();
    std::fs::write(folder.path().join("added_tokens.json"), r#"{"<|end|>": 8}"#).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!((tokenizer.bos, tokenizer.unknown, tokenizer.add_bos), (Some(1), Some(0), true));
    assert_eq!(tokenizer.eos, [2, 8]);
    assert_eq!(encode(&tokenizer, "ab<|end|>", true), [1, 4, 3, 8]);
}

#[test]
fn rejects_sentencepiece_files_of_another_kind_or_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let read = |file: &[u8]| {
        std::fs::write(folder.path().join("tokenizer.model"), file).unwrap();
        Tokenizer::from_folder(folder.path())
    };
    assert_eq!(read(&model_file(&PIECES, 1)).unwrap_err().code, Code::Unsupported);
    let whole = model_file(&PIECES, 2);
    assert!(read(&whole).is_ok());
    for end in 0..whole.len() {
        assert!(read(&whole[..end]).is_err(), "{end} bytes");
    }
}

/// A WordPiece vocabulary as files spell it.
fn wordpiece(words: &[&str; 6]) -> Gguf {
    let tokens = [&["[PAD]", "[UNK]", "[CLS]", "[SEP]"][..], words].concat();
    Gguf::new("bert")
        .text("tokenizer.ggml.model", "bert")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &[3, 3, 3, 3, 1, 1, 1, 1, 1, 1])
}

#[test]
fn a_wordpiece_vocabulary_is_spelled_as_its_own_and_puts_its_tokens_around_texts() {
    let tokenizer =
        read(&wordpiece(&["▁fox", "▁the", "es", "▁f", "ox", "▁,"]).u32("tokenizer.ggml.seperator_token_id", 3))
            .unwrap();
    assert_eq!(encode(&tokenizer, "The foxes, FOX", true), [2, 5, 4, 6, 9, 4, 3]);
    assert_eq!(encode(&tokenizer, "zebra", false), [1]);
    let document = parsed(&tokenizer);
    assert_eq!(document["model"]["vocab"]["##es"], 6);
    assert_eq!(document["normalizer"]["lowercase"], true);
    let loaded: tokenizers::Tokenizer = tokenizer.json.parse().unwrap();
    let pair = loaded.encode(("the fox", "fox"), true).unwrap();
    assert_eq!((pair.get_ids(), pair.get_type_ids()), (&[2, 5, 4, 3, 4, 3][..], &[0, 0, 0, 0, 1, 1][..]));
}

#[test]
fn a_wordpiece_vocabulary_with_capitals_keeps_them() {
    let cased = || wordpiece(&["▁Fox", "▁fox", "▁x", "▁y", "▁z", "▁w"]);
    let tokenizer = read(&cased()).unwrap();
    assert_eq!(encode(&tokenizer, "Fox fox", false), [4, 5]);
    let told = read(&cased().bool("tokenizer.ggml.normalizer.lowercase", true)).unwrap();
    assert_eq!(encode(&told, "Fox fox", false), [5, 5]);
}

#[test]
fn a_unigram_vocabulary_takes_the_most_probable_pieces() {
    let tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b", "▁ab", "▁a", "ba"];
    let file = |scores: &[f32]| {
        Gguf::new("bert")
            .text("tokenizer.ggml.model", "t5")
            .texts("tokenizer.ggml.tokens", &tokens)
            .f32s("tokenizer.ggml.scores", scores)
            .i32s("tokenizer.ggml.token_type", &[3, 3, 3, 2, 1, 1, 1, 1, 1, 1])
            .u32("tokenizer.ggml.bos_token_id", 0)
            .u32("tokenizer.ggml.eos_token_id", 2)
            .u32("tokenizer.ggml.unknown_token_id", 3)
            .bool("tokenizer.ggml.add_bos_token", true)
            .bool("tokenizer.ggml.add_eos_token", true)
            .bool("tokenizer.ggml.remove_extra_whitespaces", true)
    };
    let tokenizer = read(&file(&[0.0, 0.0, 0.0, 0.0, -4.0, -3.0, -3.0, -3.5, -2.0, -2.5])).unwrap();
    assert_eq!(encode(&tokenizer, "ab  aba ", true), [0, 7, 8, 9, 2]);
    let loaded: tokenizers::Tokenizer = tokenizer.json.parse().unwrap();
    assert_eq!(loaded.encode(("a", "b"), true).unwrap().get_ids(), [0, 8, 2, 2, 4, 6, 2]);
    assert_eq!(read(&file(&[0.0; 3])).unwrap_err().code, Code::Corrupt);
}

/// Tokens as Python writes bytes: all single ones, some of several, and the one that ends a text.
fn longest() -> Vec<String> {
    let single = (0..=255_u8).map(|byte| match byte {
        b'\'' => "\\'".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\\' => r"\\".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    });
    let several = ["ab", "abc", "bcd", r"\xe6\x97", r"\xe6\x97\xa5", r"\n\n"].map(str::to_owned);
    std::iter::once("<s>".to_owned()).chain(single).chain(several).collect()
}

#[test]
fn the_longest_token_at_each_place_is_taken_from_rwkv_s_vocabulary() {
    let tokens = longest();
    let id = |text: &str| tokens.iter().position(|token| token == text).unwrap() as u32;
    let types: Vec<i32> = tokens.iter().map(|token| if token == "<s>" { 3 } else { 1 }).collect();
    let file = Gguf::new("rwkv7")
        .text("tokenizer.ggml.model", "rwkv")
        .texts("tokenizer.ggml.tokens", &tokens.iter().map(String::as_str).collect::<Vec<_>>())
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.eos_token_id", 0)
        .u32("tokenizer.ggml.eot_token_id", id(r"\n\n"))
        .text("tokenizer.chat_template", "rwkv-world");
    let from_file = read(&file).unwrap();
    assert_eq!((from_file.eos.as_slice(), from_file.chat_template.as_deref()), (&[0, id(r"\n\n")][..], None));
    // The same as a folder has it: without the first, with quotes, and with characters where they are whole.
    let folder = tempfile::tempdir().unwrap();
    let line = |(id, token): (usize, &String)| {
        let (literal, bytes) = match token.as_str() {
            r"\xe6\x97\xa5" => ("'日'".to_owned(), 3),
            token if token.contains(r"\x") => (format!("b'{token}'"), token.len() / 4),
            token => (
                format!("'{token}'"),
                token.len() - token.matches('\\').count().div_ceil(1 + usize::from(token == r"\\")),
            ),
        };
        format!("{id} {literal} {bytes}\n")
    };
    let text: String = tokens.iter().enumerate().skip(1).map(line).collect();
    std::fs::write(folder.path().join("rwkv_vocab_v20230424.txt"), text).unwrap();
    let from_folder = Tokenizer::open(folder.path()).unwrap();
    assert_eq!((from_folder.eos.as_slice(), from_folder.add_bos), (&[0][..], false));
    for tokenizer in [&from_file, &from_folder] {
        let expected = ["abc", "d", "bcd", r"\xe6\x97\xa5", r"\xe6\x97", r"\xa6", " ", r"\n\n", r"\n", "\\'", r"\\"];
        assert_eq!(encode(tokenizer, "abcdbcd日旦 \n\n\n'\\", true), expected.map(id), "{}", tokenizer.json);
        assert_eq!(encode(tokenizer, "a<s>", true), [id("a"), 0]);
    }
}

#[test]
fn rejects_a_vocabulary_of_rwkv_that_lacks_a_byte_or_has_none() {
    for (tokens, message) in [
        (longest().into_iter().filter(|token| token != "q").collect::<Vec<_>>(), "no token is the byte 113"),
        ([longest(), vec![r"\q".into()]].concat(), r"is not written as Python writes it"),
        ([longest(), vec![r"\x4".into()]].concat(), r"is not written as Python writes it"),
        ([longest(), vec![r"\x61b".into()]].concat(), "has two ids"),
    ] {
        let file = Gguf::new("rwkv7")
            .text("tokenizer.ggml.model", "rwkv")
            .texts("tokenizer.ggml.tokens", &tokens.iter().map(String::as_str).collect::<Vec<_>>());
        let error = read(&file).unwrap_err();
        assert!(error.code == Code::Corrupt && error.message.contains(message), "{error}");
    }
    for line in ["", "1", "1 'a'", "1 a 1", "1 'a' 2", "x 'a' 1", "0 'a' 1", "4000000000 'a' 1"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rwkv_vocab_v20230424.txt"), format!("{line}\n")).unwrap();
        let error = Tokenizer::open(folder.path()).unwrap_err();
        assert_eq!(error.code, Code::Corrupt, "{line}: {error}");
    }
}
