//! LFM2's configuration, under the key names of its several generations.

use pensieve_sdk::{
    Result,
    weights::{Checkpoint, Config as Settings, RopeConfig},
};

use crate::vision;

pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub max_position_embeddings: usize,
    pub norm_eps: f64,
    pub conv_taps: usize,
    /// True for each attention layer; the others are convolutions.
    pub attends: Vec<bool>,
    pub tie_word_embeddings: bool,
    pub rope: RopeConfig,
    pub moe: Option<Moe>,
    pub vision: Option<vision::Config>,
}

/// Sizes of a mixture and settings of its router.
#[derive(Clone, Copy)]
pub struct Moe {
    pub num_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    /// Number of dense layers before those with experts.
    pub num_dense_layers: usize,
    pub routed_scaling_factor: f64,
    pub norm_topk_prob: bool,
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let config = checkpoint.config().with_defaults([("rope_theta", 1e6.into())])?;
        let (hidden_size, num_attention_heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
        let layers = config.usize("num_hidden_layers")?;
        let tied = config.bool_or("tie_word_embeddings", true)?;
        Ok(Self {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: intermediate_size(&config)?,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 128_000)?,
            norm_eps: config.f64_or("norm_eps", 1e-5)?,
            conv_taps: config.usize_or("conv_L_cache", 3)?,
            attends: attends(&config, layers)?,
            tie_word_embeddings: config.bool_or("tie_embedding", tied)?,
            rope: config.rope()?,
            moe: config.experts()?.map(|experts| moe(&config, experts)).transpose()?,
            vision: vision::Config::read(checkpoint)?,
        })
    }

    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }
}

fn moe(config: &Settings, num_experts: usize) -> Result<Moe> {
    Ok(Moe {
        num_experts,
        num_experts_per_tok: config.usize_or("num_experts_per_tok", 4)?,
        moe_intermediate_size: config.usize_or("moe_intermediate_size", 1792)?,
        num_dense_layers: config
            .find_usize("num_dense_layers")?
            .or(config.find_usize("first_k_dense_replace")?)
            .unwrap_or(2),
        routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
        norm_topk_prob: config.bool_or("norm_topk_prob", true)?,
    })
}

/// The inner width of feed-forward blocks. Except for mixtures, configurations give it before it is reduced to two
/// thirds and rounded up.
fn intermediate_size(config: &Settings) -> Result<usize> {
    if config.experts()?.is_some() {
        return config.usize_or("intermediate_size", 7168);
    }
    let given = config.usize_or("intermediate_size", 12_288)?;
    let given = config.usize_or("block_ff_dim", given)?;
    if !config.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let multiplier = config.f64_or("block_ffn_dim_multiplier", 1.0)?;
    let multiple = config.usize_or("block_multiple_of", 256)?.max(1);
    let adjusted = (multiplier * (2 * given / 3) as f64) as usize;
    Ok(adjusted.div_ceil(multiple) * multiple)
}

/// The attention layers, by `layer_types`, by index, or all.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = config.layer_types("layer_types", layers)? {
        return Ok(types.iter().map(|of| of != "conv").collect());
    }
    if config.value()["full_attn_idxs"].is_array() {
        let attending = config.usizes("full_attn_idxs")?;
        return Ok((0..layers).map(|layer| attending.contains(&layer)).collect());
    }
    Ok(vec![true; layers])
}
