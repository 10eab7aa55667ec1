//! Gemma 2 (arXiv 2408.00118) and Gemma 3 (2503.19786): norms before and after each block, sliding windows in most
//! layers, embeddings scaled by `√hidden_size`. Gemma 2 has softcaps on scores and logits; Gemma 3 has norms of queries
//! and keys, and a separate RoPE base for sliding-window layers.
//!
//! Reference: `modeling_gemma2.py` and `modeling_gemma3.py` in Hugging Face transformers; layers are named as in its
//! checkpoints.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
        TextAttention, activation,
        vision::{Processor, Tower},
    },
    weights::{Checkpoint, Format, GgufFamily, RopeConfig},
};

use crate::{
    defaults, gguf,
    vision::{self, Gemma3Vision},
};

pub struct Config {
    pub sizes: Sizes,
    query_pre_attn_scalar: f64,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    /// Each layer's sliding window in tokens; `None` for full attention, which has its own RoPE frequencies.
    pub windows: Vec<Option<usize>>,
    /// In encoders, how far each layer's tokens see to either side.
    pub reach: Option<Vec<Option<usize>>>,
    pub rope: RopeConfig,
    pub rope_local: RopeConfig,
    vision: Option<vision::Config>,
}

/// Gemma's norms multiply by `1 + weight`; GGUF files store the sum.
pub fn norm(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<RmsNorm> {
    let norm = RmsNorm::load(loader, name, width, eps)?;
    if loader.format() == Format::Gguf { Ok(norm) } else { norm.plus(1.0) }
}

/// Attention to the past, or in both directions.
enum Direction {
    Past(Attention),
    Both(TextAttention),
}

/// Grouped-query attention, within a window in most layers; from Gemma 3 on, with norms over the heads of queries and
/// keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Direction,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let attention = Attention {
            scale: config.query_pre_attn_scalar.powf(-0.5) as f32,
            window: config.windows[layer],
            softcap: config.attn_logit_softcapping.map(|cap| cap as f32),
            whole_items: config.vision.is_some(),
            ..Attention::new(layer, heads, kv_heads, head_dim)?
        };
        let norm = |name| norm(loader, name, head_dim, rms_norm_eps);
        let mut qkv_proj = Qkv::load(loader, hidden_size, &attention)?;
        if loader.has("q_norm.weight") {
            qkv_proj = qkv_proj.with_norms(norm("q_norm")?, norm("k_norm")?);
        }
        let attention = match &config.reach {
            None => Direction::Past(attention),
            Some(reach) => Direction::Both(TextAttention {
                scale: attention.scale,
                reach: reach[layer],
                ..TextAttention::new(heads, kv_heads, head_dim)?
            }),
        };
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        let attn_out = match &self.attention {
            Direction::Past(attention) => attention.forward(&q, &k, &v, Some(angles), step)?,
            Direction::Both(attention) => attention.forward([&q, &k, &v], Some(angles), step)?,
        };
        self.o_proj.forward(&attn_out, step)
    }
}

pub struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_feedforward_layernorm: RmsNorm,
}

impl Block {
    /// The layer sees a window, and rotates by its own frequencies.
    pub fn is_local(&self) -> bool {
        match &self.self_attn.attention {
            Direction::Past(attention) => attention.window.is_some(),
            Direction::Both(attention) => attention.reach.is_some(),
        }
    }

    pub fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let norm = |name| norm(loader, name, hidden_size, rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
        })
    }

    pub fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attn_out = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = self.post_attention_layernorm.add_to(x, &attn_out, step)?;
        let mlp_out = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x, step)?, step)?;
        self.post_feedforward_layernorm.add_to(&x, &mlp_out, step)
    }
}

pub struct Gemma {
    model: CausalLm<Block>,
    rope: Rope,
    rope_local: Rope,
    /// `√hidden_size`, the scale of embeddings.
    embed_scale: f64,
    final_logit_softcapping: Option<f64>,
    vision: Option<Gemma3Vision>,
}

impl Decoder for Gemma {
    const NAME: &'static str = "gemma";
    const GGUF: &'static [&'static str] = &["gemma2", "gemma3"];
    const CLASSES: &'static [&'static str] =
        &["Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);
    const OPTIONS: &'static [&'static str] = &[vision::PAN_AND_SCAN];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { tower: Some(&gguf::TOWER), ..gguf::gemma() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        checkpoint.config().only("use_bidirectional_attention", false)?;
        read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        Ok(Self {
            model: CausalLm::load_with_norm(
                loader,
                &config.sizes,
                |model| norm(model, "norm", config.sizes.hidden_size, config.sizes.rms_norm_eps),
                |loader, layer| Block::load(loader, config, layer),
            )?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            rope_local: Rope::new(&config.rope_local, config.sizes.head_dim, loader.context())?,
            embed_scale: (config.sizes.hidden_size as f64).sqrt(),
            final_logit_softcapping: config.final_logit_softcapping,
            vision: vision.map(|vision| Gemma3Vision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
        })
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.vision.as_ref().map(|vision| vision as &dyn Tower)
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let x = step.with_items((self.model.embed_tokens.forward(step)? * self.embed_scale)?)?;
        self.model.hidden_from(x, step, |layer, x, step| {
            let angles = if layer.is_local() { &angles_local } else { &angles };
            layer.forward(x, angles, step)
        })
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let logits = self.model.logits(hidden, step)?;
        match self.final_logit_softcapping {
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
            None => Ok(logits),
        }
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}

/// Reads the configuration, whichever direction the model attends in.
pub fn read(checkpoint: &Checkpoint) -> Result<Config> {
    let config = if checkpoint.format() == Format::Gguf {
        checkpoint.config().clone()
    } else {
        defaults::of_classes(checkpoint.config(), checkpoint.architecture().starts_with("Gemma3"))?
    };
    let hidden_act = activation(config.str_or("hidden_activation", "gelu_pytorch_tanh")?)?;
    let sizes = Sizes { hidden_act, ..Sizes::read(&config)? };
    let (rope, rope_local) = config.ropes()?;
    Ok(Config {
        query_pre_attn_scalar: config.f64_or("query_pre_attn_scalar", 256.0)?,
        attn_logit_softcapping: config.find_f64("attn_logit_softcapping")?,
        final_logit_softcapping: config.find_f64("final_logit_softcapping")?,
        windows: config.sliding_windows(sizes.num_hidden_layers)?,
        reach: None,
        vision: vision::Config::read(checkpoint)?,
        rope,
        rope_local,
        sizes,
    })
}
