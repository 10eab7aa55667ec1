//! Phi-3.5-MoE and Phi-mini-MoE (arXiv 2404.14219): Llama with layer norms and biases, and experts whose router weighs each of
//! its two choices by a softmax of its own.
//!
//! Reference: `modeling_phimoe.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints. LongRoPE's
//! long factors are taken as Phi-3 takes them here.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, Decoder, Embedding, ExpertNames, Experts, Glu, LayerNorm, Linear, Loader, Rope, Router,
        Scoring, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Format, GgufFamily, RopeConfig, gguf::Metadata},
};

/// What a checkpoint says about its model.
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
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention: Attention { window: config.sliding_window, ..attention },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = angles.rotate(&self.q_proj.forward(x, step)?, step)?;
        let k = angles.rotate(&self.k_proj.forward(x, step)?, step)?;
        let v = self.v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// What checkpoints call an expert's layers.
const W1_W3_W2: ExpertNames = ExpertNames { gate: "w1", up: "w3", gate_up: "w13", down: "w2" };

/// The experts that a router chooses.
struct SparseMoe {
    gate: Router,
    experts: Experts,
}

impl SparseMoe {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        let (loader, names) = match loader.format() {
            Format::Gguf => (loader.at("mlp"), ExpertNames::default()),
            Format::Safetensors => (loader.at("block_sparse_moe"), W1_W3_W2),
        };
        let count = config.num_local_experts;
        let router = Router::load(&loader, "gate", hidden_size, count, config.num_experts_per_tok)?;
        let sizes = (count, hidden_size, intermediate_size);
        Ok(Self {
            gate: Router {
                scoring: Scoring::SparseMixer { margin: 2.0 * config.router_jitter_noise as f32 },
                ..router
            },
            experts: Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?,
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.experts.forward(x, &self.gate.forward(x, step)?, step)
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: LayerNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: LayerNorm,
    block_sparse_moe: SparseMoe,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: LayerNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: LayerNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            block_sparse_moe: SparseMoe::load(loader, config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + attended)?;
        let transformed = self.block_sparse_moe.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// The model.
pub struct PhiMoe {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: LayerNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Special tokens of Phi-3.5's mixture swallow the white space behind them; files of others have the same architecture.
fn is_phi3(metadata: &Metadata) -> Result<bool> {
    let name = metadata.string("general.name")?.unwrap_or_default().to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

impl Decoder for PhiMoe {
    const NAME: &'static str = "phimoe";
    const GGUF: &'static [&'static str] = &["phimoe"];
    const CLASSES: &'static [&'static str] = &["PhimoeForCausalLM", "PhiMoEForCausalLM"];

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
        let Sizes { vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        Ok(Self {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: LayerNorm::load(&model, "norm", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
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
