//! Gemma 2 (arXiv 2408.00118) and Gemma 3 (2503.19786): norms before and after each block, sliding windows in most
//! layers, embeddings scaled by `√hidden_size`. Gemma 2 has softcaps on scores and logits; Gemma 3 has norms of queries
//! and keys, and a separate RoPE base for sliding-window layers.
//!
//! Reference: `modeling_gemma2.py` and `modeling_gemma3.py` in Hugging Face transformers; layers are named as in its
//! checkpoints. From multimodal checkpoints only the text model is loaded.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
        activation,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig},
};

use crate::gguf;

pub struct Config {
    sizes: Sizes,
    query_pre_attn_scalar: f64,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    /// Each layer's sliding window in tokens; `None` for full attention, which has its own RoPE frequencies.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    rope_local: RopeConfig,
}

/// Gemma's norms multiply by `1 + weight`; GGUF files store the sum.
fn norm(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<RmsNorm> {
    let norm = RmsNorm::load(loader, name, width, eps)?;
    if loader.format() == Format::Gguf { Ok(norm) } else { norm.plus(1.0) }
}

/// Grouped-query attention, within a window in most layers; from Gemma 3 on, with norms over the heads of queries and
/// keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let attention = Attention {
            scale: config.query_pre_attn_scalar.powf(-0.5) as f32,
            window: config.windows[layer],
            softcap: config.attn_logit_softcapping.map(|cap| cap as f32),
            ..Attention::new(layer, heads, kv_heads, head_dim)?
        };
        let norm = |name| norm(loader, name, head_dim, rms_norm_eps);
        let mut qkv_proj = Qkv::load(loader, hidden_size, &attention)?;
        if loader.has("q_norm.weight") {
            qkv_proj = qkv_proj.with_norms(norm("q_norm")?, norm("k_norm")?);
        }
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_feedforward_layernorm: RmsNorm,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
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

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
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
}

impl Decoder for Gemma {
    const NAME: &'static str = "gemma";
    const GGUF: &'static [&'static str] = &["gemma2", "gemma3"];
    const CLASSES: &'static [&'static str] =
        &["Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::gemma()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = if checkpoint.format() == Format::Gguf {
            checkpoint.config().clone()
        } else {
            with_defaults(checkpoint.config(), checkpoint.architecture().starts_with("Gemma3"))?
        };
        config.only("use_bidirectional_attention", false)?;
        let hidden_act = activation(config.str_or("hidden_activation", "gelu_pytorch_tanh")?)?;
        let sizes = Sizes { hidden_act, ..Sizes::read(&config)? };
        let (rope, rope_local) = config.ropes()?;
        Ok(Config {
            query_pre_attn_scalar: config.f64_or("query_pre_attn_scalar", 256.0)?,
            attn_logit_softcapping: config.find_f64("attn_logit_softcapping")?,
            final_logit_softcapping: config.find_f64("final_logit_softcapping")?,
            windows: config.sliding_windows(sizes.num_hidden_layers)?,
            rope,
            rope_local,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
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
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let x = (self.model.embed_tokens.forward(step)? * self.embed_scale)?;
        self.model.hidden_from(x, step, |layer, x, step| {
            let angles = if layer.self_attn.attention.window.is_some() { &angles_local } else { &angles };
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
}

/// Adds the defaults of transformers' classes; some Gemma 3 configurations omit nearly everything.
fn with_defaults(config: &Settings, is_gemma3: bool) -> Result<Settings> {
    let layers = config.usize_or("num_hidden_layers", 26)?;
    let pattern = config.usize_or("sliding_window_pattern", if is_gemma3 { 6 } else { 2 })?.max(1);
    let kind = |layer: usize| if (layer + 1).is_multiple_of(pattern) { "full_attention" } else { "sliding_attention" };
    let types: Vec<&str> = (0..layers).map(kind).collect();
    let defaults = [
        ("num_hidden_layers", layers.into()),
        ("num_attention_heads", 8.into()),
        ("num_key_value_heads", 4.into()),
        ("head_dim", 256.into()),
        ("rms_norm_eps", 1e-6.into()),
        ("tie_word_embeddings", true.into()),
        ("sliding_window", 4096.into()),
        ("layer_types", types.into()),
    ];
    let config = config.with_defaults(defaults)?;
    if is_gemma3 {
        let rope = [("rope_theta", 1e6.into()), ("rope_local_base_freq", 1e4.into())];
        let sizes = [("vocab_size", 262_208.into()), ("max_position_embeddings", 131_072.into())];
        return config.with_defaults(rope.into_iter().chain(sizes));
    }
    let caps = [("attn_logit_softcapping", 50.0.into()), ("final_logit_softcapping", 30.0.into())];
    config.with_defaults(caps.into_iter().chain([("max_position_embeddings", 8192.into())]))
}
