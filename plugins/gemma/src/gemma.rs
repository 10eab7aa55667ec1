//! Gemma 2 (arXiv 2408.00118) and Gemma 3 (2503.19786): norms before and after each block, most layers with a window over the
//! past, embeddings scaled by the root of their width; Gemma 2 bounds scores and logits, Gemma 3 norms queries and keys and
//! rotates its windowed layers by a base of their own.
//!
//! Reference: `modeling_gemma2.py` and `modeling_gemma3.py` in Hugging Face transformers; layers carry the names that they have
//! in its checkpoints. Of checkpoints that also see, the text model is loaded.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, Decoder, Embedding, GatedMlp, Linear, Loader, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
        activation,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig},
};

use crate::gguf;

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    query_pre_attn_scalar: f64,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    /// How far back each layer sees; the layers that see everything have the rotation of the whole context.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    rope_local: RopeConfig,
}

/// Gemma's norms multiply by one more than their weights, which GGUF files hold with that one added.
fn norm(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<RmsNorm> {
    let norm = RmsNorm::load(loader, name, width, eps)?;
    if loader.format() == Format::Gguf { Ok(norm) } else { norm.plus(1.0) }
}

/// Grouped-query attention with rotated queries and keys, within a window in most layers.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// From Gemma 3 on.
    norms: Option<(RmsNorm, RmsNorm)>,
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
        let norm = |name| norm(loader, name, head_dim, rms_norm_eps);
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            norms: if loader.has("q_norm.weight") { Some((norm("q_norm")?, norm("k_norm")?)) } else { None },
            attention: Attention {
                scale: config.query_pre_attn_scalar.powf(-0.5) as f32,
                window: config.windows[layer],
                softcap: config.attn_logit_softcapping.map(|cap| cap as f32),
                ..Attention::new(layer, heads, kv_heads, head_dim)?
            },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let (mut q, mut k) = (self.q_proj.forward(x, step)?, self.k_proj.forward(x, step)?);
        if let Some((q_norm, k_norm)) = &self.norms {
            (q, k) = (q_norm.forward_heads(&q, step)?, k_norm.forward_heads(&k, step)?);
        }
        let (q, k, v) = (angles.rotate(&q, step)?, angles.rotate(&k, step)?, self.v_proj.forward(x, step)?);
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// One decoder layer.
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
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + self.post_attention_layernorm.forward(&attended, step)?)?;
        let transformed = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x, step)?, step)?;
        Ok((x + self.post_feedforward_layernorm.forward(&transformed, step)?)?)
    }
}

/// The model.
pub struct Gemma {
    embed_tokens: Embedding,
    /// The root of the width.
    embed_scale: f64,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    final_logit_softcapping: Option<f64>,
    rope: Rope,
    rope_local: Rope,
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
        let Sizes { vocab_size, hidden_size, num_hidden_layers, head_dim, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        Ok(Self {
            embed_scale: (hidden_size as f64).sqrt(),
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: norm(&model, "norm", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            final_logit_softcapping: config.final_logit_softcapping,
            rope: Rope::new(&config.rope, head_dim, loader.context())?,
            rope_local: Rope::new(&config.rope_local, head_dim, loader.context())?,
            embed_tokens,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let mut x = (self.embed_tokens.forward(step)? * self.embed_scale)?;
        for layer in &self.layers {
            let angles = if layer.self_attn.attention.window.is_some() { &angles_local } else { &angles };
            x = layer.forward(&x, angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let logits = self.lm_head.forward(&self.norm.forward(hidden, step)?, step)?;
        match self.final_logit_softcapping {
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
            None => Ok(logits),
        }
    }
}

/// What the classes of transformers take for what a configuration leaves out, which is most of it in some of Gemma 3's.
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
