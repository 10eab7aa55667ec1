//! Phi-3 (arXiv 2404.14219), Phi-3.5, Phi-4 (2412.08905) and Phi-4-mini (2503.01743).
//!
//! Reference: `modeling_phi3.py` in Hugging Face transformers. LongRoPE's long factors (2402.13753) are taken where the model
//! is loaded for more than the original context, whatever the length of a text; transformers goes by the text, and so
//! forgets what its cache means when a text crosses that length.

use pensieve_sdk::{
    Result,
    nn::{Angles, Attention, Decoder, Embedding, GatedMlp, Linear, Loader, RmsNorm, Rope, Shape, Sizes, Step, Tensor},
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    sliding_window: Option<usize>,
    rope: RopeConfig,
}

/// Grouped-query attention with rotated queries and keys, within a window where the model has one.
struct SelfAttention {
    qkv_proj: [Linear; 3],
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let parts = [("q_proj", heads * head_dim), ("k_proj", kv_heads * head_dim), ("v_proj", kv_heads * head_dim)];
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            qkv_proj: loader.stacked("qkv_proj", hidden_size, parts)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention: Attention { window: config.sliding_window, ..attention },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q_proj, k_proj, v_proj] = &self.qkv_proj;
        let q = angles.rotate(&q_proj.forward(x, step)?, step)?;
        let k = angles.rotate(&k_proj.forward(x, step)?, step)?;
        let v = v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// One decoder layer.
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
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + attended)?;
        let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// The model.
pub struct Phi3 {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Tensors of GGUF files.
const GGUF_NAMES: Names = &[("ffn_up", "mlp.gate_up_proj")];

impl Decoder for Phi3 {
    const NAME: &'static str = "phi3";
    const GGUF: &'static [&'static str] = &["phi3"];
    const CLASSES: &'static [&'static str] = &["Phi3ForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        // Special tokens swallow the white space behind them.
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
