//! Names in DeepSeek's GGUF files, and settings that they omit: the sizes of the latent attention.

use pensieve_sdk::{
    Result,
    weights::{GgufConfig, GgufFamily, GgufRope, Names},
};

const NAMES: Names = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
    // Kimi Linear's delta nets.
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_a", "self_attn.A"),
    ("ssm_dt", "self_attn.dt_proj"),
    ("ssm_norm", "self_attn.o_norm"),
];

const KIMI_KEYS: Names = &[("ssm.conv_kernel", "linear_conv_kernel_dim"), ("kda.head_dim", "linear_head_dim")];

pub fn kimi() -> GgufFamily {
    GgufFamily { names: NAMES, norm_topk_prob: true, complete: complete_kimi, ..GgufFamily::default() }
}

/// Delta nets have as many heads as attention.
fn complete_kimi(config: &mut GgufConfig<'_>) -> Result<()> {
    config.attends_where_heads_are("linear_attention");
    config.rename(KIMI_KEYS)?;
    if let Some(heads) = config.size("num_attention_heads") {
        config.set("linear_num_heads", heads);
    }
    complete(config)
}

pub fn family() -> GgufFamily {
    GgufFamily { names: NAMES, rope: GgufRope::Interleaved, complete, ..GgufFamily::default() }
}

/// Files give the sizes of the latent, in addition to those of the keys and values computed from it; older ones give
/// only the latter.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    let size = |config: &GgufConfig<'_>, key: &str| -> Result<Option<u64>> {
        Ok(config.integers(key)?.and_then(|size| size.as_u64()))
    };
    for (key, name) in [("attention.q_lora_rank", "q_lora_rank"), ("attention.kv_lora_rank", "kv_lora_rank")] {
        if let Some(rank) = size(config, key)?.filter(|rank| *rank > 0) {
            config.set(name, rank);
        }
    }
    let either = |config: &GgufConfig<'_>, key: &str| -> Result<Option<u64>> {
        Ok(size(config, &format!("{key}_mla"))?.or(size(config, key)?))
    };
    if let (Some(key), Some(rotated)) = (either(config, "attention.key_length")?, size(config, "rope.dimension_count")?)
    {
        config.set("qk_nope_head_dim", key.saturating_sub(rotated));
        config.set("qk_rope_head_dim", rotated);
    }
    if let Some(value) = either(config, "attention.value_length")? {
        config.set("v_head_dim", value);
    }
    config.remove("head_dim");
    // Only models with sigmoid scores have a correction, so its tensor identifies them.
    let is_corrected = config.weights().names().any(|name| name.contains("e_score_correction"));
    let is_sigmoid = size(config, "expert_gating_func")?.map_or(is_corrected, |function| function == 2);
    config.set("scoring_func", if is_sigmoid { "sigmoid" } else { "softmax" });
    let multiplier = config.number("rope.scaling.yarn_log_multiplier")?.filter(|multiplier| *multiplier != 0.0);
    if let Some(rope) = config.rope() {
        // The rotated part of a head has its own projection, all of whose values are rotated.
        rope.remove("partial_rotary_factor");
        // Files store a tenth of `mscale_all_dim`; `mscale`, which GGUF omits, equals it in every published model.
        if let Some(all) = multiplier.map(|multiplier| 10.0 * multiplier) {
            rope.extend(["mscale", "mscale_all_dim"].map(|name| (name.to_owned(), all.into())));
        }
    }
    Ok(())
}
