//! Mistral 7B (arXiv 2310.06825), NeMo, Small, Ministral and the text model of Mistral 3: Llama with sliding windows,
//! an independent head size, and from Ministral 3 on queries scaled by position. Mistral 3 and Pixtral see images.
//!
//! Reference: `modeling_mistral.py`, `modeling_ministral.py` and `modeling_ministral3.py` in Hugging Face transformers. GGUF
//! files call the newer models `mistral3`, and the older ones `llama`, which that plugin serves unless Pixtral's tower is
//! beside them.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
        vision::{Processor, Tower},
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig, RopeScaling},
};

use crate::vision::{self, PixtralVision};

/// The window of a `MistralForCausalLM` whose configuration omits the key; `null` means no window.
const WINDOW_DEFAULT: usize = 4096;

pub struct Config {
    sizes: Sizes,
    /// Each layer's sliding window in tokens; `None` for full attention.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    growth: Option<Growth>,
    vision: Option<vision::Config>,
}

/// Queries are multiplied by `1 + beta · ln(1 + ⌊position / original⌋)`, so that attention stays sharp over long contexts.
#[derive(Clone, Copy)]
struct Growth {
    beta: f64,
    original: usize,
}

impl Growth {
    fn at(self, position: u32) -> f32 {
        (1.0 + self.beta * f64::from(1 + position / self.original as u32).ln()) as f32
    }
}

/// Grouped-query attention within the layer's window.
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

pub struct Mistral {
    model: CausalLm<Block>,
    rope: Rope,
    growth: Option<Growth>,
    vision: Option<PixtralVision>,
}

impl Decoder for Mistral {
    const NAME: &'static str = "mistral";
    const GGUF: &'static [&'static str] = &["mistral3", "llama"];
    const CLASSES: &'static [&'static str] = &[
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "LlavaForConditionalGeneration",
    ];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { tower: Some(&vision::TOWER), ..GgufFamily::PERMUTED }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let kind = config.str_or("model_type", "mistral")?;
        if kind == "mistral4" || config.experts()?.is_some() {
            return Err(Error::declined("a mixture of experts is not a model that mistral knows"));
        }
        if checkpoint.architecture() == "LlavaForConditionalGeneration" && kind != "mistral" {
            return Err(Error::declined(format!("a text model of type '{kind}' is not one that mistral knows")));
        }
        let vision = vision::Config::read(checkpoint)?;
        if checkpoint.architecture() == "llama" && vision.is_none() {
            return Err(Error::declined(
                "a GGUF file called 'llama' without Pixtral's tower is not one that mistral takes",
            ));
        }
        let sizes = Sizes {
            num_key_value_heads: config.usize_or("num_key_value_heads", 8)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 131_072)?,
            ..Sizes::read(config)?
        };
        Ok(Config {
            windows: windows(checkpoint, sizes.num_hidden_layers)?,
            rope: config.rope()?,
            growth: growth(config)?,
            vision,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            growth: config.growth,
            vision: vision.map(|vision| PixtralVision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
        })
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.vision.as_ref().map(|vision| vision as &dyn Tower)
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = match self.growth {
            Some(growth) => self.rope.angles_scaling_queries(step, |position| growth.at(position))?,
            None => self.rope.angles(step)?,
        };
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}

/// The scaling of queries by position, if the RoPE parameters define it.
fn growth(config: &Settings) -> Result<Option<Growth>> {
    #[allow(
        clippy::redundant_closure_for_method_calls,
        reason = "the method's type is of a crate that is not named here"
    )]
    let beta = config.value().pointer("/rope_parameters/llama_4_scaling_beta").and_then(|beta| beta.as_f64());
    match (beta.filter(|beta| *beta != 0.0), config.rope()?.scaling) {
        (None, _) => Ok(None),
        (Some(beta), RopeScaling::Yarn { original_context: original, .. }) => Ok(Some(Growth { beta, original })),
        (Some(_), _) => Err(Error::unsupported("'llama_4_scaling_beta' without the original context of YaRN")),
    }
}

/// Each layer's sliding window.
fn windows(checkpoint: &Checkpoint, layers: usize) -> Result<Vec<Option<usize>>> {
    let config = checkpoint.config();
    let is_silent = checkpoint.format() == Format::Safetensors && config.value().get("sliding_window").is_none();
    if is_silent && checkpoint.architecture() == "MistralForCausalLM" {
        return Ok(vec![Some(WINDOW_DEFAULT); layers]);
    }
    config.sliding_windows(layers)
}
