//! Phi-3 (arXiv 2404.14219), Phi-3.5, Phi-4 (2412.08905) and Phi-4-mini (2503.01743).
//!
//! Reference: `modeling_phi3.py` in Hugging Face transformers. LongRoPE's long factors (2402.13753) are taken where the model
//! is loaded for more than the original context, whatever the length of a text; transformers goes by the text, and so
//! forgets what its cache means when a text crosses that length.

use pensieve_sdk::{
    Result,
    nn::{
        Activation, Angles, Attention, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, RmsNorm, Rope, Shape,
        Step, Tensor, activation,
    },
    weights::{Checkpoint, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    hidden_act: Activation,
    tie_word_embeddings: bool,
    sliding_window: Option<usize>,
    rope: RopeConfig,
}

/// The model.
pub struct Phi3 {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for Phi3 {
    const NAME: &'static str = "phi3";
    const GGUF: &'static [&'static str] = &["phi3"];
    const CLASSES: &'static [&'static str] = &["Phi3ForCausalLM"];

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let hidden_size = config.usize("hidden_size")?;
        let num_attention_heads = config.usize("num_attention_heads")?;
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: config.usize("intermediate_size")?,
            num_hidden_layers: config.usize("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", num_attention_heads)?,
            head_dim: config.usize_or("head_dim", hidden_size / num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 4096)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?,
            hidden_act: activation(config.str_or("hidden_act", "silu")?)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            sliding_window: config.sliding_window()?,
            rope: config.rope()?,
        })
    }

    fn shape(config: &Config) -> Shape {
        Shape {
            vocabulary: config.vocab_size,
            context: config.max_position_embeddings,
            widest: config.intermediate_size,
            kv: KvShape::uniform(config.num_hidden_layers, config.num_key_value_heads, config.head_dim),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let model = loader.at("model");
        let embed_tokens = model.embedding("embed_tokens", config.vocab_size, config.hidden_size)?;
        let layers =
            (0..config.num_hidden_layers).map(|index| Layer::load(&model.at("layers").at(index), config, index));
        let layers = layers.collect::<Result<_>>()?;
        let norm = RmsNorm::load(&model, "norm", config.hidden_size, config.rms_norm_eps)?;
        let lm_head = if config.tie_word_embeddings && !loader.has("lm_head.weight") {
            embed_tokens.tied(loader, "lm_head")
        } else {
            loader.linear("lm_head", config.hidden_size, config.vocab_size)?
        };
        let rope = Rope::new(&config.rope, config.head_dim, loader.context())?;
        Ok(Self { embed_tokens, layers, norm, lm_head, rope })
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

/// One decoder layer.
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Layer {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let (width, eps) = (config.hidden_size, config.rms_norm_eps);
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", width, eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", width, eps)?,
            mlp: GatedMlp::load(&loader.at("mlp"), width, config.intermediate_size, config.hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + attended)?;
        let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// Grouped-query attention with rotated queries and keys, within a window where the model has one.
struct SelfAttention {
    qkv_proj: [Linear; 3],
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (heads, kv_heads, head_dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let parts = [("q_proj", heads * head_dim), ("k_proj", kv_heads * head_dim), ("v_proj", kv_heads * head_dim)];
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            qkv_proj: loader.stacked("qkv_proj", config.hidden_size, parts)?,
            o_proj: loader.linear("o_proj", heads * head_dim, config.hidden_size)?,
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
