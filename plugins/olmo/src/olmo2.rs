//! OLMo 2 (arXiv 2501.00656) and OLMo 3: Llama with norms after each block instead of before it, and norms over all
//! heads of queries and over all heads of keys; OLMo 3 has sliding windows in most layers.
//!
//! Reference: `modeling_olmo2.py` and `modeling_olmo3.py` in Hugging Face transformers; layers are named as in its
//! checkpoints.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

pub struct Config {
    sizes: Sizes,
    /// Each layer's sliding window in tokens; `None` for full attention.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    rope_local: RopeConfig,
}

/// Grouped-query attention with norms over all heads of queries and over all heads of keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let attention =
            Attention { window: config.windows[layer], ..Attention::new(layer, heads, kv_heads, head_dim)? };
        let norm = |name, heads| RmsNorm::load(loader, name, heads * head_dim, rms_norm_eps);
        let qkv_proj =
            Qkv::load(loader, hidden_size, &attention)?.with_norms(norm("q_norm", heads)?, norm("k_norm", kv_heads)?);
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
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

pub struct Olmo2 {
    model: CausalLm<Block>,
    rope: Rope,
    rope_local: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

impl Decoder for Olmo2 {
    const NAME: &'static str = "olmo2";
    const GGUF: &'static [&'static str] = &["olmo2"];
    const CLASSES: &'static [&'static str] = &["Olmo2ForCausalLM", "Olmo3ForCausalLM"];
    const FEATURES: bool = true;

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
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            rope_local: Rope::new(&config.rope_local, config.sizes.head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        self.model.hidden(step, |layer, x, step| {
            let angles = if layer.self_attn.attention.window.is_some() { &angles_local } else { &angles };
            layer.forward(x, angles, step)
        })
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
