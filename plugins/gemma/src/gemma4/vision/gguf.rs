//! The tower in GGUF files.

use pensieve_sdk::weights::{GgufTower, Names};

const NAMES: Names = &[
    ("v.patch_embd", "vision_tower.patch_embedder.input_proj"),
    ("v.position_embd.weight", "vision_tower.patch_embedder.position_embedding_table"),
    ("v.std_bias", "vision_tower.std_bias"),
    ("v.std_scale", "vision_tower.std_scale"),
    ("v.blk.*.ln1", "vision_tower.encoder.layers.*.input_layernorm"),
    ("v.blk.*.attn_post_norm", "vision_tower.encoder.layers.*.post_attention_layernorm"),
    ("v.blk.*.ln2", "vision_tower.encoder.layers.*.pre_feedforward_layernorm"),
    ("v.blk.*.ffn_post_norm", "vision_tower.encoder.layers.*.post_feedforward_layernorm"),
    ("v.blk.*.attn_q", "vision_tower.encoder.layers.*.self_attn.q_proj.linear"),
    ("v.blk.*.attn_k", "vision_tower.encoder.layers.*.self_attn.k_proj.linear"),
    ("v.blk.*.attn_v", "vision_tower.encoder.layers.*.self_attn.v_proj.linear"),
    ("v.blk.*.attn_out", "vision_tower.encoder.layers.*.self_attn.o_proj.linear"),
    ("v.blk.*.attn_q_norm", "vision_tower.encoder.layers.*.self_attn.q_norm"),
    ("v.blk.*.attn_k_norm", "vision_tower.encoder.layers.*.self_attn.k_norm"),
    ("v.blk.*.ffn_gate", "vision_tower.encoder.layers.*.mlp.gate_proj.linear"),
    ("v.blk.*.ffn_up", "vision_tower.encoder.layers.*.mlp.up_proj.linear"),
    ("v.blk.*.ffn_down", "vision_tower.encoder.layers.*.mlp.down_proj.linear"),
    ("mm.input_projection", "embed_vision.embedding_projection"),
];

/// Gemma 4's. What depends on tensors alone its files do not state.
pub static TOWER: GgufTower = GgufTower {
    projectors: &["gemma4v"],
    names: NAMES,
    keys: &[("attention.layer_norm_epsilon", "rms_norm_eps"), ("projector.scale_factor", "pooling_kernel_size")],
    activation: "gelu_pytorch_tanh",
    complete: |config| {
        let head_dim = config.size("hidden_size").zip(config.size("num_attention_heads"));
        if let Some(head_dim) = head_dim.and_then(|(width, heads)| width.checked_div(heads)) {
            config.set("head_dim", head_dim);
        }
        let weights = config.weights();
        let table = weights.find("vision_tower.patch_embedder.position_embedding_table");
        let positions = table.and_then(|table| table.shape.get(1).copied());
        let is_clipped = weights.contains("vision_tower.encoder.layers.0.self_attn.q_proj.linear.input_min");
        let is_standard = weights.contains("vision_tower.std_bias");
        if let Some(positions) = positions {
            config.set("position_embedding_size", positions);
        }
        config.set("use_clipped_linears", is_clipped);
        config.set("standardize", is_standard);
        Ok(())
    },
};
