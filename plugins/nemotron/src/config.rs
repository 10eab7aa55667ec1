//! Nemotron-H's configuration: layer kinds are derived from the tensors, sizes come from the configuration.

use pensieve_sdk::{
    Error, Result,
    nn::{GatedNorm, Groups, Mamba2Sizes, Sizes},
    weights::{Checkpoint, Config as Settings, Format},
};

pub struct Config {
    pub sizes: Sizes,
    pub kinds: Vec<Kind>,
    pub mamba: Mamba2Sizes,
    pub moe: Option<MoeSizes>,
}

/// The kind of a layer, and the index of its cache.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Mamba { cache: usize },
    Attention { cache: usize },
    Mlp,
    Moe,
}

/// Sizes of a mixture and settings of its router.
#[derive(Clone, Copy)]
pub struct MoeSizes {
    pub n_routed_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    pub moe_shared_expert_intermediate_size: usize,
    pub routed_scaling_factor: f64,
    pub norm_topk_prob: bool,
    pub groups: Groups,
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let eps = checkpoint.config().f64_or("layer_norm_epsilon", 1e-5)?;
        let kinds = kinds(checkpoint)?;
        let defaults = [
            ("rms_norm_eps", eps.into()),
            ("num_hidden_layers", kinds.len().into()),
            ("head_dim", 128.into()),
            ("max_position_embeddings", 4096.into()),
        ];
        let config = checkpoint.config().with_defaults(defaults)?;
        if config.find_usize("moe_latent_size")?.is_some() {
            return Err(Error::declined("its experts work on a latent, which is not computed"));
        }
        let is_square = config.str_or("mlp_hidden_act", "relu2")? == "relu2";
        if !is_square {
            return Err(Error::declined("'mlp_hidden_act' is not relu2, which is all that is computed"));
        }
        let sizes = Sizes { num_hidden_layers: kinds.len(), ..Sizes::read(&config)? };
        Ok(Self {
            mamba: mamba(checkpoint.format(), &config, sizes.rms_norm_eps)?,
            moe: if kinds.contains(&Kind::Moe) { Some(moe(&config)?) } else { None },
            kinds,
            sizes,
        })
    }
}

/// Derives each layer's kind from its tensors: configurations give it in several ways, GGUF files not at all.
fn kinds(checkpoint: &Checkpoint) -> Result<Vec<Kind>> {
    let mut cache = 0;
    let mut next = || {
        cache += 1;
        cache - 1
    };
    let layers = declared_layers(checkpoint.config())?;
    let kind = |layer: usize| {
        let has = |part: &str| {
            ["backbone", "model"]
                .iter()
                .any(|model| checkpoint.weights().contains(&format!("{model}.layers.{layer}.mixer.{part}.weight")))
        };
        match () {
            () if has("in_proj") => Ok(Kind::Mamba { cache: next() }),
            () if has("q_proj") => Ok(Kind::Attention { cache: next() }),
            () if has("gate") => Ok(Kind::Moe),
            () if has("up_proj") => Ok(Kind::Mlp),
            () => Err(Error::corrupt(format!(
                "`layers.{layer}`, of {layers} layers, has none of the weights that layers of Nemotron-H have"
            ))
            .help("the checkpoint is incomplete: download it again")),
        }
    };
    (0..layers).map(kind).collect()
}

/// Number of layers, declared directly or by a pattern with one letter or name per layer.
fn declared_layers(config: &Settings) -> Result<usize> {
    let value = config.value();
    let named = || value["layers_block_type"].as_array().map(Vec::len);
    let lettered = || value["hybrid_override_pattern"].as_str().map(str::len);
    let declared = config.find_usize("num_hidden_layers")?.or_else(named).or_else(lettered);
    let declared = declared.filter(|layers| (1..=4096).contains(layers));
    declared.ok_or_else(|| Error::corrupt("the configuration does not say how many layers there are"))
}

/// The mixers' sizes, by this class's keys or those that GGUF metadata is mapped to.
fn mamba(format: Format, config: &Settings, eps: f64) -> Result<Mamba2Sizes> {
    // GGUF has no key for the lower bound of `dt`, and llama.cpp does not apply one. All published configurations have this value,
    // so a GGUF file gives the same numbers as transformers.
    let time_step_limit = (config.f64_or("time_step_min", 0.001)?, f64::INFINITY);
    if format == Format::Gguf {
        return Ok(Mamba2Sizes { time_step_limit, ..Mamba2Sizes::read(config, eps)? });
    }
    let either = |key: &str, other: &str, default: usize| -> Result<usize> {
        Ok(config.find_usize(key)?.or(config.find_usize(other)?).unwrap_or(default))
    };
    Ok(Mamba2Sizes {
        hidden_size: config.usize("hidden_size")?,
        heads: either("mamba_num_heads", "mamba_n_heads", 128)?,
        head_dim: either("mamba_head_dim", "mamba_d_head", 64)?,
        groups: either("n_groups", "mamba_n_groups", 8)?,
        state: either("ssm_state_size", "mamba_d_state", 128)?,
        taps: either("conv_kernel", "mamba_d_conv", 4)?,
        eps,
        time_step_limit,
        norm: GatedNorm::AfterGate,
    })
}

fn moe(config: &Settings) -> Result<MoeSizes> {
    let shared = config.find_usize("moe_shared_expert_intermediate_size")?;
    let shared = shared.or(config.find_usize("shared_expert_intermediate_size")?);
    let (count, kept) = (config.usize_or("n_group", 1)?, config.usize_or("topk_group", 1)?);
    Ok(MoeSizes {
        n_routed_experts: config.experts()?.unwrap_or(8),
        num_experts_per_tok: config.usize_or("num_experts_per_tok", 2)?,
        moe_intermediate_size: config.usize_or("moe_intermediate_size", 7688)?,
        moe_shared_expert_intermediate_size: shared.unwrap_or(7688),
        routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
        norm_topk_prob: config.bool_or("norm_topk_prob", true)?,
        groups: Groups { count, kept, compared: 2 },
    })
}
