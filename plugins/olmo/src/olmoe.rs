//! OLMoE (arXiv 2409.02060): Llama with norms over all heads of queries and over all heads of keys, clipping of
//! queries, keys and values in some checkpoints (`clip_qkv`), and many small experts.
//!
//! Reference: `modeling_olmoe.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, Glu, Linear, Loader, Qkv, RmsNorm, Rope, Router,
        Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, RopeConfig},
};

pub struct Config {
    sizes: Sizes,
    clip_qkv: Option<f64>,
    num_experts: usize,
    num_experts_per_tok: usize,
    /// Inner width of an expert.
    expert_width: usize,
    norm_topk_prob: bool,
    rope: RopeConfig,
}

/// Grouped-query attention with norms over all heads together, and `clip_qkv` in some checkpoints.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        let norm = |name, heads| RmsNorm::load(loader, name, heads * head_dim, rms_norm_eps);
        let qkv_proj = Qkv::load(loader, hidden_size, &attention)?
            .with_norms(norm("q_norm", heads)?, norm("k_norm", kv_heads)?)
            .clipped(config.clip_qkv);
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

fn mlp(loader: &Loader<'_>, config: &Config) -> Result<SparseMlp> {
    let Sizes { hidden_size, hidden_act, .. } = config.sizes;
    let router = Router::load(loader, "gate", hidden_size, config.num_experts, config.num_experts_per_tok)?;
    let router = Router { renormalize: config.norm_topk_prob, ..router };
    let sizes = (config.num_experts, hidden_size, config.expert_width);
    let experts = Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?;
    Ok(SparseMlp::new(router, experts))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: SparseMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct Olmoe {
    model: CausalLm<Block>,
    rope: Rope,
}

impl Decoder for Olmoe {
    const NAME: &'static str = "olmoe";
    const GGUF: &'static [&'static str] = &["olmoe"];
    const CLASSES: &'static [&'static str] = &["OlmoeForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let sizes = Sizes { rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?, ..Sizes::read(config)? };
        Ok(Config {
            clip_qkv: config.find_f64("clip_qkv")?,
            num_experts: config.experts()?.unwrap_or(64),
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 8)?,
            expert_width: config.usize_or("moe_intermediate_size", sizes.intermediate_size)?,
            norm_topk_prob: config.bool_or("norm_topk_prob", false)?,
            rope: config.rope()?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
