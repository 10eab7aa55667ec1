//! Phi-3 (arXiv 2404.14219), Phi-3.5, Phi-4 (2412.08905) and Phi-4-mini (2503.01743).
//!
//! Reference: `modeling_phi3.py` in Hugging Face transformers. LongRoPE's long factors (2402.13753) are used if the
//! model is loaded for more than the original context, whatever the length of a text; transformers chooses by the
//! text's length, so its cached keys become invalid when a text crosses the original context.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

pub struct Config {
    sizes: Sizes,
    sliding_window: Option<usize>,
    rope: RopeConfig,
}

/// Grouped-query attention, within a window if the model has one.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention =
            Attention { window: config.sliding_window, ..Attention::new(layer, heads, kv_heads, head_dim)? };
        Ok(Self {
            qkv_proj: Qkv::load_stacked(loader, "qkv_proj", hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct Phi3 {
    model: CausalLm<Block>,
    rope: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[("ffn_up", "mlp.gate_up_proj")];

impl Decoder for Phi3 {
    const NAME: &'static str = "phi3";
    const GGUF: &'static [&'static str] = &["phi3"];
    const CLASSES: &'static [&'static str] = &["Phi3ForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        // Special tokens strip the white space after them.
        GgufFamily { names: GGUF_NAMES, strips_behind_special: |_| Ok(true), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let sizes = Sizes {
            max_position_embeddings: config.usize_or("max_position_embeddings", 4096)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?,
            ..Sizes::read(config)?
        };
        Ok(Config { sizes, sliding_window: config.sliding_window()?, rope: config.rope()? })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|_| config.sliding_window)
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
