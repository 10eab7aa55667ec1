//! Mixtral 8x7B and 8x22B (arXiv 2401.04088): Mistral with experts as feed-forward blocks, two of eight per token.
//!
//! Reference: `modeling_mixtral.py` in Hugging Face transformers; layers are named as in its checkpoints. GGUF files
//! call it `llama`, as they do Mistral.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, Glu, Linear, Loader, Qkv, RmsNorm, Rope, Router,
        Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, Format, GgufFamily, RopeConfig},
};

pub struct Config {
    sizes: Sizes,
    num_local_experts: usize,
    num_experts_per_tok: usize,
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

/// Routed experts, whose weights are renormalized.
fn block_sparse_moe(loader: &Loader<'_>, config: &Config) -> Result<SparseMlp> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    let (loader, names) = match loader.format() {
        Format::Gguf => (loader.at("mlp"), ExpertNames::default()),
        Format::Safetensors => (loader.at("block_sparse_moe"), W1_W3_W2),
    };
    let count = config.num_local_experts;
    let router = Router::load(&loader, "gate", hidden_size, count, config.num_experts_per_tok)?;
    let router = Router { renormalize: true, ..router };
    let sizes = (count, hidden_size, intermediate_size);
    let experts = Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?;
    Ok(SparseMlp::new(router, experts))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    block_sparse_moe: SparseMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            block_sparse_moe: block_sparse_moe(loader, config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.block_sparse_moe.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct Mixtral {
    model: CausalLm<Block>,
    rope: Rope,
}

impl Decoder for Mixtral {
    const NAME: &'static str = "mixtral";
    const GGUF: &'static [&'static str] = &["llama"];
    const CLASSES: &'static [&'static str] = &["MixtralForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { norm_topk_prob: true, ..GgufFamily::PERMUTED }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let none = || Error::declined("it has no experts, as Mixtral does");
        let sizes = Sizes {
            max_position_embeddings: config.usize_or("max_position_embeddings", 131_072)?,
            num_key_value_heads: config.usize_or("num_key_value_heads", 8)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?,
            ..Sizes::read(config)?
        };
        Ok(Config {
            sizes,
            num_local_experts: config.experts()?.ok_or_else(none)?,
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 2)?,
            sliding_window: config.sliding_window()?,
            rope: config.rope()?,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|_| config.sliding_window)
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
