//! Configurations of DeepSeek-V2, V3 and V3.2, with the defaults of their classes in transformers.

use pensieve_sdk::{
    Error, Result,
    nn::{Groups, Rope, Scoring, Sizes},
    weights::{Checkpoint, Config as Settings, Format, RopeConfig, RopeStyle},
};

use crate::indexer::IndexSizes;

pub struct Config {
    pub sizes: Sizes,
    pub q_lora_rank: Option<usize>,
    pub kv_lora_rank: usize,
    pub qk_nope_head_dim: usize,
    pub qk_rope_head_dim: usize,
    pub v_head_dim: usize,
    /// Scale of the scores, including YaRN's correction.
    pub scale: f64,
    /// True for each dense layer.
    pub dense: Vec<bool>,
    /// `None` if all layers are dense.
    pub moe: Option<Moe>,
    /// `None` if each token attends to all before it.
    pub index: Option<IndexSizes>,
    pub rope: RopeConfig,
}

/// Sizes of a mixture and settings of its router.
pub struct Moe {
    pub n_routed_experts: usize,
    pub n_shared_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    pub routed_scaling_factor: f64,
    pub norm_topk_prob: bool,
    pub scoring: Scoring,
    pub groups: Option<Groups>,
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let is_gguf = checkpoint.format() == Format::Gguf;
        let is_softmax = is_gguf && checkpoint.config().str_or("scoring_func", "softmax")? == "softmax";
        let is_v2 = is_softmax || checkpoint.architecture() == "DeepseekV2ForCausalLM";
        let (eps, first_dense) = match checkpoint.architecture() {
            "DeepseekV2ForCausalLM" => (1e-6, 0),
            "DeepseekV3ForCausalLM" | "DeepseekV32ForCausalLM" => (1e-6, 3),
            _ => (1e-5, 1),
        };
        let config = checkpoint.config().with_defaults([
            ("tie_word_embeddings", false.into()),
            ("rms_norm_eps", eps.into()),
            ("first_k_dense_replace", first_dense.into()),
        ])?;
        if rope_number(&config, "llama_4_scaling_beta").is_some_and(|beta| beta != 0.0) {
            return Err(Error::declined("'llama_4_scaling_beta' other than 0 (Mistral Large 3) is not computed"));
        }
        let sizes = Sizes::read(&config)?;
        let dense = dense(checkpoint, &config, sizes.num_hidden_layers)?;
        let has_experts = dense.contains(&false);
        let (nope, rotated) = (config.usize("qk_nope_head_dim")?, config.usize("qk_rope_head_dim")?);
        let is_interleaved = config.bool_or("rope_interleave", true)?;
        let style = if is_interleaved { RopeStyle::Interleaved } else { RopeStyle::NeoX };
        Ok(Self {
            q_lora_rank: config.find_usize("q_lora_rank")?,
            kv_lora_rank: config.usize("kv_lora_rank")?,
            qk_nope_head_dim: nope,
            qk_rope_head_dim: rotated,
            v_head_dim: config.usize("v_head_dim")?,
            scale: stretch(&config) / ((nope + rotated) as f64).sqrt(),
            dense,
            index: if checkpoint.architecture() == "DeepseekV32ForCausalLM" { Some(index(&config)?) } else { None },
            moe: if has_experts { Some(moe(&config, is_gguf, is_v2)?) } else { None },
            rope: RopeConfig { style, ..config.rope()? },
            sizes,
        })
    }

    /// The rotation of the indexers' heads: halves of their first part, by the angles of attention.
    pub fn index_rope(&self, context: usize) -> Result<Option<Rope>> {
        let Some(index) = self.index else { return Ok(None) };
        let partial_rotary_factor = self.qk_rope_head_dim as f64 / index.index_head_dim as f64;
        let config = RopeConfig { style: RopeStyle::NeoX, partial_rotary_factor, ..self.rope.clone() };
        Rope::new(&config, index.index_head_dim, context).map(Some)
    }
}

/// Reads the sizes of the indexers, with V3.2's defaults.
fn index(config: &Settings) -> Result<IndexSizes> {
    let sizes = IndexSizes {
        index_topk: config.usize_or("index_topk", 2048)?,
        index_n_heads: config.usize_or("index_n_heads", 64)?,
        index_head_dim: config.usize_or("index_head_dim", 128)?,
    };
    let rotated = config.usize("qk_rope_head_dim")?;
    if sizes.index_topk == 0 || sizes.index_n_heads == 0 || sizes.index_head_dim < rotated {
        return Err(Error::corrupt("the configuration's indexer chooses nothing, or rotates more than its heads have"));
    }
    if config.find_usize("q_lora_rank")?.is_none() {
        return Err(Error::corrupt("the configuration has an indexer, and no 'q_lora_rank' for its queries"));
    }
    Ok(sizes)
}

/// YaRN's correction to the scale of the scores (`mscale_all_dim`).
fn stretch(config: &Settings) -> f64 {
    match (rope_number(config, "mscale_all_dim"), rope_number(config, "factor")) {
        (Some(mscale), Some(factor)) if factor > 1.0 => (0.1 * mscale * factor.ln() + 1.0).powi(2),
        _ => 1.0,
    }
}

/// Reads a number from the RoPE parameters.
fn rope_number(config: &Settings, key: &str) -> Option<f64> {
    let places = ["/rope_parameters/", "/rope_scaling/"];
    places.iter().find_map(|place| config.value().pointer(&format!("{place}{key}"))?.as_f64())
}

/// Which layers are dense: by name, or the first ones; in GGUF files, those without a router.
fn dense(checkpoint: &Checkpoint, config: &Settings, layers: usize) -> Result<Vec<bool>> {
    if checkpoint.format() == Format::Gguf {
        let has_router = |layer| checkpoint.weights().contains(&format!("model.layers.{layer}.mlp.gate.weight"));
        return Ok((0..layers).map(|layer: usize| !has_router(layer)).collect());
    }
    if let Some(types) = config.value()["mlp_layer_types"].as_array().filter(|types| types.len() == layers) {
        return Ok(types.iter().map(|of| of == "dense").collect());
    }
    let first = config.usize("first_k_dense_replace")?;
    Ok((0..layers).map(|layer| layer < first).collect())
}

/// Reads the sizes of a mixture; V2 and GGUF files differ from V3 in their defaults.
fn moe(config: &Settings, is_gguf: bool, is_v2: bool) -> Result<Moe> {
    Ok(Moe {
        n_routed_experts: config.experts()?.unwrap_or(64),
        n_shared_experts: config.usize_or("n_shared_experts", 1)?,
        num_experts_per_tok: config.usize("num_experts_per_tok")?,
        moe_intermediate_size: config.usize("moe_intermediate_size")?,
        routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
        norm_topk_prob: (is_gguf || !is_v2) && config.bool_or("norm_topk_prob", true)?,
        scoring: if is_v2 { Scoring::Softmax } else { Scoring::Sigmoid },
        groups: groups(config, is_gguf, is_v2)?,
    })
}

/// Reads the groups of group-limited routing.
fn groups(config: &Settings, is_gguf: bool, is_v2: bool) -> Result<Option<Groups>> {
    let (count, kept) = (config.usize_or("n_group", 1)?, config.usize_or("topk_group", 1)?);
    // GGUF has no key for `topk_method`; it gives the number of groups only if routing uses groups.
    let is_greedy = is_v2 && config.str_or("topk_method", if is_gguf { "" } else { "greedy" })? == "greedy";
    Ok((!is_greedy && count > 1).then_some(Groups { count, kept, compared: if is_v2 { 1 } else { 2 } }))
}
