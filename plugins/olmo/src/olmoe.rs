//! OLMoE (arXiv 2409.02060): Llama with norms over the whole of queries and keys, which are clipped where a checkpoint asks for
//! it, and many small experts.
//!
//! Reference: `modeling_olmoe.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, Decoder, Embedding, ExpertNames, Experts, Glu, Linear, Loader, RmsNorm, Rope, Router, Shape,
        Sizes, Step, Tensor,
    },
    weights::{Checkpoint, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    clip_qkv: Option<f64>,
    num_experts: usize,
    num_experts_per_tok: usize,
    /// The inner width of an expert.
    expert_width: usize,
    norm_topk_prob: bool,
    rope: RopeConfig,
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    clip: Option<f64>,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes {
            hidden_size,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            rms_norm_eps,
            ..
        } = config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            q_norm: RmsNorm::load(loader, "q_norm", heads * head_dim, rms_norm_eps)?,
            k_norm: RmsNorm::load(loader, "k_norm", kv_heads * head_dim, rms_norm_eps)?,
            clip: config.clip_qkv,
            attention,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let clip = |x: Tensor| match self.clip {
            Some(limit) => Ok::<_, Error>(x.clamp(-limit, limit)?),
            None => Ok(x),
        };
        let q = clip(self.q_norm.forward(&self.q_proj.forward(x, step)?, step)?)?;
        let k = clip(self.k_norm.forward(&self.k_proj.forward(x, step)?, step)?)?;
        let v = clip(self.v_proj.forward(x, step)?)?;
        let (q, k) = (angles.rotate(&q, step)?, angles.rotate(&k, step)?);
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// The experts that a router chooses.
struct SparseMoe {
    gate: Router,
    experts: Experts,
}

impl SparseMoe {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, .. } = config.sizes;
        let router = Router::load(loader, "gate", hidden_size, config.num_experts, config.num_experts_per_tok)?;
        let sizes = (config.num_experts, hidden_size, config.expert_width);
        Ok(Self {
            gate: Router { renormalize: config.norm_topk_prob, ..router },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?,
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.experts.forward(x, &self.gate.forward(x, step)?, step)
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: SparseMoe,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: SparseMoe::load(&loader.at("mlp"), config)?,
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
pub struct Olmoe {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for Olmoe {
    const NAME: &'static str = "olmoe";
    const GGUF: &'static [&'static str] = &["olmoe"];
    const CLASSES: &'static [&'static str] = &["OlmoeForCausalLM"];

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
        let Sizes { vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        Ok(Self {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&model, "norm", hidden_size, rms_norm_eps)?,
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
