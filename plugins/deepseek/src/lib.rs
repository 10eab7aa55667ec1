//! DeepSeek-V2 (arXiv 2405.04434) and V3 (2412.19437), and GLM-4.7-Flash: attention over a latent that is remembered once for
//! all heads and serves as keys and values, and mixtures with experts that all tokens share.
//!
//! Reference: `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py` and `modeling_glm4_moe_lite.py` in Hugging Face
//! transformers; layers carry the names that they have in its checkpoints. What turns a latent into keys and values is
//! absorbed into queries and outputs (2405.04434, section 2.1.2), so adapters on `kv_b_proj` are refused.

mod gguf;

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Angles, Attention, AttentionCache, Decoder, Embedding, ExpertNames, Experts, GatedMlp, Glu, Groups, KvShape,
        LayerCache, Linear, Loader, Paged, RmsNorm, Rope, Router, Scoring, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig, RopeStyle},
};

export!(Plugin::new("deepseek", "DeepSeek-V2 and V3, GLM-4.7-Flash").architecture(Paged::<DeepSeek>::architecture()));

/// The norms of latents have an epsilon that no configuration speaks of.
const LATENT_EPS: f64 = 1e-6;

/// What a checkpoint says about its model.
struct Config {
    sizes: Sizes,
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    /// What scores are multiplied by.
    scale: f64,
    /// Layers that are dense.
    dense: Vec<bool>,
    /// None where all layers are dense.
    moe: Option<Moe>,
    rope: RopeConfig,
}

/// What it says about experts.
struct Moe {
    n_routed_experts: usize,
    n_shared_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    routed_scaling_factor: f64,
    norm_topk_prob: bool,
    scoring: Scoring,
    groups: Option<Groups>,
}

/// Where queries come from.
enum Queries {
    Direct(Linear),
    Latent { q_a_proj: Linear, q_a_layernorm: RmsNorm, q_b_proj: Linear },
}

/// Attention over latents.
struct LatentAttention {
    queries: Queries,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: RmsNorm,
    /// Turns a head's query into one for latents: `[heads, qk_nope_head_dim, kv_lora_rank]`.
    absorb_k: Tensor,
    /// Turns what a head makes of latents into values: `[heads, kv_lora_rank, v_head_dim]`.
    absorb_v: Tensor,
    o_proj: Linear,
    attention: Attention,
    nope: usize,
    rotated: usize,
}

impl LatentAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size: width, num_attention_heads: heads, .. } = config.sizes;
        let (rank, nope, rotated) = (config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim);
        let (value, of_queries) = (config.v_head_dim, heads * (nope + rotated));
        let queries = match config.q_lora_rank {
            Some(rank) => Queries::Latent {
                q_a_proj: loader.linear("q_a_proj", width, rank)?,
                q_a_layernorm: RmsNorm::load(loader, "q_a_layernorm", rank, LATENT_EPS)?,
                q_b_proj: loader.linear("q_b_proj", rank, of_queries)?,
            },
            None => Queries::Direct(loader.linear("q_proj", width, of_queries)?),
        };
        // Files in GGUF have the parts by themselves, that of keys the other way round.
        let (absorb_k, absorb_v) = if loader.has("k_b_proj.weight") {
            let keys = loader.dense("k_b_proj.weight", &[heads, rank, nope])?;
            (keys.transpose(1, 2)?, loader.dense("v_b_proj.weight", &[heads, value, rank])?)
        } else {
            let both = loader.dense("kv_b_proj.weight", &[heads * (nope + value), rank])?;
            let both = both.reshape((heads, nope + value, rank))?;
            (both.narrow(1, 0, nope)?, both.narrow(1, nope, value)?)
        };
        Ok(Self {
            queries,
            kv_a_proj_with_mqa: loader.linear("kv_a_proj_with_mqa", width, rank + rotated)?,
            kv_a_layernorm: RmsNorm::load(loader, "kv_a_layernorm", rank, LATENT_EPS)?,
            absorb_k: absorb_k.contiguous()?,
            absorb_v: absorb_v.transpose(1, 2)?.contiguous()?,
            o_proj: loader.linear("o_proj", heads * value, width)?,
            attention: Attention {
                value_dim: rank,
                scale: config.scale as f32,
                ..Attention::new(layer, heads, 1, rank + rotated)?
            },
            nope,
            rotated,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = match &self.queries {
            Queries::Direct(q_proj) => q_proj.forward(x, step)?,
            Queries::Latent { q_a_proj, q_a_layernorm, q_b_proj } => {
                q_b_proj.forward(&q_a_layernorm.forward(&q_a_proj.forward(x, step)?, step)?, step)?
            }
        };
        let (tokens, heads, rank) = (x.dim(0)?, self.attention.heads, self.attention.value_dim);
        let q = q.reshape((tokens, heads, self.nope + self.rotated))?;
        let rotated = q.narrow(2, self.nope, self.rotated)?.contiguous()?.reshape((tokens, heads * self.rotated))?;
        let rotated = angles.rotate(&rotated, step)?.reshape((tokens, heads, self.rotated))?;
        let q = q.narrow(2, 0, self.nope)?.transpose(0, 1)?.contiguous()?.matmul(&self.absorb_k)?;
        let q = Tensor::cat(&[&q.transpose(0, 1)?, &rotated], 2)?.reshape((tokens, heads * (rank + self.rotated)))?;

        let latent = self.kv_a_proj_with_mqa.forward(x, step)?;
        let [latent, rotated] = step.split(&latent, [rank, self.rotated])?;
        let (latent, rotated) = (self.kv_a_layernorm.forward(&latent, step)?, angles.rotate(&rotated, step)?);
        let k = Tensor::cat(&[&latent, &rotated], 1)?.contiguous()?;

        let out = self.attention.forward_latent(&q, &k, step)?.reshape((tokens, heads, rank))?;
        let out = out.transpose(0, 1)?.contiguous()?.matmul(&self.absorb_v)?;
        let out = out.transpose(0, 1)?.contiguous()?.flatten_from(1)?;
        self.o_proj.forward(&out, step)
    }
}

