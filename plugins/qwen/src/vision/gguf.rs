//! The towers in GGUF files.

use pensieve_sdk::{
    Result,
    weights::{GgufConfig, GgufTower, Names},
};

const WINDOWED: Names = &[
    ("v.patch_embd.weight", "visual.patch_embed.proj.weight"),
    ("v.patch_embd.weight.1", "visual.patch_embed.proj.weight.1"),
    ("v.blk.*.ln1", "visual.blocks.*.norm1"),
    ("v.blk.*.ln2", "visual.blocks.*.norm2"),
    ("v.blk.*.attn_q", "visual.blocks.*.attn.q"),
    ("v.blk.*.attn_k", "visual.blocks.*.attn.k"),
    ("v.blk.*.attn_v", "visual.blocks.*.attn.v"),
    ("v.blk.*.attn_out", "visual.blocks.*.attn.proj"),
    ("v.blk.*.ffn_gate", "visual.blocks.*.mlp.gate_proj"),
    ("v.blk.*.ffn_up", "visual.blocks.*.mlp.up_proj"),
    ("v.blk.*.ffn_down", "visual.blocks.*.mlp.down_proj"),
    ("v.post_ln", "visual.merger.ln_q"),
    ("mm.0", "visual.merger.mlp.0"),
    ("mm.2", "visual.merger.mlp.2"),
];

const POSITIONED: Names = &[
    ("v.patch_embd.weight", "visual.patch_embed.proj.weight"),
    ("v.patch_embd.weight.1", "visual.patch_embed.proj.weight.1"),
    ("v.patch_embd", "visual.patch_embed.proj"),
    ("v.position_embd", "visual.pos_embed"),
    ("v.blk.*.ln1", "visual.blocks.*.norm1"),
    ("v.blk.*.ln2", "visual.blocks.*.norm2"),
    ("v.blk.*.attn_qkv", "visual.blocks.*.attn.qkv"),
    ("v.blk.*.attn_out", "visual.blocks.*.attn.proj"),
    ("v.blk.*.ffn_up", "visual.blocks.*.mlp.linear_fc1"),
    ("v.blk.*.ffn_down", "visual.blocks.*.mlp.linear_fc2"),
    ("v.post_ln", "visual.merger.norm"),
    ("mm.0", "visual.merger.linear_fc1"),
    ("mm.2", "visual.merger.linear_fc2"),
    // By the block that a tap follows, not by its own number.
    ("v.deepstack.*.norm", "visual.deepstack_merger_list.*.norm"),
    ("v.deepstack.*.fc1", "visual.deepstack_merger_list.*.linear_fc1"),
    ("v.deepstack.*.fc2", "visual.deepstack_merger_list.*.linear_fc2"),
];

const KEYS: Names = &[("block_count", "depth"), ("attention.head_count", "num_heads"), ("window_size", "window_size")];

/// The tower of Qwen2.5-VL, whose files leave out the limits of the published image processor.
pub static QWEN2_5_VL: GgufTower = GgufTower {
    projectors: &["qwen2.5vl_merger"],
    names: WINDOWED,
    keys: KEYS,
    activation: "silu",
    complete: |config| {
        limits(config, 56 * 56, 28 * 28 * 16_384);
        let every = config.integers("n_wa_pattern")?.and_then(|every| every.as_u64()).unwrap_or_default();
        let full = |block: &u64| every > 0 && (block + 1).is_multiple_of(every);
        let blocks: Vec<u64> = (0..blocks(config)).filter(full).collect();
        config.set("fullatt_block_indexes", blocks);
        Ok(())
    },
};

/// The tower of Qwen3-VL and Qwen3.5, likewise.
pub static QWEN3_VL: GgufTower = GgufTower {
    projectors: &["qwen3vl_merger"],
    names: POSITIONED,
    keys: KEYS,
    activation: "gelu_pytorch_tanh",
    complete: positioned,
};

fn positioned(config: &mut GgufConfig<'_>) -> Result<()> {
    limits(config, 1 << 16, 1 << 24);
    let key = config.key("is_deepstack_layers");
    let tapped = config.metadata().bools(&key)?.unwrap_or_default();
    let taps: Vec<u64> = (0..).zip(tapped).filter_map(|(block, is_tapped)| is_tapped.then_some(block)).collect();
    config.set("deepstack_visual_indexes", taps);
    let positions = config.weights().find("visual.pos_embed.weight").and_then(|table| table.shape.first().copied());
    if let Some(positions) = positions {
        config.set("num_position_embeddings", positions);
    }
    Ok(())
}

/// The number of blocks, up to what anybody could have.
fn blocks(config: &GgufConfig<'_>) -> u64 {
    config.size("depth").unwrap_or_default().min(1 << 10)
}

fn limits(config: &mut GgufConfig<'_>, min_pixels: usize, max_pixels: usize) {
    config.default("min_pixels", min_pixels);
    config.default("max_pixels", max_pixels);
}
