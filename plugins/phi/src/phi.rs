//! Phi-1, Phi-1.5 (arXiv 2306.11644, 2309.05463) and Phi-2: attention and MLP side by side on one norm, biases everywhere,
//! and only the first part of each head rotated.
//!
//! Reference: `modeling_phi.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints. GGUF
//! calls them `phi2`, and older files have queries, keys and values fused.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, Angles, Attention, Decoder, Embedding, KvShape, LayerNorm, Linear, Loader, Mlp, Rope, Shape, Step,
        Tensor, activation,
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
    layer_norm_eps: f64,
    hidden_act: Activation,
    rope: RopeConfig,
}

/// The model.
pub struct Phi {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    final_layernorm: LayerNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for Phi {
    const NAME: &'static str = "phi";
    const GGUF: &'static [&'static str] = &["phi2"];
    const CLASSES: &'static [&'static str] = &["PhiForCausalLM"];

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        if config.bool_or("qk_layernorm", false)? {
            return Err(Error::unsupported("'qk_layernorm' is set, which no published Phi has"));
        }
        let hidden_size = config.usize("hidden_size")?;
        let num_attention_heads = config.usize("num_attention_heads")?;
        let mut rope = config.rope()?;
        if config.value().pointer("/rope_parameters/partial_rotary_factor").is_none() {
            rope.partial_rotary_factor = 0.5;
        }
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: config.usize("intermediate_size")?,
            num_hidden_layers: config.usize("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", num_attention_heads)?,
            head_dim: config.usize_or("head_dim", hidden_size / num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 2048)?,
            layer_norm_eps: config.f64_or("layer_norm_eps", 1e-5)?,
            hidden_act: activation(config.str_or("hidden_act", "gelu_new")?)?,
            rope,
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
        let layers =
            (0..config.num_hidden_layers).map(|index| Layer::load(&model.at("layers").at(index), config, index));
        Ok(Self {
            embed_tokens: model.embedding("embed_tokens", config.vocab_size, config.hidden_size)?,
            layers: layers.collect::<Result<_>>()?,
            final_layernorm: LayerNorm::load(&model, "final_layernorm", config.hidden_size, config.layer_norm_eps)?,
            lm_head: loader.linear("lm_head", config.hidden_size, config.vocab_size)?,
            rope: Rope::new(&config.rope, config.head_dim, loader.context())?,
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
        self.lm_head.forward(&self.final_layernorm.forward(hidden, step)?, step)
    }
}

/// One decoder layer: `x + attention(norm(x)) + mlp(norm(x))`.
struct Layer {
    input_layernorm: LayerNorm,
    self_attn: SelfAttention,
    mlp: Mlp,
}

impl Layer {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let width = config.hidden_size;
        Ok(Self {
            input_layernorm: LayerNorm::load(loader, "input_layernorm", width, config.layer_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            mlp: Mlp::load(&loader.at("mlp"), width, config.intermediate_size, config.hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let attended = self.self_attn.forward(&normed, angles, step)?;
        Ok(((attended + self.mlp.forward(&normed, step)?)? + x)?)
    }
}

/// Attention with partly rotated queries and keys.
struct SelfAttention {
    qkv_proj: [Linear; 3],
    dense: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (heads, kv_heads, head_dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let parts = [("q_proj", heads * head_dim), ("k_proj", kv_heads * head_dim), ("v_proj", kv_heads * head_dim)];
        Ok(Self {
            qkv_proj: loader.stacked("qkv_proj", config.hidden_size, parts)?,
            dense: loader.linear("dense", heads * head_dim, config.hidden_size)?,
            attention: Attention::new(layer, heads, kv_heads, head_dim)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q_proj, k_proj, v_proj] = &self.qkv_proj;
        let q = angles.rotate(&q_proj.forward(x, step)?, step)?;
        let k = angles.rotate(&k_proj.forward(x, step)?, step)?;
        let v = v_proj.forward(x, step)?;
        self.dense.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}
