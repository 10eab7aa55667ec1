//! Checkpoints written by tests.

use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::{fs, path::Path};
use tempfile::TempDir;

use crate::random::Random;

/// A checkpoint for `examples/bigram`.
pub fn bigram(vocabulary: u32, context: u32) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = format!(
        r#"{{"architectures": ["BigramForCausalLM"], "vocab_size": {vocabulary}, "max_position_embeddings": {context}}}"#
    );
    fs::write(folder.path().join("config.json"), config).expect("a writable folder");
    folder
}

/// A checkpoint for `examples/c-engine`, as its `make.py` writes them.
pub fn gru(vocabulary: u32, context: u32) -> TempDir {
    const WIDTH: u32 = 32;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("a writable folder");
    let config = json!({"architectures": ["CGruForCausalLM"], "max_position_embeddings": context});
    write("config.json", config.to_string().as_bytes());
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let words: serde_json::Map<_, _> = (0..vocabulary).map(|token| (format!("▁{token}"), token.into())).collect();
    let model = json!({"type": "WordLevel", "vocab": words, "unk_token": "▁0"});
    let tokenizer =
        json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": spaces, "decoder": spaces, "model": model});
    write("tokenizer.json", tokenizer.to_string().as_bytes());
    let mut random = Random(3);
    let mut weights = b"CGRU".to_vec();
    weights.extend([vocabulary, WIDTH].iter().flat_map(|size| size.to_le_bytes()));
    for _ in 0..vocabulary * WIDTH + 6 * WIDTH * WIDTH {
        weights.extend(((random.below(2001) as f32 - 1000.0) / 2000.0).to_le_bytes());
    }
    write("weights.bin", &weights);
    folder
}

/// A Llama with random weights, large enough for its prompts to take time: 4 layers of width 512, about 11 M weights,
/// with a fixture's tokenizer and chat template.
pub fn llama(context: u32) -> TempDir {
    const VOCABULARY: usize = 128;
    const HIDDEN: usize = 512;
    const INNER: usize = 1408;
    const LAYERS: usize = 4;
    const HEADS: usize = 8;
    const KV_HEADS: usize = 2;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama/bf16");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture.join(name), folder.path().join(name)).expect("a writable folder");
    }
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false,
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("a writable folder");
    let kv = HIDDEN / HEADS * KV_HEADS;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let layer = |name: &str| format!("model.layers.{layer}.{name}.weight");
        shapes.push((layer("input_layernorm"), vec![HIDDEN]));
        shapes.push((layer("post_attention_layernorm"), vec![HIDDEN]));
        shapes.push((layer("self_attn.q_proj"), vec![HIDDEN, HIDDEN]));
        shapes.push((layer("self_attn.k_proj"), vec![kv, HIDDEN]));
        shapes.push((layer("self_attn.v_proj"), vec![kv, HIDDEN]));
        shapes.push((layer("self_attn.o_proj"), vec![HIDDEN, HIDDEN]));
        shapes.push((layer("mlp.gate_proj"), vec![INNER, HIDDEN]));
        shapes.push((layer("mlp.up_proj"), vec![INNER, HIDDEN]));
        shapes.push((layer("mlp.down_proj"), vec![HIDDEN, INNER]));
    }
    let mut random = Random(7);
    let mut weight = |is_norm: bool| {
        let spread = (random.below(2001) as f32 - 1000.0) / 1000.0;
        if is_norm { 1.0 + 0.1 * spread } else { 0.1 * spread }
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let bytes =
                std::iter::repeat_with(|| weight(shape.len() == 1).to_le_bytes()).take(count).flatten().collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("bytes that fit the shape"))
    });
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("a writable folder");
    folder
}
