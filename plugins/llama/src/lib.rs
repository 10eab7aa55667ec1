//! Llama 1 to 3.x (arXiv 2302.13971, 2307.09288, 2407.21783) and what is Llama by another name: TinyLlama, SmolLM, Yi, and
//! in GGUF files Mistral too.
//!
//! Reference: `modeling_llama.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Activation, Angles, Attention, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, Paged, RmsNorm, Rope,
        Shape, Step, Tensor, activation,
    },
    weights::{Checkpoint, Format, RopeConfig},
};

export!(Plugin::new("llama", "Llama 1 to 3.x and their kin").architecture(Paged::<Llama>::architecture()));

/// What a checkpoint says about its model.
struct Config {
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
    /// Of GGUF files that are Mistral's.
    sliding_window: Option<usize>,
    rope: RopeConfig,
}

/// The model.
struct Llama {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for Llama {
    const NAME: &'static str = "llama";
    const GGUF: &'static [&'static str] = &["llama"];
    const CLASSES: &'static [&'static str] = &["LlamaForCausalLM", "LLaMAForCausalLM"];

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
            max_position_embeddings: config.usize_or("max_position_embeddings", 2048)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-6)?,
            hidden_act: activation(config.str_or("hidden_act", "silu")?)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            sliding_window: if checkpoint.format() == Format::Gguf { config.sliding_window()? } else { None },
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

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (heads, kv_heads, head_dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            q_proj: loader.linear("q_proj", config.hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", config.hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", config.hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, config.hidden_size)?,
            attention: Attention { window: config.sliding_window, ..attention },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = angles.rotate(&self.q_proj.forward(x, step)?, step)?;
        let k = angles.rotate(&self.k_proj.forward(x, step)?, step)?;
        let v = self.v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}
