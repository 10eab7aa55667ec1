//! Configurations of Kimi Linear, as published, as transformers writes them, and from GGUF files.

use pensieve_sdk::{
    Result,
    nn::{Groups, LayerCache, Recurrence, Scoring, Sizes},
    weights::{Checkpoint, Config as Settings, Format},
};

use crate::config;

pub struct Config {
    /// Latent attention and feed-forward blocks.
    pub deepseek: config::Config,
    /// True for each attention layer; the others are delta nets.
    pub attends: Vec<bool>,
    pub linear: LinearSizes,
}

/// Sizes of the delta nets.
#[derive(Clone, Copy)]
pub struct LinearSizes {
    pub num_heads: usize,
    pub head_dim: usize,
    pub conv_kernel_dim: usize,
}

impl LinearSizes {
    /// Values of all heads.
    pub fn inner(&self) -> usize {
        self.num_heads * self.head_dim
    }

    pub fn cache(&self) -> LayerCache {
        Recurrence::cache((3 * self.inner(), self.conv_kernel_dim), self.num_heads, self.head_dim, self.head_dim)
    }
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let context = checkpoint.config().usize_or("model_max_length", 1 << 20)?;
        let defaults = [
            ("tie_word_embeddings", false.into()),
            ("rms_norm_eps", 1e-5.into()),
            ("max_position_embeddings", context.into()),
        ];
        let config = &checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(config)?;
        let layers = sizes.num_hidden_layers;
        let (nope, rotated) = (config.usize("qk_nope_head_dim")?, config.usize("qk_rope_head_dim")?);
        let dense = dense(checkpoint, config, layers)?;
        let linear = |name: &str, nested: &str, default: usize| -> Result<usize> {
            let nested = config.value()["linear_attn_config"][nested].as_u64();
            match nested.and_then(|size| usize::try_from(size).ok()) {
                Some(size) => Ok(size),
                None => config.usize_or(name, default),
            }
        };
        Ok(Self {
            attends: attends(config, layers)?,
            linear: LinearSizes {
                num_heads: linear("linear_num_heads", "num_heads", 32)?,
                head_dim: linear("linear_head_dim", "head_dim", 128)?,
                conv_kernel_dim: linear("linear_conv_kernel_dim", "short_conv_kernel_size", 4)?,
            },
            deepseek: config::Config {
                q_lora_rank: config.find_usize("q_lora_rank")?,
                kv_lora_rank: config.usize("kv_lora_rank")?,
                qk_nope_head_dim: nope,
                qk_rope_head_dim: rotated,
                v_head_dim: config.usize("v_head_dim")?,
                scale: 1.0 / ((nope + rotated) as f64).sqrt(),
                moe: if dense.contains(&false) { Some(moe(config)?) } else { None },
                dense,
                index: None,
                rope: config.rope()?,
                sizes,
            },
        })
    }
}

/// The attention layers: by their numbers, counted from one, by `layer_types`, or every fourth.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    if let Some(numbers) =
        config.value().pointer("/linear_attn_config/full_attn_layers").and_then(|list| list.as_array())
    {
        return Ok((1..=layers as u64)
            .map(|layer| numbers.iter().any(|number| number.as_u64() == Some(layer)))
            .collect());
    }
    if let Some(types) = config.layer_types("layer_types", layers)? {
        return Ok(types.iter().map(|of| of == "full_attention").collect());
    }
    Ok((0..layers).map(|layer| layer > 0 && layer.is_multiple_of(4)).collect())
}

/// The layers without experts: by `mlp_layer_types`, or the first ones; in GGUF files, those without a router.
fn dense(checkpoint: &Checkpoint, config: &Settings, layers: usize) -> Result<Vec<bool>> {
    if checkpoint.format() == Format::Gguf {
        let has_router = |layer| checkpoint.weights().contains(&format!("model.layers.{layer}.mlp.gate.weight"));
        return Ok((0..layers).map(|layer: usize| !has_router(layer)).collect());
    }
    if let Some(types) = config.layer_types("mlp_layer_types", layers)? {
        return Ok(types.iter().map(|of| of == "dense").collect());
    }
    let first = config.usize_or("first_k_dense_replace", 1)?;
    Ok((0..layers).map(|layer| layer < first).collect())
}

/// Published configurations and GGUF files have different names for the same settings.
fn moe(config: &Settings) -> Result<config::Moe> {
    let size = |names: [&str; 2], default: usize| -> Result<usize> {
        let [first, second] = names;
        Ok(config.find_usize(first)?.or(config.find_usize(second)?).unwrap_or(default))
    };
    let (count, kept) = (size(["num_expert_group", "n_group"], 1)?, config.usize_or("topk_group", 1)?);
    let renormalizes = config.bool_or("moe_renormalize", config.bool_or("norm_topk_prob", true)?)?;
    Ok(config::Moe {
        n_routed_experts: config.experts()?.unwrap_or(256),
        n_shared_experts: size(["num_shared_experts", "n_shared_experts"], 1)?,
        num_experts_per_tok: size(["num_experts_per_token", "num_experts_per_tok"], 8)?,
        moe_intermediate_size: config.usize_or("moe_intermediate_size", 1024)?,
        routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
        norm_topk_prob: renormalizes,
        scoring: Scoring::Sigmoid,
        groups: (count > 1).then_some(Groups { count, kept, compared: 2 }),
    })
}
