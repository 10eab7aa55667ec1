//! Names in the GGUF files of RWKV-7.

use pensieve_sdk::weights::{GgufFamily, Names};

const NAMES: Names = &[
    ("token_embd", "model.embeddings"),
    ("token_embd_norm", "model.layers.0.pre_norm"),
    ("attn_norm", "attn_norm"),
    ("attn_norm_2", "ffn_norm"),
    ("time_mix_lerp_fused", "attn.x_fused"),
    ("time_mix_w0", "attn.w_lora.bias"),
    ("time_mix_w1", "attn.w_lora.lora.0"),
    ("time_mix_w2", "attn.w_lora.lora.2"),
    ("time_mix_a0", "attn.a_lora.bias"),
    ("time_mix_a1", "attn.a_lora.lora.0"),
    ("time_mix_a2", "attn.a_lora.lora.2"),
    ("time_mix_v0", "attn.v_lora.bias"),
    ("time_mix_v1", "attn.v_lora.lora.0"),
    ("time_mix_v2", "attn.v_lora.lora.2"),
    ("time_mix_g1", "attn.g_lora.lora.0"),
    ("time_mix_g2", "attn.g_lora.lora.2"),
    ("time_mix_k_k", "attn.k_k"),
    ("time_mix_k_a", "attn.k_a"),
    ("time_mix_r_k", "attn.r_k"),
    ("time_mix_receptance", "attn.r_proj"),
    ("time_mix_key", "attn.k_proj"),
    ("time_mix_value", "attn.v_proj"),
    ("time_mix_output", "attn.o_proj"),
    ("time_mix_ln", "attn.g_norm"),
    ("channel_mix_lerp_k", "ffn.x_k"),
    ("channel_mix_key", "ffn.key"),
    ("channel_mix_value", "ffn.value"),
];

const KEYS: Names = &[("wkv.head_size", "head_dim"), ("attention.layer_norm_epsilon", "norm_eps")];

pub fn family() -> GgufFamily {
    GgufFamily {
        names: NAMES,
        keys: KEYS,
        // Files give zero for the heads of attention, which does not exist.
        complete: |config| {
            config.retain(|_, value| *value != 0);
            Ok(())
        },
        ..GgufFamily::default()
    }
}
