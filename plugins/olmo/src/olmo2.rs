//! OLMo 2 (arXiv 2501.00656) and OLMo 3: Llama with norms behind each block instead of before it, and norms over the whole of
//! queries and keys; OLMo 3 has windows in most layers.
//!
//! Reference: `modeling_olmo2.py` and `modeling_olmo3.py` in Hugging Face transformers; layers carry the names that they have in
//! its checkpoints.

use pensieve_sdk::{
    Result,
    nn::{Angles, Attention, Decoder, Embedding, GatedMlp, Linear, Loader, RmsNorm, Rope, Shape, Sizes, Step, Tensor},
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    /// How far back each layer sees.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    rope_local: RopeConfig,
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
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
            attention: Attention { window: config.windows[layer], ..attention },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = angles.rotate(&self.q_norm.forward(&self.q_proj.forward(x, step)?, step)?, step)?;
        let k = angles.rotate(&self.k_norm.forward(&self.k_proj.forward(x, step)?, step)?, step)?;
        let v = self.v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// One decoder layer.
struct Block {
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_feedforward_layernorm: RmsNorm,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let norm = |name| RmsNorm::load(loader, name, hidden_size, rms_norm_eps);
        Ok(Self {
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(x, angles, step)?;
        let x = (x + self.post_attention_layernorm.forward(&attended, step)?)?;
        let transformed = self.mlp.forward(&x, step)?;
        Ok((x + self.post_feedforward_layernorm.forward(&transformed, step)?)?)
    }
}

/// The model.
pub struct Olmo2 {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
    rope_local: Rope,
}

/// Tensors of GGUF files.
const GGUF_NAMES: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

impl Decoder for Olmo2 {
    const NAME: &'static str = "olmo2";
    const GGUF: &'static [&'static str] = &["olmo2"];
    const CLASSES: &'static [&'static str] = &["Olmo2ForCausalLM", "Olmo3ForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let mut config = checkpoint.config().with_defaults([("rms_norm_eps", 1e-5.into())])?;
        let layers = config.usize("num_hidden_layers")?;
        let is_windowed =
            checkpoint.architecture().starts_with("Olmo3") || config.find_usize("sliding_window")?.is_some();
        if is_windowed {
            let kind = |layer| if (layer + 1) % 4 == 0 { "full_attention" } else { "sliding_attention" };
            let types = (0..layers).map(kind).collect::<Vec<_>>();
            config = config.with_defaults([("sliding_window", 4096.into()), ("layer_types", types.into())])?;
        }
        let (rope, rope_local) = config.ropes()?;
        let windows = if is_windowed { config.sliding_windows(layers)? } else { vec![None; layers] };
        Ok(Config { sizes: Sizes::read(&config)?, windows, rope, rope_local })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
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
            rope_local: Rope::new(&config.rope_local, config.sizes.head_dim, loader.context())?,
            embed_tokens,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            let angles = if layer.self_attn.attention.window.is_some() { &angles_local } else { &angles };
            x = layer.forward(&x, angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}
