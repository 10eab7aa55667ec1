//! Phi-3.5-MoE and Phi-mini-MoE (arXiv 2404.14219): Llama with layer norms and biases, and experts whose router weights
//! each of its two choices by a separate softmax.
//!
//! Reference: `modeling_phimoe.py` in Hugging Face transformers; layers are named as in its checkpoints. LongRoPE's
//! long factors are chosen as in this crate's Phi-3.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, Glu, LayerNorm, Linear, Loader, Qkv, Rope, Router,
        Scoring, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, Format, GgufFamily, RopeConfig, gguf::Metadata},
};

pub struct Config {
    sizes: Sizes,
    num_local_experts: usize,
    num_experts_per_tok: usize,
    router_jitter_noise: f64,
    sliding_window: Option<usize>,
    rope: RopeConfig,
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention =
            Attention { window: config.sliding_window, ..Attention::new(layer, heads, kv_heads, head_dim)? };
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// Names of an expert's layers in safetensors.
const W1_W3_W2: ExpertNames = ExpertNames { gate: "w1", up: "w3", gate_up: "w13", down: "w2" };

/// Routed experts.
fn block_sparse_moe(loader: &Loader<'_>, config: &Config) -> Result<SparseMlp> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    let (loader, names) = match loader.format() {
        Format::Gguf => (loader.at("mlp"), ExpertNames::default()),
        Format::Safetensors => (loader.at("block_sparse_moe"), W1_W3_W2),
    };
    let count = config.num_local_experts;
    let router = Router::load(&loader, "gate", hidden_size, count, config.num_experts_per_tok)?;
    let router = Router { scoring: Scoring::SparseMixer { margin: 2.0 * config.router_jitter_noise as f32 }, ..router };
    let sizes = (count, hidden_size, intermediate_size);
    let experts = Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?;
    Ok(SparseMlp::new(router, experts))
}

struct Block {
    input_layernorm: LayerNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: LayerNorm,
    block_sparse_moe: SparseMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: LayerNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: LayerNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            block_sparse_moe: block_sparse_moe(loader, config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.block_sparse_moe.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct PhiMoe {
    model: CausalLm<Block, LayerNorm>,
    rope: Rope,
}

/// Special tokens of Phi-3.5's mixture strip the white space after them; files of other models share the architecture.
fn is_phi3(metadata: &Metadata) -> Result<bool> {
    let name = metadata.string("general.name")?.unwrap_or_default().to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

impl Decoder for PhiMoe {
    const NAME: &'static str = "phimoe";
    const GGUF: &'static [&'static str] = &["phimoe"];
    const CLASSES: &'static [&'static str] = &["PhimoeForCausalLM", "PhiMoEForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { strips_behind_special: is_phi3, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let sizes = Sizes {
            max_position_embeddings: config.usize_or("max_position_embeddings", 131_072)?,
            num_key_value_heads: config.usize_or("num_key_value_heads", 8)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?,
            ..Sizes::read(config)?
        };
        Ok(Config {
            sizes,
            num_local_experts: config.experts()?.unwrap_or(16),
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 2)?,
            router_jitter_noise: config.f64_or("router_jitter_noise", 0.01)?,
            sliding_window: config.sliding_window()?,
            rope: config.rope()?,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|_| config.sliding_window)
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load_with_norm(
                loader,
                &config.sizes,
                |model| LayerNorm::load(model, "norm", config.sizes.hidden_size, config.sizes.rms_norm_eps),
                |loader, layer| Block::load(loader, config, layer),
            )?,
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
