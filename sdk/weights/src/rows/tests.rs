//! Folders as sentence-transformers writes them, and the descriptions that they give.

use serde_json::{Value, json};

use super::*;
use crate::fixture::{f32_safetensors, folder};

const CONFIG: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2}"#;

fn described(files: &[(&str, Value)], post_processor: &Value) -> Result<RowsUse> {
    described_with(files, post_processor, &[])
}

fn described_with(files: &[(&str, Value)], post_processor: &Value, tensors: &[(&str, &[u8])]) -> Result<RowsUse> {
    let tokenizer = Tokenizer { json: json!({ "post_processor": post_processor }).to_string(), ..Tokenizer::default() };
    described_by(files, &tokenizer, tensors)
}

fn described_by(files: &[(&str, Value)], tokenizer: &Tokenizer, tensors: &[(&str, &[u8])]) -> Result<RowsUse> {
    let weights = f32_safetensors(&[("model.norm.weight", &[2], &[1.0, 2.0])]);
    let folder = folder(&[("config.json", CONFIG), ("model.safetensors", &weights)]);
    let texts = files.iter().map(|(name, value)| (*name, value.to_string().into_bytes()));
    for (name, bytes) in texts.chain(tensors.iter().map(|(name, bytes)| (*name, bytes.to_vec()))) {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    RowsUse::read(&Checkpoint::open(folder.path())?, tokenizer)
}

fn module(kind: &str, path: &str) -> Value {
    json!({ "idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}") })
}

#[test]
fn a_folder_without_modules_is_a_chat_model() {
    let rows = described(&[], &Value::Null).unwrap();
    assert_eq!(rows, RowsUse::of_decoder());
    let json: Value = serde_json::from_str(&rows.to_json(64)).unwrap();
    assert_eq!((&json["made_for"], &json["pooling"], &json["dimensions"]), (&json!(false), &json!("last"), &json!(64)));
}

