//! Settings that Gemma's GGUF files omit: the pattern of sliding-window layers, and settings that depend on it.

use pensieve_sdk::{
    Result,
    weights::{GgufConfig, GgufFamily, GgufTower, Names},
};

use crate::gemma4::TOWER as GEMMA4_TOWER;

/// RoPE base in sliding-window layers.
const LOCAL_BASE: f64 = 10_000.0;

/// Norms of Gemma 2 and 3.
const NAMES: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const GEMMA4_NAMES: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("layer_output_scale", "layer_scalar"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_up_exps", "experts.gate_up_proj"),
    ("ffn_gate_exps", "experts.gate_proj"),
    ("ffn_up_exps", "experts.up_proj"),
    ("ffn_down_exps", "experts.down_proj"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
];

/// The eyes of Gemma 3. Its files leave out the number of an image's rows where it is the usual one.
pub static TOWER: GgufTower = GgufTower {
    projectors: &["gemma3"],
    names: GgufTower::SIGLIP,
    keys: &[],
    activation: "gelu_pytorch_tanh",
    complete: |config| {
        let (image, patch) = (config.size("image_size").unwrap_or(896), config.size("patch_size").unwrap_or(14));
        let kernel = config.size("scale_factor").unwrap_or(4);
        let side = image.checked_div(patch).and_then(|side| side.checked_div(kernel)).unwrap_or_default();
        config.set("mm_tokens_per_image", side.saturating_mul(side));
        Ok(())
    },
};

/// Gemma 2 and 3.
pub fn gemma() -> GgufFamily {
    GgufFamily { names: NAMES, activation: "gelu_pytorch_tanh", complete, ..GgufFamily::default() }
}

pub fn gemma4() -> GgufFamily {
    let tower = Some(&GEMMA4_TOWER);
    let (names, activation) = (GEMMA4_NAMES, "gelu_pytorch_tanh");
    GgufFamily { names, activation, complete: complete4, tower, ..GgufFamily::default() }
}

fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    let is_gemma3 = config.architecture() != "gemma2";
    if !is_gemma3 {
        config.default("sliding_window", 4096);
        config.windows(2)?;
    } else if config.get("sliding_window").is_some() {
        config.windows(6)?;
        let base = config.number("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE);
        config.set("rope_local_base_freq", base);
    }
    // The 27B models scale scores by hidden size over heads, the others by head size.
    let is_27b = config.size("num_hidden_layers") == Some(if is_gemma3 { 62 } else { 46 });
    let per_head = || config.size("hidden_size")?.checked_div(config.size("num_attention_heads")?);
    let head_dim = config.size("head_dim").filter(|_| !is_27b);
    if let Some(scalar) = head_dim.or_else(per_head) {
        config.set("query_pre_attn_scalar", scalar);
    }
    Ok(())
}

/// Full-attention layers have different head sizes from sliding-window layers.
fn complete4(config: &mut GgufConfig<'_>) -> Result<()> {
    config.windows(6)?;
    let types = config.get("layer_types").and_then(|types| types.as_array());
    let windowed: Vec<bool> = types.into_iter().flatten().map(|of| of == "sliding_attention").collect();
    if let Some(heads) = config.get("num_key_value_heads").and_then(|heads| heads.as_array()).cloned() {
        for (name, kind) in [("num_key_value_heads", true), ("num_global_key_value_heads", false)] {
            if let Some((heads, _)) = heads.iter().zip(&windowed).find(|(_, windowed)| **windowed == kind) {
                config.set(name, heads.clone());
            }
        }
    }
    let widths = config.get("intermediate_size").and_then(|widths| widths.as_array());
    if let Some(first) = widths.and_then(|widths| widths.first()).cloned() {
        config.set("intermediate_size", first);
        config.set("use_double_wide_mlp", true);
    }
    if let Some(narrow) = config.integers("attention.key_length_swa")? {
        let wide = config.remove("head_dim");
        config.set("head_dim", narrow);
        if let Some(wide) = wide {
            config.set("global_head_dim", wide);
        }
    }
    let full = windowed.iter().position(|windowed| !windowed);
    let takes_keys = full.is_some_and(|layer| {
        let has = |part: &str| config.weights().contains(&format!("model.layers.{layer}.self_attn.{part}.weight"));
        has("k_proj") && !has("v_proj")
    });
    config.set("attention_k_eq_v", takes_keys);
    let has_experts = config.get("num_local_experts").is_some();
    config.set("enable_moe_block", has_experts);
    let base = config.number("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE);
    config.set("rope_local_base_freq", base);
    Ok(())
}
