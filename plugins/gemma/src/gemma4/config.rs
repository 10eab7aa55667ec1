//! Gemma 4's configuration, layer by layer, with the defaults of its class in transformers.

use pensieve_sdk::{
    Error, Result,
    nn::{Sizes, activation},
    weights::{Checkpoint, Config as Settings, RopeConfig, RopeScaling, RopeStyle},
};

use super::vision;

pub struct Config {
    pub sizes: Sizes,
    pub layers: Vec<Layer>,
    /// In full-attention layers, keys serve as values.
    pub attention_k_eq_v: bool,
    pub final_logit_softcapping: Option<f64>,
    pub per_layer_input: Option<PerLayerSizes>,
    pub moe: Option<Moe>,
    pub rope: RopeConfig,
    pub rope_local: RopeConfig,
    pub vision: Option<vision::Config>,
}

/// Sizes of one layer.
#[derive(Clone, Copy)]
pub struct Layer {
    pub window: Option<usize>,
    pub head_dim: usize,
    pub num_key_value_heads: usize,
    pub intermediate_size: usize,
    /// The layer whose cache it shares, if it has no cache.
    pub shares: Option<usize>,
}

/// Sizes of the per-layer embeddings: number of tokens, and width in each layer.
#[derive(Clone, Copy)]
pub struct PerLayerSizes {
    pub vocab_size: usize,
    pub width: usize,
}

/// Sizes of a mixture and settings of its router.
#[derive(Clone, Copy)]
pub struct Moe {
    pub num_experts: usize,
    pub top_k_experts: usize,
    pub moe_intermediate_size: usize,
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let config = with_defaults(checkpoint.config())?;
        if config.find_str("use_bidirectional_attention")?.is_some_and(|of| of != "vision") {
            return Err(Error::declined("the model reads texts in both directions"));
        }
        let hidden_act = activation(config.str_or("hidden_activation", "gelu_pytorch_tanh")?)?;
        let sizes = Sizes { hidden_act, ..Sizes::read(&config)? };
        let (rope, rope_local) = ropes(&config)?;
        let has_experts = config.bool_or("enable_moe_block", false)?;
        let moe = config.experts()?.filter(|_| has_experts);
        let moe = moe.map(|num_experts| -> Result<Moe> {
            let chosen = config.find_usize("top_k_experts")?.or(config.find_usize("num_experts_per_tok")?);
            let top_k_experts = chosen.ok_or_else(|| Error::corrupt("the configuration has no 'top_k_experts'"))?;
            Ok(Moe { num_experts, top_k_experts, moe_intermediate_size: config.usize("moe_intermediate_size")? })
        });
        Ok(Self {
            layers: layers(&config, &sizes)?,
            attention_k_eq_v: config.bool_or("attention_k_eq_v", false)?,
            final_logit_softcapping: config.find_f64("final_logit_softcapping")?,
            per_layer_input: per_layer_sizes(checkpoint, &config, &sizes)?,
            moe: moe.transpose()?,
            vision: vision::Config::read(checkpoint)?,
            rope,
            rope_local,
            sizes,
        })
    }
}

/// Adds the defaults of the class in transformers.
fn with_defaults(config: &Settings) -> Result<Settings> {
    let layers = config.usize_or("num_hidden_layers", 30)?;
    let is_full = |layer: usize| (layer + 1).is_multiple_of(6) || layer + 1 == layers;
    let kind = |layer| if is_full(layer) { "full_attention" } else { "sliding_attention" };
    let types: Vec<&str> = (0..layers).map(kind).collect();
    config.with_defaults([
        ("num_hidden_layers", layers.into()),
        ("num_attention_heads", 8.into()),
        ("num_key_value_heads", 4.into()),
        ("head_dim", 256.into()),
        ("rms_norm_eps", 1e-6.into()),
        ("vocab_size", 262_144.into()),
        ("max_position_embeddings", 131_072.into()),
        ("sliding_window", 512.into()),
        ("layer_types", types.into()),
    ])
}

/// RoPE of full-attention and of sliding-window layers, with defaults for configurations without it.
fn ropes(config: &Settings) -> Result<(RopeConfig, RopeConfig)> {
    let given = &config.value()["rope_parameters"];
    if given.get("full_attention").is_some() || given.get("rope_theta").is_some() {
        return config.ropes();
    }
    let of = |theta, partial_rotary_factor, scaling| RopeConfig {
        theta,
        partial_rotary_factor,
        style: RopeStyle::NeoX,
        scaling,
    };
    Ok((of(1e6, 0.25, RopeScaling::Proportional { factor: 1.0 }), of(1e4, 1.0, RopeScaling::None)))
}

/// Reads the sizes of each layer.
fn layers(config: &Settings, sizes: &Sizes) -> Result<Vec<Layer>> {
    let count = sizes.num_hidden_layers;
    let windows = config.sliding_windows(count)?;
    let takes_keys = config.bool_or("attention_k_eq_v", false)?;
    let full_dim = config.usize_or("global_head_dim", 512)?;
    let full_heads = config.find_usize("num_global_key_value_heads")?.filter(|_| takes_keys);
    // Newer tools write one entry per layer, whose number is zero-padded in models of ten or more layers.
    let listed = config.value()["per_layer_config"].as_object();
    let own = |layer: usize, key: &str| -> Option<usize> {
        let mut named = listed?.iter().filter(|(name, _)| name.parse() == Ok(layer));
        let value = named.find_map(|(_, layer)| layer.get(key)?.as_u64())?;
        usize::try_from(value).ok().filter(|value| (1..=4096).contains(value))
    };
    let first_shared = count - config.usize_or("num_kv_shared_layers", 0)?.min(count);
    let is_wide = config.bool_or("use_double_wide_mlp", false)?;
    (0..count)
        .map(|layer| {
            let is_full = windows[layer].is_none() && listed.is_none();
            let head_dim = if is_full { full_dim } else { sizes.head_dim };
            let heads = full_heads.filter(|_| is_full).unwrap_or(sizes.num_key_value_heads);
            let is_shared = layer >= first_shared;
            let alike = |other: &usize| windows[*other].is_some() == windows[layer].is_some();
            let shares = if is_shared { (0..first_shared).rev().find(alike) } else { None };
            if is_shared && shares.is_none() {
                return Err(Error::corrupt(format!("no earlier layer remembers what layer {layer} reads")));
            }
            Ok(Layer {
                window: windows[layer],
                head_dim: own(layer, "head_dim").unwrap_or(head_dim),
                num_key_value_heads: own(layer, "num_key_value_heads").unwrap_or(heads),
                intermediate_size: sizes.intermediate_size * if is_wide && is_shared { 2 } else { 1 },
                shares,
            })
        })
        .collect()
}

/// The sizes of per-layer embeddings, if the checkpoint has them.
fn per_layer_sizes(checkpoint: &Checkpoint, config: &Settings, sizes: &Sizes) -> Result<Option<PerLayerSizes>> {
    if !checkpoint.weights().names().any(|name| name.ends_with("embed_tokens_per_layer.weight")) {
        return Ok(None);
    }
    let vocab_size = config.usize_or("vocab_size_per_layer_input", sizes.vocab_size)?;
    if vocab_size < sizes.vocab_size {
        return Err(Error::declined("some tokens have no vectors of their own in the layers"));
    }
    Ok(Some(PerLayerSizes { vocab_size, width: config.usize_or("hidden_size_per_layer_input", 256)? }))
}
