//! The tower in GGUF files, whose queries and keys have the halves of their heads interleaved, as those of a Llama.

use pensieve_sdk::weights::{GgufTower, Names};

const NAMES: Names = &[
    ("v.patch_embd", "vision_tower.patch_conv"),
    ("v.pre_ln", "vision_tower.ln_pre"),
    ("v.blk.*.ln1", "vision_tower.transformer.layers.*.attention_norm"),
    ("v.blk.*.ln2", "vision_tower.transformer.layers.*.ffn_norm"),
    ("v.blk.*.attn_q", "vision_tower.transformer.layers.*.attention.q_proj"),
    ("v.blk.*.attn_k", "vision_tower.transformer.layers.*.attention.k_proj"),
    ("v.blk.*.attn_v", "vision_tower.transformer.layers.*.attention.v_proj"),
    ("v.blk.*.attn_out", "vision_tower.transformer.layers.*.attention.o_proj"),
    ("v.blk.*.ffn_gate", "vision_tower.transformer.layers.*.feed_forward.gate_proj"),
    ("v.blk.*.ffn_up", "vision_tower.transformer.layers.*.feed_forward.up_proj"),
    ("v.blk.*.ffn_down", "vision_tower.transformer.layers.*.feed_forward.down_proj"),
    ("mm.input_norm", "multi_modal_projector.norm"),
    ("mm.patch_merger", "multi_modal_projector.patch_merger.merging_layer"),
    ("mm.1", "multi_modal_projector.linear_1"),
    ("mm.2", "multi_modal_projector.linear_2"),
];

/// Pixtral's and Mistral 3's.
pub static TOWER: GgufTower = GgufTower {
    projectors: &["pixtral"],
    names: NAMES,
    keys: &[],
    activation: "gelu",
    complete: |config| {
        config.set("model_type", "pixtral");
        if config.metadata().bool("clip.use_silu")? == Some(true) {
            config.set("hidden_act", "silu");
        }
        Ok(())
    },
};
