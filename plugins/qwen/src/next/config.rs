//! Configurations of Qwen3-Next and its successors.

use pensieve_sdk::{
    Result,
    nn::{LayerCache, Recurrence, Sizes},
    weights::{Checkpoint, Config as Settings, RopeConfig},
};

use crate::{
    qwen::{Moe, moe},
    vision,
};

pub struct Config {
    pub sizes: Sizes,
    /// True for each attention layer; the others are delta nets.
    pub attends: Vec<bool>,
    pub linear: LinearSizes,
    pub rope: RopeConfig,
    pub moe: Option<Moe>,
    pub vision: Option<vision::Config>,
}

/// Sizes of the delta nets, `linear_…` in the configuration.
#[derive(Clone, Copy)]
pub struct LinearSizes {
    pub num_key_heads: usize,
    pub num_value_heads: usize,
    pub key_head_dim: usize,
    pub value_head_dim: usize,
    pub conv_kernel_dim: usize,
}

impl LinearSizes {
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    pub fn cache(&self) -> LayerCache {
        let conv = (self.channels(), self.conv_kernel_dim);
        Recurrence::cache(conv, self.num_value_heads, self.key_head_dim, self.value_head_dim)
    }
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let defaults = [
            ("max_position_embeddings", 32_768.into()),
            ("head_dim", 256.into()),
            ("norm_topk_prob", true.into()),
            ("num_experts_per_tok", if checkpoint.architecture() == "Qwen3NextForCausalLM" { 10 } else { 8 }.into()),
            ("moe_intermediate_size", 512.into()),
            ("shared_expert_intermediate_size", 512.into()),
        ];
        let config = checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(&config)?;
        let layers = sizes.num_hidden_layers;
        let rope = config.rope()?;
        let is_given = config.value().pointer("/rope_parameters/partial_rotary_factor").is_some();
        let partial_rotary_factor = if is_given { rope.partial_rotary_factor } else { 0.25 };
        Ok(Self {
            attends: attends(&config, layers)?,
            linear: LinearSizes {
                num_key_heads: config.usize_or("linear_num_key_heads", 16)?,
                num_value_heads: config.usize_or("linear_num_value_heads", 32)?,
                key_head_dim: config.usize_or("linear_key_head_dim", 128)?,
                value_head_dim: config.usize_or("linear_value_head_dim", 128)?,
                conv_kernel_dim: config.usize_or("linear_conv_kernel_dim", 4)?,
            },
            rope: RopeConfig { partial_rotary_factor, ..rope },
            moe: config.experts()?.map(|experts| moe(&config, experts, layers)).transpose()?,
            sizes,
            vision: vision::Config::read(checkpoint)?,
        })
    }
}

/// The attention layers, by `layer_types` or every `full_attention_interval`th.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = config.layer_types("layer_types", layers)? {
        return Ok(types.iter().map(|of| of == "full_attention").collect());
    }
    let interval = config.usize_or("full_attention_interval", 4)?;
    Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect())
}
