//! Equal configurations from different writers.

use std::path::Path;

use serde_json::{Value, json};

use super::{Config, RopeConfig, RopeScaling};
use crate::RopeStyle;
use crate::{
    Checkpoint, Code, Dtype, GgufFamily, GgufRope, Result,
    fixture::{Gguf, folder},
    gguf,
};

fn config(value: Value) -> Result<Config> {
    match value {
        Value::Object(object) => Config::new(object),
        _ => panic!("an object"),
    }
}

fn rope(value: Value) -> Result<RopeConfig> {
    config(value)?.rope()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, message: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::Corrupt, message));
}

/// A GGUF llama with two layers of four heads.
fn llama() -> Gguf {
    model("llama")
}

fn model(architecture: &str) -> Gguf {
    let key = |key: &str| format!("{architecture}.{key}");
    Gguf::new(architecture)
        .u32(&key("block_count"), 2)
        .u32(&key("embedding_length"), 32)
        .u32(&key("feed_forward_length"), 64)
        .u32(&key("context_length"), 4096)
        .u32(&key("attention.head_count"), 4)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .zeros("token_embd.weight", Dtype::F32, &[11, 32])
}

fn open(file: &Gguf) -> Result<Config> {
    open_with(file, GgufFamily::USUAL)
}

fn open_with(file: &Gguf, family: GgufFamily) -> Result<Config> {
    let gguf = gguf::Gguf::read(&file.map())?;
    Ok(Checkpoint::from_gguf(Path::new("test.gguf"), vec![gguf], |_| family)?.config().clone())
}

#[test]
fn getters_tell_absent_from_wrong() {
    let config = config(json!({ "hidden_size": 64, "head_dim": null, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "attention_bias": true, "offset": -2, "layers": [1, 2] }))
    .unwrap();
    assert_eq!(config.usize("hidden_size").unwrap(), 64);
    assert_eq!(config.find_usize("head_dim").unwrap(), None);
    assert_eq!(config.usize_or("head_dim", 16).unwrap(), 16);
    assert_eq!(config.f64("rms_norm_eps").unwrap(), 1e-5);
    assert_eq!(config.f64("hidden_size").unwrap(), 64.0);
    assert!(config.bool_or("attention_bias", false).unwrap());
    assert!(!config.bool_or("mlp_bias", false).unwrap());
    assert_eq!(config.str_or("hidden_act", "gelu").unwrap(), "silu");
    let error = config.usize("vocab_size").unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::NotFound, "the configuration has no 'vocab_size'"));
    let message = "the configuration's 'hidden_act' is 'silu', not an unsigned integer";
    refused(config.usize("hidden_act"), message);
    refused(config.usize("offset"), "the configuration's 'offset' is -2, not an unsigned integer");
    assert_eq!(config.f64("offset").unwrap(), -2.0);
    refused(config.bool_or("hidden_size", true), "the configuration's 'hidden_size' is 64, not true or false");
    refused(config.str("layers"), "the configuration's 'layers' is a list of 2, not a string");
}

#[test]
fn numbers_out_of_range_are_refused_before_anyone_reads_them() {
    for (value, message) in [
        (json!({ "num_hidden_layers": 1_000_000 }), "'num_hidden_layers' is 1000000, not a number from 1 to 4096"),
        (json!({ "num_attention_heads": 0 }), "'num_attention_heads' is 0, not a number from 1 to 4096"),
        (json!({ "num_key_value_heads": -1 }), "'num_key_value_heads' is -1, not a number from 1 to 4096"),
        (json!({ "head_dim": 4096 }), "'head_dim' is 4096, not a number from 1 to 1024"),
        (json!({ "hidden_size": 1u64 << 40 }), "'hidden_size' is 1099511627776, not a number from 1 to 16777216"),
        (json!({ "rms_norm_eps": -1.0 }), "'rms_norm_eps' is -1.0, not a number from 0 to 1"),
        (json!({ "eos_token_id": -1 }), "'eos_token_id' is -1, not a token id or a list of at most 256"),
        (json!({ "rope_scaling": "linear" }), "'rope_scaling' is 'linear', not an object"),
    ] {
        refused(config(value), &format!("the configuration's {message}"));
    }
}

