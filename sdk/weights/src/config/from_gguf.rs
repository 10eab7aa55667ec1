//! Converts GGUF metadata to Hugging Face's terms.
//!
//! Most of it is renaming, driven by a table. What GGUF stores as a tensor (RoPE divisors) or not at all (whether
//! embeddings are tied, which layers have biases) is derived from the tensors in the file. What it leaves to the
//! reader's knowledge of an architecture comes from the plugin, as a [`GgufFamily`].

use serde_json::{Map, Value, json};

use crate::gguf_config::GgufConfig;
use crate::{GgufFamily, GgufRope, Result, Weights, gguf::Metadata};

const INTEGERS: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("vocab_size", "vocab_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.sliding_window", "sliding_window"),
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("shortconv.l_cache", "conv_L_cache"),
    ("full_attention_interval", "full_attention_interval"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attention.clamp_kqv", "clip_qkv"),
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("expert_weights_scale", "routed_scaling_factor"),
];

/// Translates a file's metadata to the keys of `config.json`.
pub(super) fn translate(
    architecture: &str,
    family: &GgufFamily,
    metadata: &Metadata,
    weights: &Weights,
) -> Result<Map<String, Value>> {
    let mut config = GgufConfig::new(architecture, metadata, weights);
    config.set("architectures", json!([architecture]));
    config.set("model_type", architecture);
    for (key, name) in INTEGERS {
        if let Some(value) = config.integers(key)? {
            config.set(name, value);
        }
    }
    for (key, name) in NUMBERS {
        if let Some(number) = config.number(key)? {
            config.set(name, number);
        }
    }
    // Keys of rotary embeddings become `rope_parameters` below.
    config.keep_unknown(|key| {
        key.starts_with("rope.")
            || [INTEGERS, NUMBERS, family.keys].iter().any(|table| table.iter().any(|(known, _)| *known == key))
    });
    config.rename(family.keys)?;
    config.leave_out_prediction_layers()?;
    if let Some(heads) = config.get("num_attention_heads").cloned() {
        config.default("num_key_value_heads", heads);
    }
    if let Some(size) = config.vocabulary() {
        config.default("vocab_size", size);
    }
    config.set("hidden_act", family.activation);
    config.set("tie_word_embeddings", !weights.contains("lm_head.weight"));
    config.set("attention_bias", config.has_bias("self_attn."));
    config.set("mlp_bias", config.has_bias("mlp."));
    for name in ["bos_token_id", "eos_token_id"] {
        if let Some(id) = metadata.u32(&format!("tokenizer.ggml.{name}"))? {
            config.set(name, id);
        }
    }
    let rope = config.read_rope(family.rope != GgufRope::Halves)?;
    config.set("rope_parameters", rope);
    (family.complete)(&mut config)?;
    if config.get("num_local_experts").is_some() {
        let given = metadata.bool(&config.key("expert_weights_norm"))?;
        config.set("norm_topk_prob", given.unwrap_or(family.norm_topk_prob));
    }
    Ok(config.into_object())
}

#[cfg(test)]
mod tests {
    use super::{INTEGERS, NUMBERS};
    use crate::names::check_guide;

    #[test]
    fn the_guide_lists_the_usual_keys() {
        check_guide(&[INTEGERS, NUMBERS]);
    }
}
