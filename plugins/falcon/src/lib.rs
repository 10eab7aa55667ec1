//! Falcon-H1 (arXiv 2507.22448): in every layer, grouped-query attention and a Mamba-2 mixer run in parallel after one
//! norm, and their outputs are added. A dozen multipliers (µP) scale activations.
//!
//! Reference: `modeling_falcon_h1.py` in Hugging Face transformers; layers are named as in its checkpoints. Files in
//! GGUF have the multipliers within their weights.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Activation, Angles, Attention, AttentionCache, CausalLm, Decoder, GatedNorm, KvShape, LayerCache, Linear,
        Loader, Mamba2, Mamba2Sizes, Paged, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, Names, RopeConfig},
};

export!(Plugin::new("falcon", "Falcon-H1").architecture(Paged::<FalconH1>::architecture()));

struct Config {
    sizes: Sizes,
    mamba: Mamba2Sizes,
    rope: RopeConfig,
    multipliers: Multipliers,
}

/// Activation multipliers, named as in the configuration.
#[derive(Clone, Copy)]
struct Multipliers {
    embedding: f64,
    lm_head: f64,
    key: f64,
    attention_in: f64,
    attention_out: f64,
    ssm_in: f64,
    ssm_out: f64,
    /// For the mixer's gate, `x`, `B`, `C` and `dt`.
    ssm: [f64; 5],
    /// For a feed-forward block's gate and its output.
    mlp: [f64; 2],
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    key_multiplier: f64,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, cache: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention = Attention::new(cache, heads, kv_heads, head_dim)?;
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            key_multiplier: config.multipliers.key,
            attention,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        let k = (k * self.key_multiplier)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// `down(silu(gate(x) · m) · up(x)) · n`.
struct FeedForward {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act: Activation,
    multipliers: [f64; 2],
}

impl FeedForward {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        Ok(Self {
            gate_proj: loader.linear("gate_proj", hidden_size, intermediate_size)?,
            up_proj: loader.linear("up_proj", hidden_size, intermediate_size)?,
            down_proj: loader.linear("down_proj", intermediate_size, hidden_size)?,
            act: hidden_act,
            multipliers: config.multipliers.mlp,
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], x, step)?;
        let inner = step.ops().gate(&(gate * self.multipliers[0])?, &up, self.act)?;
        Ok((self.down_proj.forward(&inner, step)? * self.multipliers[1])?)
    }
}

struct Block {
    input_layernorm: RmsNorm,
    mamba: Mamba2,
    self_attn: SelfAttention,
    pre_ff_layernorm: RmsNorm,
    feed_forward: FeedForward,
    multipliers: Multipliers,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        let mamba = Mamba2::load(&loader.at("mamba"), 2 * index, config.mamba)?;
        // In GGUF files this name has no `.weight`.
        let norm = "pre_ff_layernorm";
        let pre_ff_layernorm = if loader.has(norm) {
            RmsNorm::of(loader.vector(norm, hidden_size)?, rms_norm_eps)
        } else {
            RmsNorm::load(loader, norm, hidden_size, rms_norm_eps)?
        };
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            mamba: mamba.multiplied_by(loader, config.multipliers.ssm)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, 2 * index + 1)?,
            pre_ff_layernorm,
            feed_forward: FeedForward::load(&loader.at("feed_forward"), config)?,
            multipliers: config.multipliers,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let Multipliers { attention_in, attention_out, ssm_in, ssm_out, .. } = self.multipliers;
        let normed = self.input_layernorm.forward(x, step)?;
        let ssm_out = (self.mamba.forward(&(&normed * ssm_in)?, step)? * ssm_out)?;
        let attn_out = (self.self_attn.forward(&(normed * attention_in)?, angles, step)? * attention_out)?;
        let x = step.ops().add(x, &step.ops().add(&ssm_out, &attn_out)?)?;
        let mlp_out = self.feed_forward.forward(&self.pre_ff_layernorm.forward(&x, step)?, step)?;
        step.ops().add(&x, &mlp_out)
    }
}

