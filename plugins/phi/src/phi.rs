//! Phi-1, Phi-1.5 (arXiv 2306.11644, 2309.05463) and Phi-2: attention and MLP in parallel after one norm, biases
//! everywhere, and partial RoPE.
//!
//! Reference: `modeling_phi.py` in Hugging Face transformers; layers are named as in its checkpoints. GGUF calls them
//! `phi2`, and older files have queries, keys and values fused.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, LayerNorm, Linear, Loader, Mlp, Qkv, Rope, Shape, Sizes, Step, Tensor,
        activation,
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

pub struct Config {
    sizes: Sizes,
    layer_norm_eps: f64,
    rope: RopeConfig,
}

/// Attention with partial RoPE.
struct SelfAttention {
    qkv_proj: Qkv,
    dense: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            qkv_proj: Qkv::load_stacked(loader, "qkv_proj", hidden_size, &attention)?,
            dense: loader.linear("dense", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.dense.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// A decoder layer: `x + attention(norm(x)) + mlp(norm(x))`.
struct Block {
    input_layernorm: LayerNorm,
    self_attn: SelfAttention,
    mlp: Mlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        Ok(Self {
            input_layernorm: LayerNorm::load(loader, "input_layernorm", hidden_size, config.layer_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            mlp: Mlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let x = self.self_attn.add_to(x, &normed, angles, step)?;
        self.mlp.add_to(&x, &normed, step)
    }
}

pub struct Phi {
    model: CausalLm<Block, LayerNorm>,
    rope: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("output_norm", "model.final_layernorm"),
    ("attn_output", "self_attn.dense"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

impl Decoder for Phi {
    const NAME: &'static str = "phi";
    const GGUF: &'static [&'static str] = &["phi2"];
    const CLASSES: &'static [&'static str] = &["PhiForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, activation: "gelu_new", pre_tokenizer: Some("phi-2"), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        if config.bool_or("qk_layernorm", false)? {
            return Err(Error::unsupported("'qk_layernorm' is set, which no published Phi has"));
        }
        let mut rope = config.rope()?;
        if config.value().pointer("/rope_parameters/partial_rotary_factor").is_none() {
            rope.partial_rotary_factor = 0.5;
        }
        let hidden_act = activation(config.str_or("hidden_act", "gelu_new")?)?;
        let tie_word_embeddings = config.bool_or("tie_word_embeddings", false)?;
        let sizes = Sizes { hidden_act, tie_word_embeddings, ..Sizes::read(config)? };
        Ok(Config { layer_norm_eps: config.f64_or("layer_norm_eps", 1e-5)?, sizes, rope })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load_with_norm(
                loader,
                &config.sizes,
                |model| LayerNorm::load(model, "final_layernorm", config.sizes.hidden_size, config.layer_norm_eps),
                |loader, layer| Block::load(loader, config, layer),
            )?,
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
