//! Granite 3 and 4 (IBM), dense and as mixtures of experts: Llama with four multipliers, for embeddings, residuals,
//! scores and logits.
//!
//! Reference: `modeling_granite.py` and `modeling_granitemoe.py` in Hugging Face transformers; layers are named as in
//! its checkpoints.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp, Glu, Linear, Loader, Qkv,
        RmsNorm, Rope, Router, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufConfig, GgufFamily, RopeConfig},
};

pub struct Config {
    pub sizes: Sizes,
    pub embedding_multiplier: f64,
    pub residual_multiplier: f64,
    attention_multiplier: f64,
    pub logits_scaling: f64,
    /// Number of experts, and experts per token.
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

/// Grouped-query attention, with RoPE if the model has it.
pub struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    pub fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention = Attention {
            scale: config.attention_multiplier as f32,
            ..Attention::new(layer, heads, kv_heads, head_dim)?
        };
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    pub fn forward(&self, x: &Tensor, angles: Option<&Angles>, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, angles, step)?, step)
    }
}

/// The feed-forward block of a layer: dense, or routed experts with renormalized weights.
pub fn mlp(loader: &Loader<'_>, config: &Config) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    let Some((count, top_k)) = config.experts else {
        let mlp = GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?;
        return Ok(FeedForward::Dense(mlp));
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
    Ok(FeedForward::Sparse(SparseMlp::new(Router { renormalize: true, ..router }, experts)))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
    residual_multiplier: f64,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(loader, config)?,
            residual_multiplier: config.residual_multiplier,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attn_out = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, Some(angles), step)?;
        let x = step.ops().add(x, &(attn_out * self.residual_multiplier)?)?;
        let mlp_out = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        step.ops().add(&x, &(mlp_out * self.residual_multiplier)?)
    }
}

pub struct Granite {
    model: CausalLm<Block>,
    rope: Rope,
    embedding_multiplier: f64,
    logits_scaling: f64,
}

/// Files of hybrids without Mamba-2 layers (`granite`) give the width of an MLP that the model does not have.
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
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { norm_topk_prob: true, complete, ..GgufFamily::PERMUTED }
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
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            embedding_multiplier: config.embedding_multiplier,
            logits_scaling: config.logits_scaling,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let x = (self.model.embed_tokens.forward(step)? * self.embedding_multiplier)?;
        self.model.hidden_from(x, step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok((self.model.logits(hidden, step)? / self.logits_scaling)?)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
