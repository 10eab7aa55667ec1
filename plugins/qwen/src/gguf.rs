//! Names in the GGUF files of Qwen3-Next and Qwen3.5.

use pensieve_sdk::{
    Result,
    weights::{GgufConfig, GgufFamily, Names},
};

use crate::vision::QWEN3_VL;

/// Qwen3-Next keeps Hugging Face's head order in its recurrent layers.
const NEXT: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt", "linear_attn.dt_proj"),
    ("ssm_a", "linear_attn.A"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// Qwen3.5 interleaves value heads over key heads. The names reflect this, as an adapter in Hugging Face's order does
/// not fit.
const QWEN35: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "interleaved_linear_attn.in_proj_qkv"),
    ("attn_gate", "interleaved_linear_attn.in_proj_z"),
    ("ssm_beta", "interleaved_linear_attn.in_proj_b"),
    ("ssm_alpha", "interleaved_linear_attn.in_proj_a"),
    ("ssm_conv1d", "interleaved_linear_attn.conv1d"),
    ("ssm_dt", "interleaved_linear_attn.dt_proj"),
    ("ssm_a", "interleaved_linear_attn.A"),
    ("ssm_norm", "interleaved_linear_attn.norm"),
    ("ssm_out", "interleaved_linear_attn.out_proj"),
];

const KEYS: Names = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
];

pub fn family(architecture: &str) -> GgufFamily {
    let names = if architecture == "qwen3next" { NEXT } else { QWEN35 };
    // `norm_topk_prob` has no effect on dense models.
    let tower = if architecture == "qwen3next" { None } else { Some(&QWEN3_VL) };
    GgufFamily { names, keys: KEYS, norm_topk_prob: true, complete, tower, ..GgufFamily::default() }
}

fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    config.head_width("linear_num_value_heads", "linear_value_head_dim")
}