/// The experts that a router chooses, and those that all tokens share.
struct SparseMlp {
    gate: Router,
    experts: Experts,
    shared_experts: GatedMlp,
}

/// The feed-forward block of a layer.
enum Mlp {
    Dense(GatedMlp),
    Sparse(SparseMlp),
}

impl Mlp {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        let Some(moe) = config.moe.as_ref().filter(|_| !config.dense[layer]) else {
            return Ok(Self::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
        };
        let (count, inner) = (moe.n_routed_experts, moe.moe_intermediate_size);
        let names = ["gate.e_score_correction_bias", "gate.e_score_correction.bias"];
        let router = Router::load(loader, "gate", hidden_size, count, moe.num_experts_per_tok)?;
        let router = router.with_correction(loader, &names, count)?;
        let (sizes, shared) = ((count, hidden_size, inner), inner * moe.n_shared_experts);
        Ok(Self::Sparse(SparseMlp {
            gate: Router {
                scoring: moe.scoring,
                renormalize: moe.norm_topk_prob,
                scale: moe.routed_scaling_factor as f32,
                groups: moe.groups,
                ..router
            },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?,
            shared_experts: GatedMlp::load(&loader.at("shared_experts"), hidden_size, shared, hidden_act)?,
        }))
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x, step),
            Self::Sparse(SparseMlp { gate, experts, shared_experts }) => {
                let routed = experts.forward(x, &gate.forward(x, step)?, step)?;
                Ok((routed + shared_experts.forward(x, step)?)?)
            }
        }
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: LatentAttention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: LatentAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: Mlp::load(&loader.at("mlp"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + attended)?;
        let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// The model.
struct DeepSeek {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for DeepSeek {
    const NAME: &'static str = "deepseek";
    const GGUF: &'static [&'static str] = &["deepseek2"];
    const CLASSES: &'static [&'static str] =
        &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::family()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let is_gguf = checkpoint.format() == Format::Gguf;
        let is_softmax = is_gguf && checkpoint.config().str_or("scoring_func", "softmax")? == "softmax";
        let is_v2 = is_softmax || checkpoint.architecture() == "DeepseekV2ForCausalLM";
        let (eps, first_dense) = match checkpoint.architecture() {
            "DeepseekV2ForCausalLM" => (1e-6, 0),
            "DeepseekV3ForCausalLM" => (1e-6, 3),
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
        Ok(Config {
            q_lora_rank: config.find_usize("q_lora_rank")?,
            kv_lora_rank: config.usize("kv_lora_rank")?,
            qk_nope_head_dim: nope,
            qk_rope_head_dim: rotated,
            v_head_dim: config.usize("v_head_dim")?,
            scale: stretch(&config) / ((nope + rotated) as f64).sqrt(),
            dense,
            moe: if has_experts { Some(moe(&config, is_gguf, is_v2)?) } else { None },
            rope: RopeConfig { style, ..config.rope()? },
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        let cache =
            AttentionCache { value_dim: 0, ..AttentionCache::new(1, config.kv_lora_rank + config.qk_rope_head_dim) };
        let heads = config.sizes.num_attention_heads;
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(heads * (config.kv_lora_rank + config.qk_rope_head_dim)),
            kv: KvShape::new(vec![LayerCache::Attention(cache); config.sizes.num_hidden_layers]),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let model = loader.at("model");
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        Ok(Self {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&model, "norm", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            rope: Rope::new(&config.rope, config.qk_rope_head_dim, loader.context())?,
            embed_tokens,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            x = layer.forward(&x, &angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}

/// What YaRN multiplies scores by.
fn stretch(config: &Settings) -> f64 {
    match (rope_number(config, "mscale_all_dim"), rope_number(config, "factor")) {
        (Some(mscale), Some(factor)) if factor > 1.0 => (0.1 * mscale * factor.ln() + 1.0).powi(2),
        _ => 1.0,
    }
}

/// A number among the parameters of RoPE.
fn rope_number(config: &Settings, key: &str) -> Option<f64> {
    let places = ["/rope_parameters/", "/rope_scaling/"];
    places.iter().find_map(|place| config.value().pointer(&format!("{place}{key}"))?.as_f64())
}

/// Which layers are dense: by name, or the first ones; of files in GGUF those without a router.
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

/// What the configuration of a model with experts says about them.
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

/// The groups that experts are chosen by.
fn groups(config: &Settings, is_gguf: bool, is_v2: bool) -> Result<Option<Groups>> {
    let (count, kept) = (config.usize_or("n_group", 1)?, config.usize_or("topk_group", 1)?);
    // Files in GGUF have no name for the method, and number groups where they count.
    let is_greedy = is_v2 && config.str_or("topk_method", if is_gguf { "" } else { "greedy" })? == "greedy";
    Ok((!is_greedy && count > 1).then_some(Groups { count, kept, compared: if is_v2 { 1 } else { 2 } }))
}
