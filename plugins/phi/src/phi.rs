//! Phi-1, Phi-1.5 (arXiv 2306.11644, 2309.05463) and Phi-2: attention and MLP side by side on one norm, biases everywhere,
//! and only the first part of each head rotated.
//!
//! Reference: `modeling_phi.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints. GGUF
//! calls them `phi2`, and older files have queries, keys and values fused.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, Decoder, Embedding, LayerNorm, Linear, Loader, Mlp, Rope, Shape, Sizes, Step, Tensor,
        activation,
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    layer_norm_eps: f64,
    rope: RopeConfig,
}

/// Attention with partly rotated queries and keys.
struct SelfAttention {
    qkv_proj: [Linear; 3],
    dense: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let parts = [("q_proj", heads * head_dim), ("k_proj", kv_heads * head_dim), ("v_proj", kv_heads * head_dim)];
        Ok(Self {
            qkv_proj: loader.stacked("qkv_proj", hidden_size, parts)?,
            dense: loader.linear("dense", heads * head_dim, hidden_size)?,
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

/// One decoder layer: `x + attention(norm(x)) + mlp(norm(x))`.
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
        let attended = self.self_attn.forward(&normed, angles, step)?;
        Ok(((attended + self.mlp.forward(&normed, step)?)? + x)?)
    }
}

/// The model.
pub struct Phi {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    final_layernorm: LayerNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Tensors of GGUF files.
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
        let sizes = Sizes { hidden_act, ..Sizes::read(config)? };
        Ok(Config { layer_norm_eps: config.f64_or("layer_norm_eps", 1e-5)?, sizes, rope })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, num_hidden_layers, head_dim, .. } = config.sizes;
        let model = loader.at("model");
        Ok(Self {
            embed_tokens: model.embedding("embed_tokens", vocab_size, hidden_size)?,
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            final_layernorm: LayerNorm::load(&model, "final_layernorm", hidden_size, config.layer_norm_eps)?,
            lm_head: loader.linear("lm_head", hidden_size, vocab_size)?,
            rope: Rope::new(&config.rope, head_dim, loader.context())?,
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
