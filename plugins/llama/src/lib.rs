//! Llama 1 to 3.x (arXiv 2302.13971, 2307.09288, 2407.21783) and models of the same architecture: TinyLlama, SmolLM,
//! Yi, SmolLM3 (some layers without RoPE), Seed-OSS (with biases), and Mistral as GGUF files. With a tower before it,
//! it is Idefics3 and SmolVLM.
//!
//! Reference: `modeling_llama.py` in Hugging Face transformers; layers are named as in its checkpoints.

mod vision;

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Paged, Qkv, RmsNorm, Rope, Shape, Sizes, Step,
        Tensor,
        vision::{Processor, Tower},
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, GgufRope, Names, RopeConfig, gguf::Metadata},
};

export!(Plugin::new("llama", "Llama 1 to 3.x and their kin").architecture(Paged::<Llama>::architecture()));

struct Config {
    sizes: Sizes,
    /// Only in GGUF files of Mistral models.
    sliding_window: Option<usize>,
    rope: RopeConfig,
    /// True for each layer without RoPE (SmolLM3).
    no_rope: Vec<bool>,
    vision: Option<vision::Config>,
}

/// Grouped-query attention, without RoPE in some layers of SmolLM3.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    is_rotated: bool,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention =
            Attention { window: config.sliding_window, ..Attention::new(layer, heads, kv_heads, head_dim)? };
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            is_rotated: !config.no_rope[layer],
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = Some(angles).filter(|_| self.is_rotated);
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, angles, step)?, step)
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

struct Llama {
    model: CausalLm<Block>,
    rope: Rope,
    vision: Option<vision::Idefics3Vision>,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[("post_attention_norm", "post_attention_layernorm")];

/// Some GGUF files of Phi-3 have the architecture `llama`; their special tokens strip the white space after them, as in
/// Phi-3's own files.
fn is_phi3(metadata: &Metadata) -> Result<bool> {
    let name = metadata.string("general.name")?.unwrap_or_default().to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

impl Decoder for Llama {
    const NAME: &'static str = "llama";
    const GGUF: &'static [&'static str] = &["llama", "smollm3", "seed_oss"];
    const CLASSES: &'static [&'static str] = &[
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "Idefics3ForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
    ];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);
    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let rope = if architecture == "seed_oss" { GgufRope::Halves } else { GgufRope::Permuted };
        GgufFamily {
            names: GGUF_NAMES,
            rope,
            strips_behind_special: is_phi3,
            tower: Some(&vision::TOWER),
            ..GgufFamily::default()
        }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let mut config = checkpoint.config().clone();
        if checkpoint.architecture().starts_with("SeedOss") {
            let defaults = [("head_dim", 128.into()), ("max_position_embeddings", 524_288.into())];
            config = config.with_defaults(defaults)?;
        }
        let config = &config;
        if config.experts()?.is_some() {
            return Err(Error::declined(
                "it has experts, and Llama has none: as GGUF, Mixtral calls itself 'llama', too",
            ));
        }
        let sizes = Sizes::read(config)?;
        Ok(Config {
            sliding_window: if checkpoint.format() == Format::Gguf { config.sliding_window()? } else { None },
            rope: config.rope()?,
            no_rope: no_rope(config, checkpoint.architecture().to_lowercase().starts_with("smollm3"), &sizes)?,
            vision: vision::Config::read(checkpoint)?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|_| config.sliding_window)
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let vision = vision.map(|vision| vision::Idefics3Vision::load(loader, vision, config.sizes.hidden_size));
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            vision: vision.transpose()?,
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

/// SmolLM3's layers without RoPE: those with a 0 in `no_rope_layers`, or every fourth.
fn no_rope(config: &Settings, is_smollm3: bool, sizes: &Sizes) -> Result<Vec<bool>> {
    let layers = sizes.num_hidden_layers;
    let rotating = config.usizes("no_rope_layers")?;
    if rotating.len() == layers {
        return Ok(rotating.iter().map(|rotates| *rotates == 0).collect());
    }
    let interval = config.usize_or("no_rope_layer_interval", 4)?.max(1);
    Ok((1..=layers).map(|layer| is_smollm3 && layer.is_multiple_of(interval)).collect())
}
