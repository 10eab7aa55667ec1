//! Granite 3 and 4 (IBM), dense and as mixtures of experts: Llama with four multipliers, for embeddings, residuals, scores and
//! logits.
//!
//! Reference: `modeling_granite.py` and `modeling_granitemoe.py` in Hugging Face transformers; layers carry the names that they
//! have in its checkpoints.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, Decoder, Embedding, ExpertNames, Experts, GatedMlp, Glu, Linear, Loader, RmsNorm, Rope,
        Router, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufConfig, GgufFamily, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    pub sizes: Sizes,
    pub embedding_multiplier: f64,
    pub residual_multiplier: f64,
    attention_multiplier: f64,
    pub logits_scaling: f64,
    /// How many experts there are, and how many of them each token has.
    pub experts: Option<(usize, usize)>,
    pub rope: RopeConfig,
}

impl Config {
    pub fn read(config: &Settings) -> Result<Self> {
        let chosen = config.usize_or("num_experts_per_tok", 8)?;
        Ok(Self {
            sizes: Sizes::read(config)?,
            embedding_multiplier: config.f64_or("embedding_multiplier", 1.0)?,
            residual_multiplier: config.f64_or("residual_multiplier", 1.0)?,
            attention_multiplier: config.f64_or("attention_multiplier", 1.0)?,
            logits_scaling: config.f64_or("logits_scaling", 1.0)?,
            experts: config.experts()?.map(|count| (count, chosen)),
            rope: config.rope()?,
        })
    }
}

/// Grouped-query attention with queries and keys that are rotated, where positions count.
pub struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    pub fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention: Attention { scale: config.attention_multiplier as f32, ..attention },
        })
    }

    pub fn forward(&self, x: &Tensor, angles: Option<&Angles>, step: &mut Step<'_>) -> Result<Tensor> {
        let (mut q, mut k) = (self.q_proj.forward(x, step)?, self.k_proj.forward(x, step)?);
        if let Some(angles) = angles {
            (q, k) = (angles.rotate(&q, step)?, angles.rotate(&k, step)?);
        }
        let v = self.v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// The feed-forward block of a layer: dense, or the experts that a router chooses, whose weights add up to one.
pub enum Mlp {
    Dense(GatedMlp),
    Sparse { router: Router, experts: Experts },
}

impl Mlp {
    pub fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        let Some((count, top_k)) = config.experts else {
            return Ok(Self::Dense(GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?));
        };
        let (sizes, glu) = ((count, hidden_size, intermediate_size), Glu::Plain(hidden_act));
        let (router, experts) = if loader.format() == Format::Gguf {
            let (loader, names) = (loader.at("mlp"), ExpertNames::default());
            let router = Router::load(&loader, "gate", hidden_size, count, top_k)?;
            (router, Experts::load(&loader.at("experts"), names, sizes, glu)?)
        } else {
            let loader = loader.at("block_sparse_moe");
            let names = ExpertNames { gate_up: "input_linear", down: "output_linear", ..ExpertNames::default() };
            let router = Router::load(&loader.at("router"), "layer", hidden_size, count, top_k)?;
            (router, Experts::load(&loader, names, sizes, glu)?)
        };
        Ok(Self::Sparse { router: Router { renormalize: true, ..router }, experts })
    }

    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x, step),
            Self::Sparse { router, experts } => experts.forward(x, &router.forward(x, step)?, step),
        }
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    residual_multiplier: f64,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: Mlp::load(loader, config)?,
            residual_multiplier: config.residual_multiplier,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, Some(angles), step)?;
        let x = (x + (attended * self.residual_multiplier)?)?;
        let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + (transformed * self.residual_multiplier)?)?)
    }
}

/// The model.
pub struct Granite {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
    embedding_multiplier: f64,
    logits_scaling: f64,
}

/// Files of hybrids without state space layers (`granite`) give the width of MLPs that these do not have.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    if let Some(width) = config.mlp_width("up_proj").filter(|_| config.architecture() == "granite") {
        config.set("intermediate_size", width);
    }
    Ok(())
}

impl Decoder for Granite {
    const NAME: &'static str = "granite";
    const GGUF: &'static [&'static str] = &["granite", "granitemoe"];
    const CLASSES: &'static [&'static str] = &["GraniteForCausalLM", "GraniteMoeForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { complete, ..GgufFamily::PERMUTED }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        if checkpoint.weights().names().any(|name| name.contains(".mlp.shared_expert.")) {
            let message = "granitemoe files with shared experts are not supported";
            return Err(Error::declined(message).help("use one without them, or a granitehybrid file"));
        }
        Config::read(checkpoint.config())
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
            embedding_multiplier: config.embedding_multiplier,
            logits_scaling: config.logits_scaling,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = (self.embed_tokens.forward(step)? * self.embedding_multiplier)?;
        for layer in &self.layers {
            x = layer.forward(&x, &angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok((self.lm_head.forward(&self.norm.forward(hidden, step)?, step)? / self.logits_scaling)?)
    }
}
