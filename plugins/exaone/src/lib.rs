//! EXAONE 4 (LG, arXiv 2507.11407): norms after each block instead of before, and norms of each head's queries and
//! keys. In models with sliding windows, full-attention layers have no RoPE.
//!
//! Reference: `modeling_exaone4.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Paged, Qkv, RmsNorm, Rope, Shape, Sizes, Step,
        Tensor,
    },
    weights::{Checkpoint, GgufConfig, GgufFamily, Names, RopeConfig},
};

export!(Plugin::new("exaone", "EXAONE 4").architecture(Paged::<Exaone4>::architecture()));

struct Config {
    sizes: Sizes,
    /// Each layer's sliding window in tokens; `None` for full attention.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
}

/// Grouped-query attention with normalized queries and keys; RoPE in sliding-window layers, or in all if there are
/// none.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    is_rotated: bool,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let window = config.windows[layer];
        let attention = Attention { window, ..Attention::new(layer, heads, kv_heads, head_dim)? };
        let norm = |name| RmsNorm::load(loader, name, head_dim, rms_norm_eps);
        let qkv_proj = Qkv::load(loader, hidden_size, &attention)?.with_norms(norm("q_norm")?, norm("k_norm")?);
        Ok(Self {
            qkv_proj,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            is_rotated: window.is_some() || config.windows.iter().all(Option::is_none),
            attention,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = Some(angles).filter(|_| self.is_rotated);
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, angles, step)?, step)
    }
}

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
        let attn_out = self.self_attn.forward(x, angles, step)?;
        let x = self.post_attention_layernorm.add_to(x, &attn_out, step)?;
        let mlp_out = self.mlp.forward(&x, step)?;
        self.post_feedforward_layernorm.add_to(&x, &mlp_out, step)
    }
}

struct Exaone4 {
    model: CausalLm<Block>,
    rope: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names =
    &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")];

/// Models with sliding windows have them in three layers out of four.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    if config.get("sliding_window").is_some() { config.windows(4) } else { Ok(()) }
}

impl Decoder for Exaone4 {
    const NAME: &'static str = "exaone4";
    const GGUF: &'static [&'static str] = &["exaone4"];
    const CLASSES: &'static [&'static str] = &["Exaone4ForCausalLM"];
    const FEATURES: bool = true;

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