struct FalconH1 {
    model: CausalLm<Block>,
    rope: Rope,
    multipliers: Multipliers,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("output_norm", "model.final_layernorm"),
    ("ffn_norm", "pre_ff_layernorm"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_dt", "mamba.dt_proj"),
    ("ssm_a", "mamba.A"),
    ("ssm_d", "mamba.D"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

impl Decoder for FalconH1 {
    const NAME: &'static str = "falcon-h1";
    const GGUF: &'static [&'static str] = &["falcon-h1"];
    const CLASSES: &'static [&'static str] = &["FalconH1ForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, complete: |config| config.mamba2(), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config().with_defaults([
            ("rms_norm_eps", 1e-5.into()),
            ("max_position_embeddings", 8192.into()),
            ("tie_word_embeddings", false.into()),
            ("mamba_d_ssm", 1024.into()),
        ])?;
        let sizes = Sizes::read(&config)?;
        let mamba = Mamba2Sizes::read(&config, sizes.rms_norm_eps)?;
        Ok(Config {
            mamba: Mamba2Sizes { norm: norm(checkpoint, &config)?, ..mamba },
            rope: config.rope()?,
            multipliers: multipliers(&config)?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        let Sizes { num_key_value_heads, head_dim, num_hidden_layers, .. } = config.sizes;
        let attention = LayerCache::Attention(AttentionCache::new(num_key_value_heads, head_dim));
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(config.mamba.widest()),
            kv: KvShape::new(vec![[config.mamba.cache(), attention]; num_hidden_layers].concat()),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load_with_norm(
                loader,
                &config.sizes,
                |model| RmsNorm::load(model, "final_layernorm", config.sizes.hidden_size, config.sizes.rms_norm_eps),
                |loader, layer| Block::load(loader, config, layer),
            )?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            multipliers: config.multipliers,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let x = (self.model.embed_tokens.forward(step)? * self.multipliers.embedding)?;
        self.model.hidden_from(x, step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok((self.model.logits(hidden, step)? * self.multipliers.lm_head)?)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}

/// The norm after the recurrence, if any: from the configuration, or in GGUF files from the tensors.
fn norm(checkpoint: &Checkpoint, config: &Settings) -> Result<GatedNorm> {
    if checkpoint.format() == Format::Gguf {
        let is_there = checkpoint.weights().contains("model.layers.0.mamba.norm.weight");
        return Ok(if is_there { GatedNorm::AfterGate } else { GatedNorm::Absent });
    }
    let is_first = config.bool_or("mamba_norm_before_gate", true)?;
    Ok(match config.bool_or("mamba_rms_norm", false)? {
        false => GatedNorm::Absent,
        true if is_first => GatedNorm::BeforeGate,
        true => GatedNorm::AfterGate,
    })
}

fn multipliers(config: &Settings) -> Result<Multipliers> {
    let one = |key: &str| config.f64_or(key, 1.0);
    Ok(Multipliers {
        embedding: one("embedding_multiplier")?,
        lm_head: one("lm_head_multiplier")?,
        key: one("key_multiplier")?,
        attention_in: one("attention_in_multiplier")?,
        attention_out: one("attention_out_multiplier")?,
        ssm_in: one("ssm_in_multiplier")?,
        ssm_out: one("ssm_out_multiplier")?,
        ssm: list(config, "ssm_multipliers")?,
        mlp: list(config, "mlp_multipliers")?,
    })
}

/// The `N` multipliers under this key; all 1 if absent.
fn list<const N: usize>(config: &Settings, key: &str) -> Result<[f64; N]> {
    let Some(given) = config.value().get(key).filter(|value| !value.is_null()) else { return Ok([1.0; N]) };
    let wrong = || Error::corrupt(format!("the configuration's '{key}' is no list of {N} numbers"));
    let given = given.as_array().ok_or_else(wrong)?.iter().map(|number| number.as_f64().ok_or_else(wrong));
    given.collect::<Result<Vec<f64>>>()?.try_into().map_err(|_| wrong())
}
