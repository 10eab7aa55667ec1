//! EXAONE 4 (LG, arXiv 2507.11407): norms behind each block instead of before, and over each head's queries and keys. Where most layers
//! have windows, the others see everything and know no positions.
//!
//! Reference: `modeling_exaone4.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, Decoder, Embedding, GatedMlp, Linear, Loader, Paged, RmsNorm, Rope, Shape, Sizes, Step,
        Tensor,
    },
    weights::{Checkpoint, GgufConfig, GgufFamily, Names, RopeConfig},
};

export!(Plugin::new("exaone", "EXAONE 4").architecture(Paged::<Exaone4>::architecture()));

/// What a checkpoint says about its model.
struct Config {
    sizes: Sizes,
    /// How far back each layer sees.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
}

/// Grouped-query attention with normed queries and keys, rotated where there is a window, or a window nowhere.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    rotates: bool,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let window = config.windows[layer];
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            q_norm: RmsNorm::load(loader, "q_norm", head_dim, rms_norm_eps)?,
            k_norm: RmsNorm::load(loader, "k_norm", head_dim, rms_norm_eps)?,
            rotates: window.is_some() || config.windows.iter().all(Option::is_none),
            attention: Attention { window, ..Attention::new(layer, heads, kv_heads, head_dim)? },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x, step)?;
        let (q, k) = (self.q_norm.forward_heads(&q, step)?, self.k_norm.forward_heads(&k, step)?);
        let attended = match self.rotates {
            true => self.attention.forward_rotated(&q, &k, &v, angles, step)?,
            false => self.attention.forward(&q, &k, &v, step)?,
        };
        self.o_proj.forward(&attended, step)
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
        Ok((&x + self.post_feedforward_layernorm.forward(&transformed, step)?)?)
    }
}

/// The model.
struct Exaone4 {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Tensors of GGUF files.
const GGUF_NAMES: Names =
    &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")];

/// Models that have a window have it in three layers of four.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    if config.get("sliding_window").is_some() { config.windows(4) } else { Ok(()) }
}

impl Decoder for Exaone4 {
    const NAME: &'static str = "exaone4";
    const GGUF: &'static [&'static str] = &["exaone4"];
    const CLASSES: &'static [&'static str] = &["Exaone4ForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, complete, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config().with_defaults([("rms_norm_eps", 1e-5.into())])?;
        let sizes = Sizes::read(&config)?;
        let layers = sizes.num_hidden_layers;
        let pattern = config.usize_or("sliding_window_pattern", 4).unwrap_or(4).max(1);
        let kind = |layer: usize| match (layer + 1).is_multiple_of(pattern) {
            true => "full_attention",
            false => "sliding_attention",
        };
        let types: Vec<&str> = (0..layers).map(kind).collect();
        let config = config.with_defaults([("layer_types", types.into())])?;
        Ok(Config { windows: config.sliding_windows(layers)?, rope: config.rope()?, sizes })
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
