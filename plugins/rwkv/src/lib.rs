//! RWKV-7 (arXiv 2503.14456): no attention, and a memory of fixed size. Every layer mixes each token with the one before
//! it, and keeps a matrix per head that changes by the generalized delta rule.
//!
//! Reference: the paper; layers are named as in the checkpoints that flash-linear-attention publishes.

mod gguf;
mod time_mix;

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        CausalLm, Decoder, Elementwise, Expr, KvShape, LayerCache, LayerNorm, Linear, Loader, Paged, Shape, ShortConv,
        Step, Tensor,
    },
    weights::{Checkpoint, Format, GgufFamily},
};
use std::cell::RefCell;

use time_mix::TimeMix;

export!(Plugin::new("rwkv", "RWKV-7").architecture(Paged::<Rwkv7>::architecture()));

/// Configurations have no maximum length, as nothing bounds it; this is the number that llama.cpp's converter writes.
const CONTEXT: usize = 1 << 20;

struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    head_dim: usize,
    norm_eps: f64,
    tie_word_embeddings: bool,
    max_position_embeddings: usize,
    ranks: Ranks,
}

/// Inner widths of the low-rank layers, which configurations may omit.
#[derive(Clone, Copy)]
struct Ranks {
    decay: usize,
    learning_rate: usize,
    value: usize,
    gate: usize,
}

impl Config {
    /// The parts of a layer's state: the last inputs of both mixes, and the matrices.
    fn cache(&self) -> LayerCache {
        LayerCache::States(vec![self.hidden_size, self.hidden_size, self.hidden_size.saturating_mul(self.head_dim)])
    }
}

/// The vector `name`, or `name.weight` as in GGUF files.
fn vector(loader: &Loader<'_>, name: &str, len: usize) -> Result<Tensor> {
    let weight = format!("{name}.weight");
    let values = match loader.values(name)? {
        None => loader.values(&weight)?,
        values => values,
    };
    let missing = || Error::corrupt(format!("no tensor '{}.{name}' of {len} values", loader.path()));
    let values = values.filter(|values| values.len() == len).ok_or_else(missing)?;
    Ok(Tensor::from_vec(values, len, loader.device())?)
}

/// The feed-forward block: `value(relu(key(x))²)`, where `x` is mixed with the token before.
struct ChannelMix {
    shift: ShortConv,
    mix: Elementwise<2, 1>,
    key: Linear,
    squared_relu: Elementwise<1, 1>,
    value: Linear,
}

impl ChannelMix {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let x_k = Expr::columns(&vector(loader, "x_k", width)?);
        Ok(Self {
            shift: ShortConv::shift(loader, layer, width)?.in_part(1),
            mix: Elementwise::new(|[x, before]| [&x + (before - &x) * x_k]),
            squared_relu: Elementwise::new(|[x]| {
                let x = x.relu();
                [&x * &x]
            }),
            key: loader.linear("key", width, inner)?,
            value: loader.linear("value", inner, width)?,
        })
    }

    /// `residual + block(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let before = self.shift.forward(x, step)?;
        let [mixed] = self.mix.forward([x, &before], step.ops())?;
        let [inner] = self.squared_relu.forward([&self.key.forward(&mixed, step)?], step.ops())?;
        self.value.add_to(residual, &inner, step)
    }
}

struct Block {
    /// Normalizes the embeddings, before the first layer.
    pre_norm: Option<LayerNorm>,
    attn_norm: LayerNorm,
    attn: TimeMix,
    ffn_norm: LayerNorm,
    ffn: ChannelMix,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let norm = |name: &str| LayerNorm::load(loader, name, config.hidden_size, config.norm_eps);
        Ok(Self {
            pre_norm: if loader.has("pre_norm.weight") { Some(norm("pre_norm")?) } else { None },
            attn_norm: norm("attn_norm")?,
            attn: TimeMix::load(&loader.at("attn"), config, index)?,
            ffn_norm: norm("ffn_norm")?,
            ffn: ChannelMix::load(&loader.at("ffn"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, v_first: &RefCell<Option<Tensor>>, step: &mut Step<'_>) -> Result<Tensor> {
        let x = match &self.pre_norm {
            Some(norm) => norm.forward(x, step)?,
            None => x.clone(),
        };
        let x = self.attn.add_to(&x, &self.attn_norm.forward(&x, step)?, v_first, step)?;
        self.ffn.add_to(&x, &self.ffn_norm.forward(&x, step)?, step)
    }
}

struct Rwkv7(CausalLm<Block, LayerNorm>);

impl Decoder for Rwkv7 {
    const NAME: &'static str = "rwkv7";
    const GGUF: &'static [&'static str] = &["rwkv7"];
    const CLASSES: &'static [&'static str] = &["RWKV7ForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::family()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let is_hybrid = config.value().get("attn").is_some_and(|attn| !attn.is_null());
        if is_hybrid {
            return Err(Error::declined("some of its layers attend ('attn'), which is not computed"));
        }
        if checkpoint.format() == Format::Safetensors && config.str_or("hidden_act", "sqrelu")? != "sqrelu" {
            return Err(Error::declined("'hidden_act' is not sqrelu, which is all that is computed"));
        }
        let (hidden_size, layers) = (config.usize("hidden_size")?, config.usize("num_hidden_layers")?);
        let head_dim = config.usize_or("head_dim", 64)?;
        if head_dim == 0 || !hidden_size.is_multiple_of(head_dim) {
            return Err(Error::corrupt(format!(
                "a width of {hidden_size} is no multiple of heads of {head_dim} values"
            )));
        }
        let expanded = hidden_size.saturating_mul(config.usize_or("hidden_ratio", 4)?);
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: config.find_usize("intermediate_size")?.unwrap_or(expanded),
            num_hidden_layers: layers,
            head_dim,
            norm_eps: config.f64_or("norm_eps", 1e-5)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", CONTEXT)?,
            ranks: ranks(checkpoint, layers),
        })
    }

    fn shape(config: &Config) -> Shape {
        Shape {
            vocabulary: config.vocab_size,
            context: config.max_position_embeddings,
            widest: config.intermediate_size.max(config.hidden_size),
            kv: KvShape::new(vec![config.cache(); config.num_hidden_layers]),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let model = loader.at("model");
        let embed_tokens = model.embedding("embeddings", config.vocab_size, config.hidden_size)?;
        Ok(Self(CausalLm {
            layers: model.layers(config.num_hidden_layers, |loader, layer| Block::load(loader, config, layer))?,
            norm: LayerNorm::load(&model, "norm", config.hidden_size, config.norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.tie_word_embeddings)?,
            embed_tokens,
        }))
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        // All layers mix the first one's values into theirs.
        let v_first = RefCell::new(None);
        self.0.hidden(step, |layer, x, step| layer.forward(x, &v_first, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.features(hidden, step)
    }
}

/// The ranks, from the tensors. The first layer has no values to mix with.
fn ranks(checkpoint: &Checkpoint, layers: usize) -> Ranks {
    let rank = |layer: usize, name: &str| {
        let tensor = checkpoint.weights().find(&format!("model.layers.{layer}.attn.{name}_lora.lora.0.weight"));
        tensor.and_then(|tensor| tensor.shape.first().copied()).unwrap_or_default()
    };
    let value = if layers > 1 { rank(1, "v") } else { 0 };
    Ranks { decay: rank(0, "w"), learning_rate: rank(0, "a"), value, gate: rank(0, "g") }
}