#[test]
fn modules_say_pooling_normalization_prompts_and_length() {
    let files = [
        (
            "modules.json",
            json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_N")]),
        ),
        ("1_Pooling/config.json", json!({ "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false })),
        ("sentence_bert_config.json", json!({ "max_seq_length": 512 })),
        (
            "config_sentence_transformers.json",
            json!({ "prompts": { "query": "q: ", "document": "" }, "default_prompt_name": "query" }),
        ),
    ];
    let rows = described(&files, &Value::Null).unwrap();
    assert_eq!((rows.pooling, rows.normalize, rows.made_for, rows.maximum), (Pooling::Mean, true, true, Some(512)));
    assert_eq!((rows.prompts["query"].as_str(), rows.prompt.as_deref()), ("q: ", Some("query")));
}

#[test]
fn newer_pooling_files_name_the_mode() {
    for (mode, pooling) in [("cls", Pooling::First), ("mean", Pooling::Mean), ("lasttoken", Pooling::Last)] {
        let files = [
            ("modules.json", json!([module("Pooling", "1_Pooling")])),
            ("1_Pooling/config.json", json!({ "pooling_mode": mode })),
        ];
        let rows = described(&files, &Value::Null).unwrap();
        assert_eq!((rows.pooling, rows.normalize), (pooling, false), "{mode}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let refused = |modules: Value, pooling: Value| {
        described(&[("modules.json", modules), ("1_Pooling/config.json", pooling)], &Value::Null).unwrap_err().message
    };
    let pooling = || json!([module("Pooling", "1_Pooling")]);
    let unknown = "is not one known way of pooling";
    assert!(refused(pooling(), json!({ "pooling_mode_max_tokens": true })).ends_with(unknown));
    assert!(
        refused(pooling(), json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true }))
            .ends_with(unknown)
    );
    let left_out = refused(pooling(), json!({ "pooling_mode": "mean", "include_prompt": false }));
    assert!(left_out.ends_with("leaves the prompt out of pooling, which is not computed"), "{left_out}");
    assert!(refused(json!([module("CNN", "")]), json!({})).ends_with("a module 'CNN' is not known"));
    assert!(
        refused(json!([module("Pooling", "../x")]), json!({})).ends_with("the path '../x' is not the name of a folder")
    );
}

#[test]
fn modules_in_another_order_are_refused_by_name() {
    let read = |kinds: &[&str]| {
        let modules: Vec<Value> = kinds.iter().map(|kind| module(kind, &kind.to_lowercase())).collect();
        let dense = f32_safetensors(&[("linear.weight", &[2, 2], &[1.0, 0.0, 0.0, 1.0])]);
        let sizes = json!({ "in_features": 2, "out_features": 2 });
        let files = [
            ("modules.json", json!(modules)),
            ("pooling/config.json", json!({ "pooling_mode": "mean" })),
            ("dense/config.json", sizes),
        ];
        described_with(&files, &Value::Null, &[("dense/model.safetensors", &dense)])
    };
    for (kinds, error) in [
        (&["Transformer", "Pooling", "Normalize", "Dense"][..], "a module Dense after Normalize is not computed"),
        (&["Transformer", "Pooling", "Pooling"], "a module Pooling after Pooling is not computed"),
        (&["Pooling", "Transformer"], "a module Transformer after Pooling is not computed"),
    ] {
        let message = read(kinds).unwrap_err().message;
        assert!(message.ends_with(error), "{message}");
    }
    let rows = read(&["Transformer", "Pooling", "Dropout", "Dense", "Normalize"]).unwrap();
    assert_eq!((rows.pooling, rows.normalize), (Pooling::Mean, true));
}

#[test]
fn texts_in_small_letters_need_a_tokenizer_that_makes_them() {
    let read = |normalizer: Value| {
        let files = [
            ("modules.json", json!([module("Transformer", "")])),
            ("sentence_bert_config.json", json!({ "max_seq_length": 512, "do_lower_case": true })),
        ];
        let tokenizer = Tokenizer { json: json!({ "normalizer": normalizer }).to_string(), ..Tokenizer::default() };
        described_by(&files, &tokenizer, &[])
    };
    let refused = read(Value::Null).unwrap_err().message;
    assert!(refused.ends_with("'do_lower_case' is not applied to texts"), "{refused}");
    assert!(read(json!({ "type": "BertNormalizer", "lowercase": false })).is_err());
    let lowering = json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Lowercase" }] });
    for normalizer in [lowering, json!({ "type": "BertNormalizer", "lowercase": true })] {
        assert_eq!(read(normalizer).unwrap().maximum, Some(512));
    }
}

#[test]
fn widths_that_are_no_numbers_are_not_left_out() {
    let read = |widths: &str| {
        let config = format!(r#"{{"architectures": ["LlamaForCausalLM"], "matryoshka_dimensions": {widths}}}"#);
        let weights = f32_safetensors(&[("model.norm.weight", &[2], &[1.0, 2.0])]);
        let folder = folder(&[("config.json", config.as_bytes()), ("model.safetensors", &weights)]);
        let tokenizer = Tokenizer { json: "{}".to_owned(), ..Tokenizer::default() };
        RowsUse::read(&Checkpoint::open(folder.path()).unwrap(), &tokenizer).map(|rows| rows.matryoshka)
    };
    assert_eq!(read("[1, 2.0]").unwrap(), Some(vec![1, 2]));
    assert_eq!(read("null").unwrap(), None);
    for wrong in [r#"[1, "2"]"#, "[1.5]", "[-1]", "7"] {
        let message = read(wrong).unwrap_err().message;
        assert!(message.starts_with("'matryoshka_dimensions' of the configuration"), "{message}");
    }
}

#[test]
fn labels_without_a_name_are_numbered() {
    let config = br#"{"architectures": ["LlamaForCausalLM"], "id2label": {"0": "good", "2": "bad"}}"#;
    let weights = f32_safetensors(&[("model.norm.weight", &[2], &[1.0, 2.0])]);
    let folder = folder(&[("config.json", config), ("model.safetensors", &weights)]);
    assert_eq!(labels(&Checkpoint::open(folder.path()).unwrap(), 3).unwrap(), ["good", "LABEL_1", "bad"]);
}

#[test]
fn the_tokens_around_texts_come_from_the_post_processor() {
    let special = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let template = json!({ "type": "Sequence", "processors": [{ "type": "ByteLevel" }, { "type": "TemplateProcessing",
        "single": [special("[CLS]"), text("A"), special("[SEP]")],
        "pair": [special("[CLS]"), text("A"), special("[SEP]"), text("B"), special("[SEP]")],
        "special_tokens": { "[CLS]": { "id": "[CLS]", "ids": [101] }, "[SEP]": { "id": "[SEP]", "ids": [102] } } }] });
    let closing = json!({ "type": "TemplateProcessing", "single": [text("A"), special("E")], "pair": [text("A"), text("B")],
        "special_tokens": { "E": { "id": "E", "ids": [7] } } });
    let roberta = json!({ "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0] });
    for (processor, open, between, close) in [
        (Value::Null, vec![], vec![], vec![]),
        (template, vec![101], vec![102], vec![102]),
        (closing, vec![], vec![], vec![7]),
        (roberta, vec![0], vec![2, 2], vec![2]),
    ] {
        let rows = described(&[], &processor).unwrap();
        assert_eq!((rows.open, rows.between, rows.close), (open, between, close), "{processor}");
    }
}