#[test]
fn an_authors_struct_reads_the_same_names() {
    #[derive(Debug, serde::Deserialize)]
    struct Mine {
        hidden_size: usize,
        #[allow(dead_code)]
        extra: u8,
    }
    let whole = config(json!({ "hidden_size": 8, "extra": 1 })).unwrap();
    assert_eq!(whole.parse::<Mine>().unwrap().hidden_size, 8);
    refused(
        config(json!({ "hidden_size": 8 })).unwrap().parse::<Mine>(),
        "the configuration does not fit: missing field `extra`",
    );
}

#[test]
fn lifts_the_text_model_out_of_a_larger_one() {
    let config = config(json!({ "architectures": ["Both"], "model_type": "both",
        "text_config": { "architectures": ["Text"], "model_type": "text", "hidden_size": 8, "torch_dtype": "bfloat16" } }))
    .unwrap();
    assert_eq!(config.usize("hidden_size").unwrap(), 8);
    assert_eq!(config.str("model_type").unwrap(), "text");
    assert_eq!(config.str("dtype").unwrap(), "bfloat16");
    assert_eq!(config.value()["architectures"], json!(["Both"]));
}

#[test]
fn the_output_layer_is_the_embedding_where_the_outer_or_the_text_model_says_so() {
    let tied = |outer: Value, text: bool| {
        let text = json!({ "hidden_size": 8, "tie_word_embeddings": text });
        let config = config(json!({ "tie_word_embeddings": outer, "text_config": text })).unwrap();
        config.bool_or("tie_word_embeddings", false).unwrap()
    };
    assert!(tied(json!(true), false));
    assert!(tied(json!(false), true));
    assert!(!tied(json!(false), false));
    assert!(tied(Value::Null, true));
    assert!(!tied(Value::Null, false));
}

#[test]
fn dynamic_rope_is_plain_within_the_context() {
    let rope = rope(json!({ "max_position_embeddings": 4096, "rope_scaling": { "type": "dynamic", "factor": 2.0 } }));
    assert_eq!(rope.unwrap().scaling, RopeScaling::None);
}

#[test]
fn a_window_that_is_switched_off_is_none() {
    let window = |value| config(value).unwrap().sliding_window().unwrap();
    assert_eq!(window(json!({ "sliding_window": 4096 })), Some(4096));
    assert_eq!(window(json!({ "sliding_window": 4096, "use_sliding_window": false })), None);
    assert_eq!(window(json!({ "sliding_window": null })), None);
    assert_eq!(window(json!({ "sliding_window": 0 })), None);
    assert_eq!(window(json!({})), None);
}

#[test]
fn windows_follow_the_layers_types() {
    let windows = |value| config(value).unwrap().sliding_windows(3);
    assert_eq!(windows(json!({ "sliding_window": 8 })).unwrap(), [Some(8); 3]);
    assert_eq!(
        windows(json!({ "layer_types": ["sliding_attention", "full_attention", "full_attention"] })).unwrap(),
        [None; 3]
    );
    let types = ["full_attention", "sliding_attention", "full_attention"];
    assert_eq!(windows(json!({ "sliding_window": 8, "layer_types": types })).unwrap(), [None, Some(8), None]);
    assert_eq!(windows(json!({ "sliding_window": 8, "max_window_layers": 1 })).unwrap(), [None, Some(8), Some(8)]);
    for types in [json!(["full_attention"]), json!(["full_attention", "linear_attention", "full_attention"]), json!(1)]
    {
        assert!(windows(json!({ "sliding_window": 8, "layer_types": types })).is_err());
    }
}

