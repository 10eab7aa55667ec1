//! The tower in GGUF files.

use pensieve_sdk::weights::{GgufTower, Names};

use super::OCR;

const NAMES: Names = &[
    ("v.patch_embd.weight", "visual.patch_embed.proj.weight"),
    ("v.patch_embd.weight.1", "visual.patch_embed.proj.weight.1"),
    ("v.patch_embd", "visual.patch_embed.proj"),
    ("v.norm_embd", "visual.post_conv_layernorm"),
    ("v.position_embd", "visual.embeddings.position_embedding"),
    ("v.blk.*.ln1", "visual.blocks.*.norm1"),
    ("v.blk.*.ln2", "visual.blocks.*.norm2"),
    ("v.blk.*.attn_qkv", "visual.blocks.*.attn.qkv"),
    ("v.blk.*.attn_q_norm", "visual.blocks.*.attn.q_norm"),
    ("v.blk.*.attn_k_norm", "visual.blocks.*.attn.k_norm"),
    ("v.blk.*.attn_out", "visual.blocks.*.attn.proj"),
    ("v.blk.*.ffn_gate", "visual.blocks.*.mlp.gate_proj"),
    ("v.blk.*.ffn_up", "visual.blocks.*.mlp.up_proj"),
    ("v.blk.*.ffn_down", "visual.blocks.*.mlp.down_proj"),
    ("v.post_ln", "visual.post_layernorm"),
    ("mm.patch_merger", "visual.downsample"),
    ("mm.model.fc", "visual.merger.proj"),
    ("mm.post_norm", "visual.merger.post_projection_norm"),
    ("mm.gate", "visual.merger.gate_proj"),
    ("mm.up", "visual.merger.up_proj"),
    ("mm.down", "visual.merger.down_proj"),
];

/// The towers of GLM-4.1V to GLM-4.6V and of GLM-OCR, which only their tensors tell apart. Published files leave out the limits
/// of the image processor.
pub static TOWER: GgufTower = GgufTower {
    projectors: &["glm4v"],
    names: NAMES,
    keys: &[
        ("block_count", "depth"),
        ("attention.head_count", "num_heads"),
        ("attention.layer_norm_epsilon", "rms_norm_eps"),
    ],
    activation: "silu",
    complete: |config| {
        if config.weights().contains("visual.blocks.0.attn.q_norm.weight") {
            config.set("model_type", OCR);
        }
        Ok(())
    },
};
