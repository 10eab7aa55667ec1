//! GLM-4.5 to GLM-4.7 and their Air models (arXiv 2508.06471): RoPE on half of each head, and after a few dense layers
//! many experts, routed by sigmoid scores with a correction, plus a shared expert.
//!
//! Reference: `modeling_glm4_moe.py` in Hugging Face transformers; layers are named as in its checkpoints. Multi-token
//! prediction layers, which come last, are not loaded. GLM-4.5V sees images.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp, Glu, Groups, Linear, Loader,
        Qkv, RmsNorm, Rope, Router, Scoring, Shape, Sizes, SparseMlp, Step, Tensor,
        vision::{MAX_PIXELS, Processor, Tower},
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

use crate::vision::{self, GlmVision};

pub struct Config {
    sizes: Sizes,
    /// Number of dense layers before those with experts.
    first_k_dense_replace: usize,
    n_routed_experts: usize,
    n_shared_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    routed_scaling_factor: f64,
    norm_topk_prob: bool,
    groups: Groups,
    rope: RopeConfig,
    vision: Option<vision::Config>,
}

/// Grouped-query attention, in some models with norms over the heads of queries and keys.
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
        let norm = |name| RmsNorm::load(loader, name, head_dim, rms_norm_eps);
        let mut qkv_proj = Qkv::load(loader, hidden_size, &attention)?;
        if loader.has("q_norm.weight") {
            qkv_proj = qkv_proj.with_norms(norm("q_norm")?, norm("k_norm")?);
        }
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// The feed-forward block of a layer: dense in the first layers, then routed experts plus a shared one.
fn mlp(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    if layer < config.first_k_dense_replace {
        return Ok(FeedForward::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
    }
    let (count, inner) = (config.n_routed_experts, config.moe_intermediate_size);
    let router = Router::load(loader, "gate", hidden_size, count, config.num_experts_per_tok)?;
    // GGUF files name it `….bias`.
    let correction = ["gate.e_score_correction_bias", "gate.e_score_correction.bias"];
    let router = router.with_correction(loader, &correction, count)?;
    let router = Router {
        scoring: Scoring::Sigmoid,
        renormalize: config.norm_topk_prob,
        scale: config.routed_scaling_factor as f32,
        groups: Some(config.groups),
        ..router
    };
    let (sizes, names) = ((count, hidden_size, inner), ExpertNames::default());
    let experts = Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?;
    let shared = inner * config.n_shared_experts;
    let shared_experts = GatedMlp::load(&loader.at("shared_experts"), hidden_size, shared, hidden_act)?;
    Ok(FeedForward::Sparse(SparseMlp::new(router, experts).with_shared(shared_experts)))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct Glm4Moe {
    model: CausalLm<Block>,
    rope: Rope,
    vision: Option<GlmVision>,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
];

impl Decoder for Glm4Moe {
    const NAME: &'static str = "glm4_moe";
    const GGUF: &'static [&'static str] = &["glm4moe"];
    const CLASSES: &'static [&'static str] = &["Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);
    const OPTIONS: &'static [&'static str] = &[MAX_PIXELS];
    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, norm_topk_prob: true, tower: Some(&vision::TOWER), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let defaults = [("max_position_embeddings", 131_072.into()), ("rms_norm_eps", 1e-5.into())];
        let config = checkpoint.config().with_defaults(defaults)?;
        let (count, kept) = (config.usize_or("n_group", 1)?, config.usize_or("topk_group", 1)?);
        let rope = config.rope()?;
        let is_given = config.value().pointer("/rope_parameters/partial_rotary_factor").is_some();
        let partial_rotary_factor = if is_given { rope.partial_rotary_factor } else { 0.5 };
        let sizes = Sizes::read(&config)?;
        Ok(Config {
            first_k_dense_replace: config.usize_or("first_k_dense_replace", 1)?,
            n_routed_experts: config.experts()?.unwrap_or(128),
            n_shared_experts: config.usize_or("n_shared_experts", 1)?,
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 8)?,
            moe_intermediate_size: config.usize_or("moe_intermediate_size", 1408)?,
            routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
            norm_topk_prob: config.bool_or("norm_topk_prob", true)?,
            groups: Groups { count, kept, compared: 2 },
            rope: RopeConfig { partial_rotary_factor, ..rope },
            vision: vision::Config::read(checkpoint)?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let rope = Rope::new(&config.rope, config.sizes.head_dim, loader.context())?;
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: if let Some(vision) = vision { vision.rope(rope)? } else { rope },
            vision: vision.map(|vision| GlmVision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
        })
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.vision.as_ref().map(|vision| vision as &dyn Tower)
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
