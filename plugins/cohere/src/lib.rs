//! Command R7B and Command A (Cohere2): attention and feed-forward block in parallel after one norm; sliding-window
//! layers have interleaved RoPE, and every fourth layer has full attention without position encoding.
//!
//! Reference: `modeling_cohere2.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, LayerNorm, Linear, Loader, Paged, Qkv, Rope, Shape, Sizes,
        Step, Tensor,
    },
    weights::{Checkpoint, Format, GgufFamily, GgufRope, RopeConfig, RopeStyle},
};

export!(Plugin::new("cohere", "Command R7B and Command A").architecture(Paged::<Cohere2>::architecture()));

struct Config {
    sizes: Sizes,
    layer_norm_eps: f64,
    logit_scale: f64,
    /// Each layer's sliding window in tokens; `None` for full attention.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
}

/// Grouped-query attention, with RoPE in sliding-window layers.
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
            Attention { window: config.windows[layer], ..Attention::new(layer, heads, kv_heads, head_dim)? };
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = Some(angles).filter(|_| self.attention.window.is_some());
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, angles, step)?, step)
    }
}

struct Block {
    input_layernorm: LayerNorm,
    self_attn: SelfAttention,
    mlp: GatedMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        Ok(Self {
            input_layernorm: LayerNorm::load(loader, "input_layernorm", hidden_size, config.layer_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let x = self.self_attn.add_to(x, &normed, angles, step)?;
        self.mlp.add_to(&x, &normed, step)
    }
}

struct Cohere2 {
    model: CausalLm<Block, LayerNorm>,
    rope: Rope,
    logit_scale: f64,
}

impl Decoder for Cohere2 {
    const NAME: &'static str = "cohere2";
    const GGUF: &'static [&'static str] = &["cohere2"];
    const CLASSES: &'static [&'static str] = &["Cohere2ForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { rope: GgufRope::Interleaved, complete: |config| config.windows(4), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let layers = config.usize("num_hidden_layers")?;
        let pattern = config.usize_or("sliding_window_pattern", 4)?.max(1);
        let kind = |layer: usize| match (layer + 1).is_multiple_of(pattern) {
            true => "full_attention",
            false => "sliding_attention",
        };
        let types: Vec<&str> = (0..layers).map(kind).collect();
        let config = config.with_defaults([
            ("layer_types", types.into()),
            ("sliding_window", 4096.into()),
            ("max_position_embeddings", 8192.into()),
        ])?;
        // GGUF has a single key for logit scales; Granite divides by it and Command multiplies.
        let scale = if checkpoint.format() == Format::Gguf { "logits_scaling" } else { "logit_scale" };
        Ok(Config {
            layer_norm_eps: config.f64_or("layer_norm_eps", 1e-5)?,
            logit_scale: config.f64_or(scale, 0.0625)?,
            windows: config.sliding_windows(layers)?,
            rope: RopeConfig { style: RopeStyle::Interleaved, ..config.rope()? },
            sizes: Sizes::read(&config)?,
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
                |model| LayerNorm::load(model, "norm", config.sizes.hidden_size, config.layer_norm_eps),
                |loader, layer| Block::load(loader, config, layer),
            )?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            logit_scale: config.logit_scale,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok((self.model.logits(hidden, step)? * self.logit_scale)?)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
