//! Qwen3-Next, Qwen3.5 and 3.6, dense and as mixtures of experts: three layers of four are gated delta nets (arXiv 2412.06464), and the
//! others gated attention that rotates a quarter of each head.
//!
//! Reference: `modeling_qwen3_next.py` and `modeling_qwen3_5.py` in Hugging Face transformers; layers carry the names that they have
//! in its checkpoints. Of vision-language checkpoints the text model is loaded; its rotations in three sections are plain ones for
//! text. Multi-token prediction (`mtp`) layers are left out.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, Angles, Attention, AttentionCache, Decoder, Embedding, KvShape, LayerCache, Linear, Loader,
        Recurrence, RmsNorm, Rope, Shape, ShortConv, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig},
};

use crate::{
    gguf,
    qwen::{Mlp, Moe, moe},
};

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    /// Which layers attend; the others are delta nets.
    attends: Vec<bool>,
    linear: LinearSizes,
    rope: RopeConfig,
    moe: Option<Moe>,
}

/// What it says about its delta nets.
#[derive(Clone, Copy)]
struct LinearSizes {
    num_key_heads: usize,
    num_value_heads: usize,
    key_head_dim: usize,
    value_head_dim: usize,
    conv_kernel_dim: usize,
}

impl LinearSizes {
    fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Queries, keys and values, which are convolved together.
    fn channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    fn cache(&self) -> LayerCache {
        let conv = (self.channels(), self.conv_kernel_dim);
        Recurrence::cache(conv, self.num_value_heads, self.key_head_dim, self.value_head_dim)
    }
}

/// The norms multiply by one more than their weights, which GGUF files hold with that one added.
fn norm(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<RmsNorm> {
    let norm = RmsNorm::load(loader, name, width, eps)?;
    if loader.format() == Format::Gguf { Ok(norm) } else { norm.plus(1.0) }
}

/// Columns of each group of `x`, which follow each other in it.
fn of_groups<const N: usize>(x: &Tensor, groups: usize, widths: [usize; N], step: &Step<'_>) -> Result<[Tensor; N]> {
    let (tokens, width) = x.dims2()?;
    let mut parts = step.split(&x.reshape((tokens * groups, width / groups))?, widths)?;
    for (part, width) in parts.iter_mut().zip(widths) {
        *part = part.reshape((tokens, groups * width))?;
    }
    Ok(parts)
}

/// Grouped-query attention with normed queries and keys, and a gate for what each head has found.
struct GatedAttention {
    /// Of each head the query, and then the gate.
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    attention: Attention,
}

impl GatedAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * 2 * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            q_norm: norm(loader, "q_norm", head_dim, rms_norm_eps)?,
            k_norm: norm(loader, "k_norm", head_dim, rms_norm_eps)?,
            attention: Attention::new(layer, heads, kv_heads, head_dim)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let Attention { heads, head_dim, .. } = self.attention;
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x, step)?;
        let [q, gate] = of_groups(&q, heads, [head_dim, head_dim], step)?;
        let q = self.q_norm.forward_heads(&q, step)?;
        let k = self.k_norm.forward_heads(&k, step)?;
        let found = self.attention.forward_rotated(&q, &k, &v, angles, step)?;
        self.o_proj.forward(&step.ops().gate(&gate, &found, Activation::Sigmoid)?, step)
    }
}

/// What a delta net makes of its input, in one of the ways in which checkpoints have it: as one layer, whose outputs follow each
/// other in groups of a head of keys, or as two layers.
enum Projection<const N: usize> {
    Grouped { all: Linear, groups: usize, widths: [usize; N] },
    Apart([Linear; 2]),
}

impl<const N: usize> Projection<N> {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Vec<Tensor>> {
        match self {
            Self::Apart(layers) => Ok(Linear::forward_all(layers.each_ref(), x, step)?.into()),
            Self::Grouped { all, groups, widths } => {
                Ok(of_groups(&all.forward(x, step)?, *groups, *widths, step)?.into())
            }
        }
    }
}

