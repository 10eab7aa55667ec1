//! Mistral 7B (arXiv 2310.06825), NeMo, Small, Ministral and the text model of Mistral 3: Llama with windows over the past,
//! heads whose size does not follow from the width, and from Ministral 3 on queries that grow with their position.
//!
//! Reference: `modeling_mistral.py`, `modeling_ministral.py` and `modeling_ministral3.py` in Hugging Face transformers. GGUF
//! files call the older models `llama`, which that plugin serves, and the newer ones `mistral3`.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Activation, Angles, Attention, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, Paged, RmsNorm, Rope,
        Shape, Step, Tensor, activation,
    },
    weights::{Checkpoint, Config as Settings, Format, RopeConfig, RopeScaling},
};

export!(Plugin::new("mistral", "Mistral 7B to Ministral 3").architecture(Paged::<Mistral>::architecture()));

/// The window of a `MistralForCausalLM` whose configuration does not speak of one; 'null' is no window.
const WINDOW_DEFAULT: usize = 4096;

/// Where a text model lies and its head: by itself, or within a model that also sees.
const PLACES: [(&str, &str); 3] =
    [("model", "lm_head"), ("language_model.model", "language_model.lm_head"), ("model.language_model", "lm_head")];

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
    /// How far back each layer sees.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    growth: Option<Growth>,
}

/// Queries are multiplied by `1 + beta · ln(1 + ⌊position / original⌋)`, so that attention over a long past stays sharp.
#[derive(Clone, Copy)]
struct Growth {
    beta: f64,
    original: usize,
}

/// The model.
struct Mistral {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
    growth: Option<Growth>,
}

impl Decoder for Mistral {
    const NAME: &'static str = "mistral";
    const GGUF: &'static [&'static str] = &["mistral3"];
    const CLASSES: &'static [&'static str] =
        &["MistralForCausalLM", "MinistralForCausalLM", "Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"];

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let kind = config.str_or("model_type", "mistral")?;
        if kind == "mistral4" || config.find_usize("num_local_experts")?.is_some_and(|experts| experts > 0) {
            return Err(Error::declined("a mixture of experts is not a model that mistral knows"));
        }
        let hidden_size = config.usize("hidden_size")?;
        let num_hidden_layers = config.usize("num_hidden_layers")?;
        let num_attention_heads = config.usize("num_attention_heads")?;
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: config.usize("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", 8)?,
            head_dim: config.usize_or("head_dim", hidden_size / num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 131_072)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-6)?,
            hidden_act: activation(config.str_or("hidden_act", "silu")?)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            windows: windows(checkpoint, num_hidden_layers)?,
            rope: config.rope()?,
            growth: growth(config)?,
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
        let is_there = |(model, _): &&(&str, &str)| loader.at(model).has("embed_tokens.weight");
        let (model, head) = PLACES.iter().find(is_there).unwrap_or(&PLACES[0]);
        let model = loader.at(model);
        let embed_tokens = model.embedding("embed_tokens", config.vocab_size, config.hidden_size)?;
        let layers =
            (0..config.num_hidden_layers).map(|index| Layer::load(&model.at("layers").at(index), config, index));
        let layers = layers.collect::<Result<_>>()?;
        let norm = RmsNorm::load(&model, "norm", config.hidden_size, config.rms_norm_eps)?;
        let lm_head = if config.tie_word_embeddings && !loader.at(head).has("weight") {
            embed_tokens.tied(loader, head)
        } else {
            loader.linear(head, config.hidden_size, config.vocab_size)?
        };
        let rope = Rope::new(&config.rope, config.head_dim, loader.context())?;
        Ok(Self { embed_tokens, layers, norm, lm_head, rope, growth: config.growth })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let keys = self.rope.angles(step)?;
        let queries = match self.growth {
            Some(growth) => self.rope.angles_scaled(step, |position| growth.at(position))?,
            None => keys.clone(),
        };
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            x = layer.forward(&x, (&queries, &keys), step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}

impl Growth {
    fn at(self, position: u32) -> f32 {
        (1.0 + self.beta * f64::from(1 + position / self.original as u32).ln()) as f32
    }
}

/// How queries grow, where the configuration says so beside RoPE's parameters.
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

/// How far back each layer sees.
fn windows(checkpoint: &Checkpoint, layers: usize) -> Result<Vec<Option<usize>>> {
    let config = checkpoint.config();
    let is_silent = checkpoint.format() == Format::Safetensors && config.value().get("sliding_window").is_none();
    if is_silent && checkpoint.architecture() == "MistralForCausalLM" {
        return Ok(vec![Some(WINDOW_DEFAULT); layers]);
    }
    config.sliding_windows(layers)
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

    fn forward(&self, x: &Tensor, angles: (&Angles, &Angles), step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + attended)?;
        let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// Grouped-query attention with rotated queries and keys, within the layer's window.
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
        let window = config.windows.get(layer).copied().flatten();
        let attention = Attention { window, ..Attention::new(layer, heads, kv_heads, head_dim)? };
        Ok(Self {
            q_proj: loader.linear("q_proj", config.hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", config.hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", config.hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, config.hidden_size)?,
            attention,
        })
    }

    fn forward(&self, x: &Tensor, angles: (&Angles, &Angles), step: &mut Step<'_>) -> Result<Tensor> {
        let q = angles.0.rotate(&self.q_proj.forward(x, step)?, step)?;
        let k = angles.1.rotate(&self.k_proj.forward(x, step)?, step)?;
        let v = self.v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}