#[test]
fn ends_of_generation_come_from_both_files() {
    let both = folder(&[
        ("config.json", br#"{"eos_token_id": 2}"#),
        ("generation_config.json", br#"{"eos_token_id": [7, 2]}"#),
    ]);
    assert_eq!(Config::read(both.path()).unwrap().eos_token_ids(), [2, 7]);
    let none = folder(&[("config.json", br#"{"eos_token_id": null}"#)]);
    assert_eq!(Config::read(none.path()).unwrap().eos_token_ids(), [0u32; 0]);
    let broken = folder(&[("config.json", b"{}"), ("generation_config.json", b"[]")]);
    let error = Config::read(broken.path()).unwrap_err();
    assert!(error.message.ends_with("generation_config.json: is not a JSON object"), "{error}");
    let error = Config::read(folder(&[("config.json", b"{")]).path()).unwrap_err();
    assert!(error.message.contains("config.json: is not JSON: "), "{error}");
    assert_eq!(Config::read(folder(&[]).path()).unwrap_err().code, Code::NotFound);
}

#[test]
fn reads_rope_in_every_spelling() {
    let scaled =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
    let expected = RopeConfig { theta: 500_000.0, partial_rotary_factor: 0.5, style: RopeStyle::NeoX, scaling: scaled };
    let scaling =
        json!({ "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
    let with = |extra: Value| {
        let mut scaling = scaling.as_object().unwrap().clone();
        scaling.extend(extra.as_object().unwrap().clone());
        scaling
    };
    for value in [
        json!({ "rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_scaling": with(json!({ "rope_type": "llama3" })) }),
        json!({ "rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_scaling": with(json!({ "type": "llama3" })) }),
        json!({ "rope_parameters": with(json!({ "rope_type": "llama3", "rope_theta": 5e5, "partial_rotary_factor": 0.5 })) }),
        json!({ "rope_scaling": null, "rope_theta": 1.5, "rope_parameters": with(json!({ "rope_type": "llama3", "rope_theta": 5e5, "partial_rotary_factor": 0.5 })) }),
    ] {
        assert_eq!(rope(value.clone()).unwrap(), expected, "{value}");
    }
}

#[test]
fn rope_without_parameters_is_plain() {
    let plain =
        RopeConfig { theta: 1e4, partial_rotary_factor: 1.0, style: RopeStyle::NeoX, scaling: RopeScaling::None };
    for value in [json!({}), json!({ "rope_scaling": null, "rope_theta": 10000 }), json!({ "rope_parameters": {} })] {
        assert_eq!(rope(value).unwrap(), plain);
    }
    assert_eq!(plain.rotary_dim(64).unwrap(), 64);
    assert_eq!(RopeConfig { partial_rotary_factor: 0.4, ..plain.clone() }.rotary_dim(80).unwrap(), 32);
    assert_eq!(RopeConfig { partial_rotary_factor: 1.0 / 49.0 * 2.0, ..plain.clone() }.rotary_dim(49).unwrap(), 2);
    let message = "the configuration rotates 7 of the 7 values of a head, not an even number of them";
    refused(plain.rotary_dim(7), message);
}

#[test]
fn linear_and_yarn_follow_the_reference() {
    let scaling = |value: Value| rope(value).unwrap().scaling;
    assert_eq!(
        scaling(json!({ "rope_scaling": { "type": "linear", "factor": 4 } })),
        RopeScaling::Linear { factor: 4.0 }
    );
    let yarn = |factor, attention_factor| RopeScaling::Yarn {
        factor,
        original_context: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        truncate: true,
    };
    let original = json!(4096);
    let of = |extra: Value| {
        let mut parameters = json!({ "rope_type": "yarn", "original_max_position_embeddings": original });
        parameters.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        scaling(json!({ "max_position_embeddings": 32768, "rope_parameters": parameters }))
    };
    let whole = 0.1 * 8f64.ln() + 1.0;
    assert_eq!(of(json!({ "factor": 8 })), yarn(8.0, whole));
    assert_eq!(of(json!({ "factor": null, "beta_fast": 0 })), yarn(8.0, whole));
    assert_eq!(of(json!({ "factor": 8, "attention_factor": 1.25 })), yarn(8.0, 1.25));
    assert_eq!(of(json!({ "factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0 })), yarn(8.0, 1.0));
    assert_eq!(of(json!({ "factor": 8, "mscale": 0.5, "mscale_all_dim": 0 })), yarn(8.0, whole));
    let RopeScaling::Yarn { truncate, beta_slow, .. } = of(json!({ "factor": 8, "truncate": false, "beta_slow": 2 }))
    else {
        panic!("yarn")
    };
    assert_eq!((truncate, beta_slow), (false, 2.0));
}

#[test]
fn longrope_takes_the_original_context_from_beside_it() {
    let phi = |name: &str, extra: Value| {
        let mut scaling = json!({ "type": name, "short_factor": [1.0, 2], "long_factor": [3.0, 4.5] });
        scaling.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        rope(json!({ "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_scaling": scaling }))
            .unwrap()
    };
    let expected = (1.0 + 32f64.ln() / 4096f64.ln()).sqrt();
    for name in ["longrope", "su", "yarn"] {
        let rope = phi(name, json!({}));
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 2.0],
            long: vec![3.0, 4.5],
            original_context: 4096,
            short_attention_factor: expected,
            long_attention_factor: expected,
        };
        assert_eq!(rope.scaling, scaling);
        assert_eq!(rope.rotary_dim(4).unwrap(), 4);
        let message = "the configuration scales 2 pairs of values per head, and 4 are rotated";
        refused(rope.rotary_dim(8), message);
    }
    let RopeScaling::LongRope { short_attention_factor, long_attention_factor, .. } =
        phi("longrope", json!({ "short_mscale": 1.1, "long_mscale": 1.2 })).scaling
    else {
        panic!("longrope")
    };
    assert_eq!((short_attention_factor, long_attention_factor), (1.1, 1.2));
}

#[test]
fn rope_that_cannot_be_done_is_named() {
    let of = |value: Value| rope(json!({ "max_position_embeddings": 4096, "rope_scaling": value }));
    let error = of(json!({ "type": "ntk", "factor": 2.0 })).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::Unsupported, "the configuration's RoPE type 'ntk' is not supported")
    );
    assert_eq!(error.help, "supported are default, linear, dynamic, llama3, yarn, longrope and proportional");
    let needs = "the configuration has no 'rope_parameters.factor', which its RoPE type needs";
    refused(of(json!({ "type": "linear" })), needs);
    let range = "the configuration's 'rope_parameters.factor' is 0, not a number from 0.000001 to 1000000";
    refused(of(json!({ "type": "linear", "factor": 0 })), range);
    let order = "the configuration's 'rope_parameters.high_freq_factor' is 1, not more than 'low_freq_factor', 4";
    refused(of(json!({ "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1 })), order);
    let list =
        "the configuration's 'rope_parameters.short_factor' is a list of 1, not a list of 1 to 512 positive numbers";
    refused(of(json!({ "type": "longrope", "short_factor": [0], "long_factor": [1] })), list);
    refused(of(json!({ "rope_type": 3 })), "the configuration's 'rope_parameters.rope_type' is 3, not a string");
}

#[test]
fn rope_may_differ_by_layer_type() {
    let config = config(json!({ "layer_types": ["full", "sliding"], "rope_parameters": {
        "full": { "rope_type": "linear", "factor": 8, "rope_theta": 1e6 }, "sliding": { "rope_type": "default" } } }))
    .unwrap();
    assert_eq!(config.rope_for("full").unwrap().scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(config.rope_for("sliding").unwrap().theta, 1e4);
    let error = config.rope().unwrap_err();
    let message =
        "the configuration rotates positions differently by layer type (full, sliding), and not for all layers alike";
    assert_eq!((error.code, error.message.as_str()), (Code::Unsupported, message));
    assert!(config.rope_for("other").unwrap_err().message.ends_with("and not for 'other'"));
}

#[test]
fn gguf_metadata_reads_like_config_json() {
    let file = llama().u32("tokenizer.ggml.eos_token_id", 2).f32("llama.rope.freq_base", 5e5);
    let config = open_with(&file, GgufFamily::PERMUTED).unwrap();
    let eps = config.f64("rms_norm_eps").unwrap();
    assert_eq!(eps as f32, 1e-5);
    assert_eq!(
        *config.value(),
        json!({
            "architectures": ["llama"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 11, "rms_norm_eps": eps,
            "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "eos_token_id": 2,
            "rope_parameters": { "rope_type": "default", "rope_theta": 5e5, "interleaved": true },
        })
    );
    assert_eq!(config.eos_token_ids(), [2]);
    assert_eq!(config.rope().unwrap().style, RopeStyle::Interleaved);
    assert_eq!(open(&file).unwrap().rope().unwrap().style, RopeStyle::NeoX, "nobody knows an architecture by its name");
}

#[test]
fn what_gguf_leaves_unsaid_comes_from_the_family() {
    let file = model("marmot")
        .zeros("blk.0.burrow.weight", Dtype::F32, &[3, 32])
        .u32("marmot.expert_count", 4)
        .u32("marmot.burrow.depth", 7)
        .f32("marmot.burrow.slope", 0.5)
        .bool("marmot.burrow.is_lit", true)
        .text("marmot.burrow.soil", "loam")
        .texts("marmot.burrow.rooms", &["den", "hall"])
        .f32s("marmot.burrow.widths", &[1.0, 0.5]);
    let family = GgufFamily {
        names: &[("burrow", "self_attn.burrow")],
        keys: &[
            ("burrow.depth", "burrow_depth"),
            ("burrow.slope", "slope"),
            ("burrow.is_lit", "is_lit"),
            ("burrow.soil", "soil"),
            ("burrow.rooms", "rooms"),
            ("burrow.widths", "widths"),
            ("burrow.absent", "absent"),
            // Also a different name from the SDK's for a key that it knows.
            ("feed_forward_length", "inner"),
        ],
        activation: "relu2",
        rope: GgufRope::Interleaved,
        norm_topk_prob: true,
        complete: |config| {
            assert_eq!(config.architecture(), "marmot");
            config.windows(2)?;
            let depth = config.size("burrow_depth").unwrap();
            config.set("burrows", 2 * depth);
            config.default("hidden_size", 1);
            let first = "model.layers.0.self_attn.burrow.weight";
            config.set("exits", config.weights().find(first).unwrap().shape[0]);
            config.rope().unwrap().insert("rope_theta".to_owned(), 5e4.into());
            Ok(())
        },
        ..GgufFamily::default()
    };
    let config = open_with(&file, family).unwrap();
    let expected = json!({
        "burrow_depth": 7, "slope": 0.5, "is_lit": true, "soil": "loam", "rooms": ["den", "hall"], "widths": [1.0, 0.5],
        "inner": 64, "hidden_act": "relu2", "norm_topk_prob": true, "burrows": 14, "hidden_size": 32, "exits": 3,
        "layer_types": ["sliding_attention", "full_attention"],
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(config.value()[name], *value, "{name}");
    }
    assert_eq!(config.find_str("absent").unwrap(), None);
    let rope = config.rope().unwrap();
    assert_eq!((rope.style, rope.theta), (RopeStyle::Interleaved, 5e4));
    let said = open_with(&file.clone().bool("marmot.expert_weights_norm", false), family).unwrap();
    assert!(!said.bool_or("norm_topk_prob", true).unwrap(), "the file goes before the family");
    let unknown = open(&file).unwrap();
    assert!(unknown.value().get("burrow_depth").is_none());
    let many = vec![0; 4097];
    let error = open_with(&model("marmot").i32s("marmot.burrow.depth", &many), family).unwrap_err();
    assert_eq!(error.message, "metadata 'marmot.burrow.depth' has 4097 items, more than 4096");
}

#[test]
fn what_gguf_leaves_unsaid_is_told_from_its_tensors() {
    let file = model("phi2")
        .zeros("output.weight", Dtype::F16, &[11, 32])
        .zeros("blk.0.attn_q.bias", Dtype::F32, &[32])
        .zeros("blk.0.ffn_up.bias", Dtype::F32, &[64])
        .u32("phi2.attention.head_count_kv", 2)
        .u32("phi2.attention.key_length", 20)
        .u32("phi2.rope.dimension_count", 8)
        .texts("tokenizer.ggml.tokens", &["a", "b", "c"]);
    let config = open(&file).unwrap();
    assert!(config.bool_or("attention_bias", false).unwrap());
    assert!(config.bool_or("mlp_bias", false).unwrap());
    assert!(!config.bool_or("tie_word_embeddings", true).unwrap());
    assert_eq!(config.usize("num_key_value_heads").unwrap(), 2);
    assert_eq!(config.usize("head_dim").unwrap(), 20);
    assert_eq!(config.usize("vocab_size").unwrap(), 3);
    let rope = config.rope().unwrap();
    assert_eq!((rope.style, rope.rotary_dim(20).unwrap()), (RopeStyle::NeoX, 8));
}

#[test]
fn gguf_rope_scaling_comes_from_metadata_and_tensors() {
    let scaling = |file: Gguf| open(&file).unwrap().rope().unwrap().scaling;
    let typed = |name: &str| llama().text("llama.rope.scaling.type", name).f32("llama.rope.scaling.factor", 4.0);
    assert_eq!(scaling(typed("linear")), RopeScaling::Linear { factor: 4.0 });
    assert_eq!(scaling(llama().f32("llama.rope.scale_linear", 2.0)), RopeScaling::Linear { factor: 2.0 });
    assert_eq!(scaling(typed("none")), RopeScaling::None);
    let divisors = llama().f32_tensor("rope_freqs.weight", &[4], &[1.0, 1.0, 2.5, 8.0]);
    assert_eq!(scaling(divisors), RopeScaling::Divisors(vec![1.0, 1.0, 2.5, 8.0]));

    let yarn = typed("yarn").u32("llama.rope.scaling.original_context_length", 1024);
    let expected = |attention_factor| RopeScaling::Yarn {
        factor: 4.0,
        original_context: 1024,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        truncate: true,
    };
    let whole = 0.1 * 4f64.ln() + 1.0;
    assert_eq!(scaling(yarn.clone()), expected(whole));
    assert_eq!(scaling(yarn.clone().f32("llama.rope.scaling.attn_factor", 0.5)), expected(0.5 * whole));
    assert_eq!(scaling(yarn.f32("llama.rope.scaling.yarn_log_multiplier", 1.0)), expected(1.0));
}

#[test]
fn gguf_attention_temperature_reads_like_config_json() {
    let file = open(&llama().f32("llama.attention.temperature_scale", 0.5)).unwrap();
    assert_eq!(file.value().pointer("/rope_parameters/llama_4_scaling_beta"), Some(&json!(0.5)));
}

#[test]
fn gguf_longrope_comes_from_its_tensors() {
    let file = model("phi3")
        .u32("phi3.rope.scaling.original_context_length", 1024)
        .f32("phi3.rope.scaling.attn_factor", 1.25)
        .f32_tensor("rope_factors_short.weight", &[4], &[1.0; 4])
        .f32_tensor("rope_factors_long.weight", &[4], &[2.0; 4]);
    let expected = RopeScaling::LongRope {
        short: vec![1.0; 4],
        long: vec![2.0; 4],
        original_context: 1024,
        short_attention_factor: 1.25,
        long_attention_factor: 1.25,
    };
    assert_eq!(open(&file).unwrap().rope().unwrap().scaling, expected);
    let lists_missing = open(&model("phi3").text("phi3.rope.scaling.type", "longrope"));
    let message = "metadata 'phi3.rope.scaling.type' is 'longrope', and the file has no tensors \
                   'rope_factors_short.weight' and 'rope_factors_long.weight'";
    refused(lists_missing, message);
}

#[test]
fn gguf_lists_are_one_number_where_all_layers_agree() {
    let of = |values: &[i32]| open(&llama().i32s("llama.attention.head_count_kv", values)).unwrap();
    assert_eq!(of(&[2, 2]).usize("num_key_value_heads").unwrap(), 2);
    let message = "the configuration's 'num_key_value_heads' is a list of 2, not an unsigned integer from 1 to 4096";
    refused(of(&[2, 4]).usize("num_key_value_heads"), message);
}

#[test]
fn gguf_multi_token_prediction_layers_are_left_out() {
    let file = model("exaone4")
        .u32("exaone4.nextn_predict_layers", 1)
        .i32s("exaone4.attention.head_count_kv", &[2, 0])
        .u32("exaone4.attention.sliding_window", 8)
        .array("exaone4.attention.sliding_window_pattern", 7, &[[1_u8], [0]]);
    let family = GgufFamily { complete: |config| config.windows(4), ..GgufFamily::default() };
    let config = open_with(&file, family).unwrap();
    assert_eq!(config.usize("num_hidden_layers").unwrap(), 1);
    assert_eq!(config.usize("num_key_value_heads").unwrap(), 2);
    assert_eq!(config.value()["layer_types"], json!(["sliding_attention"]));
}

#[test]
fn gguf_numbers_that_make_no_sense_are_named() {
    refused(
        open(&Gguf::new("llama").u32("llama.block_count", 0)),
        "the configuration's 'num_hidden_layers' is 0, not a number from 1 to 4096",
    );
    refused(
        open(&llama().f32("llama.rope.freq_base", f32::NAN)),
        "metadata 'llama.rope.freq_base' is NaN, not a finite number",
    );
    let message = "metadata 'llama.rope.dimension_count' is 16, more than the 8 values of a head";
    refused(open(&llama().u32("llama.rope.dimension_count", 16)), message);
    refused(
        open(&llama().text("llama.vocab_size", "x")),
        "metadata 'llama.vocab_size' is the string 'x', not an unsigned integer",
    );
    let large = llama().zeros("rope_freqs.weight", Dtype::F32, &[4097]);
    refused(open(&large), "tensor 'rope_freqs.weight' has the shape [4097], too large for RoPE factors");
    let both = llama().text("llama.rope.scaling.type", "yarn").f32_tensor("rope_freqs.weight", &[4], &[1.0; 4]);
    let error = open(&both).unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    assert!(error.message.starts_with("the file combines RoPE scaling 'yarn' with RoPE factors as tensors"), "{error}");
}

#[test]
fn a_key_that_only_one_value_is_computed_for_declines_others() {
    let config = config(json!({ "clip_qkv": 8.0, "qk_layernorm": false, "expand": null })).unwrap();
    let error = config.only("clip_qkv", Value::Null).unwrap_err();
    assert_eq!(error.code, Code::Declined);
    assert_eq!(error.message, "the configuration's 'clip_qkv' is 8.0, not null, which is all that is computed");
    for (key, expected) in [("qk_layernorm", json!(false)), ("expand", json!(2)), ("absent", json!("x"))] {
        config.only(key, expected).unwrap();
    }
}

#[test]
fn the_classic_style_is_the_same_whoever_wrote_it() {
    let spread = |value: Value| Value::Object(config(value).unwrap().classic());
    let plain = json!({ "rope_theta": 5e5, "partial_rotary_factor": 0.25 });
    assert_eq!(spread(json!({ "rope_theta": 5e5, "partial_rotary_factor": 0.25, "rope_scaling": null })), plain);
    let new =
        json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25 } });
    assert_eq!(spread(new), plain);
    let scaled = spread(json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 8.0 } }));
    assert_eq!(
        (&scaled["rope_scaling"]["rope_type"], &scaled["rope_scaling"]["factor"]),
        (&json!("linear"), &json!(8.0))
    );
    assert_eq!(spread(json!({ "head_dim": null })), json!({}));
}

#[test]
fn the_classic_style_of_layers_that_rotate_differently() {
    let layers = json!({ "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
        "full_attention": { "rope_type": "default", "rope_theta": 1e6 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
    } });
    let classic = config(layers).unwrap().classic();
    assert_eq!((&classic["rope_theta"], &classic["rope_local_base_freq"]), (&json!(1e6), &json!(1e4)));
    assert!(!classic.contains_key("rope_scaling") && !classic.contains_key("rope_parameters"));
}

#[test]
fn sections_of_rope_are_three_numbers_or_four_with_a_last_of_zero() {
    let sections =
        |list: Value| config(json!({ "rope_parameters": { "mrope_section": list } })).unwrap().mrope_section();
    assert_eq!(sections(json!([8, 12, 12])).unwrap(), Some([8, 12, 12]));
    assert_eq!(sections(json!([8, 12, 12, 0])).unwrap(), Some([8, 12, 12]));
    assert_eq!(config(json!({})).unwrap().mrope_section().unwrap(), None);
    for damaged in [json!([8, 12]), json!([8, 12, 12, 1]), json!([8, 12, -1]), json!([8, 12, 1 << 20]), json!("all")] {
        sections(damaged).unwrap_err();
    }
}