/// A gated delta net: matrices that take in what a key should mean, read by queries.
struct GatedDeltaNet {
    /// Queries, keys and values, and the gate of the norm.
    qkvz: Projection<4>,
    /// Rates, and what makes matrices fade.
    ba: Projection<2>,
    conv1d: ShortConv,
    /// `−exp(A_log)`.
    a: Tensor,
    dt_bias: Tensor,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    recurrence: Recurrence,
    norm: RmsNorm,
    out_proj: Linear,
    sizes: LinearSizes,
}

impl GatedDeltaNet {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        // Some GGUF files have heads of values that take turns with those of keys.
        let turned = loader.at("turned_linear_attn");
        let takes_turns = turned.has("out_proj.weight");
        let loader = &if takes_turns { turned } else { loader.at("linear_attn") };
        let (sizes, width) = (config.linear, config.sizes.hidden_size);
        let LinearSizes { num_key_heads: key_heads, num_value_heads: heads, key_head_dim, value_head_dim, .. } = sizes;
        let recurrence = Recurrence::new(layer, heads, key_heads, key_head_dim, value_head_dim)?;
        let shared = heads / key_heads;
        let qkvz = if loader.has("in_proj_qkvz.weight") {
            let widths = [key_head_dim, key_head_dim, shared * value_head_dim, shared * value_head_dim];
            let all = loader.linear("in_proj_qkvz", width, sizes.channels() + sizes.value_dim())?;
            Projection::Grouped { all, groups: key_heads, widths }
        } else {
            let qkv = loader.linear("in_proj_qkv", width, sizes.channels())?;
            Projection::Apart([qkv, loader.linear("in_proj_z", width, sizes.value_dim())?])
        };
        let ba = if loader.has("in_proj_ba.weight") {
            let all = loader.linear("in_proj_ba", width, 2 * heads)?;
            Projection::Grouped { all, groups: key_heads, widths: [shared; 2] }
        } else {
            Projection::Apart([loader.linear("in_proj_b", width, heads)?, loader.linear("in_proj_a", width, heads)?])
        };
        let is_gguf = loader.format() == Format::Gguf;
        let eps = 1e-6;
        Ok(Self {
            qkvz,
            ba,
            conv1d: ShortConv::load(loader, "conv1d", layer, sizes.channels(), sizes.conv_kernel_dim)?
                .activated(Activation::Silu),
            a: if is_gguf { loader.vector("A", heads)? } else { loader.vector("A_log", heads)?.exp()?.neg()? },
            dt_bias: loader.vector(if is_gguf { "dt_proj.bias" } else { "dt_bias" }, heads)?,
            q_norm: RmsNorm::to_length(loader, key_head_dim, (key_head_dim as f64).powf(-0.5), eps)?,
            k_norm: RmsNorm::to_length(loader, key_head_dim, 1.0, eps)?,
            recurrence: Recurrence { takes_turns, ..recurrence },
            norm: RmsNorm::load(loader, "norm", value_head_dim, config.sizes.rms_norm_eps)?,
            out_proj: loader.linear("out_proj", sizes.value_dim(), width)?,
            sizes,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (mut qkvz, ba) = (self.qkvz.forward(x, step)?, self.ba.forward(x, step)?);
        let (Some(z), [b, a]) = (qkvz.pop(), &ba[..]) else {
            return Err(Error::invalid("a projection of other parts"));
        };
        let qkv = Tensor::cat(&qkvz, 1)?;
        let qkv = self.conv1d.forward(&qkv, step)?;
        let (keys, values) = (self.sizes.key_dim(), self.sizes.value_dim());
        let [q, k, v] = step.split(&qkv, [keys, keys, values])?;
        let (q, k) = (self.q_norm.forward_heads(&q, step)?, self.k_norm.forward_heads(&k, step)?);
        let decay = step.ops().columnwise(a, Some(&self.dt_bias), Some(Activation::Softplus), Some(&self.a))?;
        let rate = step.ops().activate(b, Activation::Sigmoid)?;
        let read = self.recurrence.delta([&q, &k, &v], &decay, &rate, step)?;
        let gated = step.ops().gate(&z, &self.norm.forward_heads(&read, step)?, Activation::Silu)?;
        self.out_proj.forward(&gated, step)
    }
}

/// What mixes the tokens of a sequence.
enum Mixer {
    Attention(GatedAttention),
    DeltaNet(GatedDeltaNet),
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: norm(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            mixer: if config.attends[index] {
                Mixer::Attention(GatedAttention::load(&loader.at("self_attn"), config, index)?)
            } else {
                Mixer::DeltaNet(GatedDeltaNet::load(loader, config, index)?)
            },
            post_attention_layernorm: norm(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: Mlp::load(&loader.at("mlp"), &config.sizes, config.moe.as_ref(), index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(&normed, angles, step)?,
            Mixer::DeltaNet(net) => net.forward(&normed, step)?,
        };
        let x = step.ops().add(x, &mixed)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

/// The model.
pub struct QwenNext {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for QwenNext {
    const NAME: &'static str = "qwen-next";
    const GGUF: &'static [&'static str] = &["qwen3next", "qwen35", "qwen35moe"];
    const CLASSES: &'static [&'static str] = &[
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ];

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        gguf::family(architecture)
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let defaults = [
            ("max_position_embeddings", 32_768.into()),
            ("head_dim", 256.into()),
            ("norm_topk_prob", true.into()),
            ("num_experts_per_tok", if checkpoint.architecture() == "Qwen3NextForCausalLM" { 10 } else { 8 }.into()),
            ("moe_intermediate_size", 512.into()),
            ("shared_expert_intermediate_size", 512.into()),
        ];
        let config = checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(&config)?;
        let layers = sizes.num_hidden_layers;
        let rope = config.rope()?;
        let is_given = config.value().pointer("/rope_parameters/partial_rotary_factor").is_some();
        let partial_rotary_factor = if is_given { rope.partial_rotary_factor } else { 0.25 };
        Ok(Config {
            attends: attends(&config, layers)?,
            linear: LinearSizes {
                num_key_heads: config.usize_or("linear_num_key_heads", 16)?,
                num_value_heads: config.usize_or("linear_num_value_heads", 32)?,
                key_head_dim: config.usize_or("linear_key_head_dim", 128)?,
                value_head_dim: config.usize_or("linear_value_head_dim", 128)?,
                conv_kernel_dim: config.usize_or("linear_conv_kernel_dim", 4)?,
            },
            rope: RopeConfig { partial_rotary_factor, ..rope },
            moe: config.experts()?.map(|experts| moe(&config, experts, layers)).transpose()?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        let Sizes { num_key_value_heads, head_dim, num_attention_heads, intermediate_size, .. } = config.sizes;
        let cache = |attends: &bool| match attends {
            true => LayerCache::Attention(AttentionCache::new(num_key_value_heads, head_dim)),
            false => config.linear.cache(),
        };
        Shape {
            vocabulary: config.sizes.vocab_size,
            context: config.sizes.max_position_embeddings,
            widest: intermediate_size
                .max(2 * num_attention_heads * head_dim)
                .max(config.linear.channels() + config.linear.value_dim()),
            kv: KvShape::new(config.attends.iter().map(cache).collect()),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, num_hidden_layers, head_dim, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        Ok(Self {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: norm(&model, "norm", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            rope: Rope::new(&config.rope, head_dim, loader.context())?,
            embed_tokens,
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
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}

/// Which layers attend: by name, or every `full_attention_interval`th.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    let Some(types) = config.value()["layer_types"].as_array() else {
        let interval = config.usize_or("full_attention_interval", 4)?;
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect());
    };
    let attends: Vec<bool> = types.iter().map(|of| of == "full_attention").collect();
    if attends.len() != layers {
        return Err(Error::corrupt(format!("layer_types names {} of {layers} layers", attends.len())));
    }
    Ok(attends)
}
