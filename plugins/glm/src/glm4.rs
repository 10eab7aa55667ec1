//! GLM-4-0414 and GLM-Z1 (arXiv 2406.12793): Llama with norms before and after each block, biases on queries, keys and
//! values, and RoPE on half of each head, interleaved.
//!
//! Reference: `modeling_glm4.py` in Hugging Face transformers; layers are named as in its checkpoints. GLM-4.1V and
//! GLM-OCR see images.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
        vision::{MAX_PIXELS, Processor, Tower},
    },
    weights::{Checkpoint, Format, GgufFamily, Names, RopeConfig, RopeStyle},
};

use crate::vision::{self, GlmVision};

pub struct Config {
    sizes: Sizes,
    rope: RopeConfig,
    vision: Option<vision::Config>,
}

/// Grouped-query attention with biases, half of each head rotated.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_self_attn_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_mlp_layernorm: RmsNorm,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let norm = |name| RmsNorm::load(loader, name, hidden_size, rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_self_attn_layernorm: norm("post_self_attn_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
            post_mlp_layernorm: norm("post_mlp_layernorm")?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attn_out = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = self.post_self_attn_layernorm.add_to(x, &attn_out, step)?;
        let mlp_out = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        self.post_mlp_layernorm.add_to(&x, &mlp_out, step)
    }
}

pub struct Glm4 {
    model: CausalLm<Block>,
    rope: Rope,
    vision: Option<GlmVision>,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("ffn_up", "mlp.gate_up_proj"),
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
];

impl Decoder for Glm4 {
    const NAME: &'static str = "glm4";
    const GGUF: &'static [&'static str] = &["glm4"];
    const CLASSES: &'static [&'static str] =
        &["Glm4ForCausalLM", "Glm4vForConditionalGeneration", "GlmOcrForConditionalGeneration"];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);
    const OPTIONS: &'static [&'static str] = &[MAX_PIXELS];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, tower: Some(&vision::TOWER), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let mut config = checkpoint.config().with_defaults([("num_key_value_heads", 2.into())])?;
        if checkpoint.architecture() == "Glm4ForCausalLM" {
            config = config.with_defaults([("head_dim", 128.into())])?;
        }
        let sizes = Sizes {
            max_position_embeddings: config.usize_or("max_position_embeddings", 131_072)?,
            ..Sizes::read(&config)?
        };
        // For vision-language models, llama.cpp's converter permutes rows to NeoX order.
        let is_turned =
            checkpoint.format() == Format::Gguf && config.value().pointer("/rope_parameters/mrope_section").is_some();
        let style = if is_turned { RopeStyle::NeoX } else { RopeStyle::Interleaved };
        let rope = RopeConfig { style, ..config.rope()? };
        // Checkpoints of this class rotate half of each head even if the configuration does not say so.
        let is_given = config.value().pointer("/rope_parameters/partial_rotary_factor").is_some();
        let partial_rotary_factor = if is_given { rope.partial_rotary_factor } else { 0.5 };
        let vision = vision::Config::read(checkpoint)?;
        Ok(Config { sizes, rope: RopeConfig { partial_rotary_factor, ..rope }, vision })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let rope = Rope::new(&config.rope, config.sizes.head_dim, loader.context())?;
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: if let Some(vision) = vision { vision.rope(rope)? } else { rope },
            vision: vision.map(|vision| GlmVision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
        })
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.vision.as_ref().map(|vision| vision as &dyn Tower)
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
