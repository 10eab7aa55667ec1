//! Jamba (AI21, arXiv 2403.19887): Mamba layers (2312.00752) but for a few, which are attention without position
//! encoding. Every layer has a feed-forward block, dense or as a mixture of experts.
//!
//! Reference: `modeling_jamba.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Attention, AttentionCache, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp, Glu, KvShape,
        LayerCache, Linear, Loader, Mamba, MambaSizes, Paged, Qkv, RmsNorm, Router, Shape, Sizes, SparseMlp, Step,
        Tensor,
    },
    weights::{Checkpoint, Config as Settings, GgufConfig, GgufFamily, Names},
};

export!(Plugin::new("jamba", "Jamba").architecture(Paged::<Jamba>::architecture()));

struct Config {
    sizes: Sizes,
    /// True for each attention layer; the others are Mamba mixers.
    attends: Vec<bool>,
    /// True for each layer with experts.
    is_sparse: Vec<bool>,
    num_experts: usize,
    num_experts_per_tok: usize,
    mamba: MambaSizes,
}

/// Grouped-query attention without position encoding.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, sizes: &Sizes, layer: usize) -> Result<Self> {
        let &Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } = sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, None, step)?, step)
    }
}

/// The token mixer of a layer.
enum Mixer {
    Attention(SelfAttention),
    Mamba(Mamba),
}

struct Block {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    pre_ff_layernorm: RmsNorm,
    feed_forward: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            mixer: if config.attends[index] {
                Mixer::Attention(SelfAttention::load(&loader.at("self_attn"), &config.sizes, index)?)
            } else {
                Mixer::Mamba(Mamba::load(&loader.at("mamba"), index, config.mamba)?)
            },
            pre_ff_layernorm: RmsNorm::load(loader, "pre_ff_layernorm", hidden_size, rms_norm_eps)?,
            feed_forward: feed_forward(&loader.at("feed_forward"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let x = match &self.mixer {
            Mixer::Attention(attention) => attention.add_to(x, &normed, step)?,
            Mixer::Mamba(mamba) => mamba.add_to(x, &normed, step)?,
        };
        self.feed_forward.add_to(&x, &self.pre_ff_layernorm.forward(&x, step)?, step)
    }
}

/// The feed-forward block of a layer. The weights of the chosen experts do not add up to one.
fn feed_forward(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    if !config.is_sparse[layer] {
        return Ok(FeedForward::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
    }
    let count = config.num_experts;
    let router = Router::load(loader, "router", hidden_size, count, config.num_experts_per_tok)?;
    let sizes = (count, hidden_size, intermediate_size);
    let experts = Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?;
    Ok(FeedForward::Sparse(SparseMlp::new(router, experts)))
}

struct Jamba(CausalLm<Block>);

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("ffn_norm", "pre_ff_layernorm"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_x", "mamba.x_proj"),
    ("ssm_dt", "mamba.dt_proj"),
    ("ssm_dt_norm", "mamba.dt_layernorm"),
    ("ssm_b_norm", "mamba.b_layernorm"),
    ("ssm_c_norm", "mamba.c_layernorm"),
    ("ssm_a", "mamba.A"),
    ("ssm_d", "mamba.D"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ffn_gate_inp", "feed_forward.router"),
    ("ffn_gate_exps", "feed_forward.experts.gate_proj"),
    ("ffn_up_exps", "feed_forward.experts.up_proj"),
    ("ffn_down_exps", "feed_forward.experts.down_proj"),
];

const GGUF_KEYS: Names = &[
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.inner_size", "mamba_d_inner"),
    ("ssm.time_step_rank", "mamba_dt_rank"),
];

fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    config.attends_where_heads_are("linear_attention");
    config.rename(GGUF_KEYS)
}

impl Decoder for Jamba {
    const NAME: &'static str = "jamba";
    const GGUF: &'static [&'static str] = &["jamba"];
    const CLASSES: &'static [&'static str] = &["JambaForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, complete, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let defaults = [
            ("tie_word_embeddings", false.into()),
            ("num_key_value_heads", 8.into()),
            ("max_position_embeddings", 262_144.into()),
            ("num_experts_per_tok", 2.into()),
        ];
        let config = checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(&config)?;
        let layers = sizes.num_hidden_layers;
        // The router is only where there are several experts.
        let has_router =
            |layer| checkpoint.weights().contains(&format!("model.layers.{layer}.feed_forward.router.weight"));
        Ok(Config {
            attends: attends(&config, layers)?,
            is_sparse: (0..layers).map(has_router).collect(),
            num_experts: config.experts()?.unwrap_or(1),
            num_experts_per_tok: config.usize("num_experts_per_tok")?,
            mamba: mamba(&config, &sizes)?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        let Sizes { num_key_value_heads, head_dim, .. } = config.sizes;
        let cache = |attends: &bool| match attends {
            true => LayerCache::Attention(AttentionCache::new(num_key_value_heads, head_dim)),
            false => config.mamba.cache(),
        };
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(config.mamba.widest()),
            kv: KvShape::new(config.attends.iter().map(cache).collect()),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        let norm = |model: &Loader<'_>| {
            let name = if model.has("final_layernorm.weight") { "final_layernorm" } else { "norm" };
            RmsNorm::load(model, name, hidden_size, rms_norm_eps)
        };
        let block = |loader: &Loader<'_>, layer: usize| Block::load(loader, config, layer);
        CausalLm::load_with_norm(loader, &config.sizes, norm, block).map(Self)
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        self.0.hidden(step, Block::forward)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.features(hidden, step)
    }
}

/// The attention layers: by `layer_types`, or one in every `attn_layer_period` layers.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = config.layer_types("layer_types", layers)? {
        return Ok(types.iter().map(|of| of == "full_attention").collect());
    }
    let (period, offset) = (config.usize_or("attn_layer_period", 8)?, config.usize_or("attn_layer_offset", 4)?);
    Ok((0..layers).map(|layer| layer.checked_rem(period) == Some(offset)).collect())
}

fn mamba(config: &Settings, sizes: &Sizes) -> Result<MambaSizes> {
    let hidden_size = sizes.hidden_size;
    let expanded = hidden_size.saturating_mul(config.usize_or("mamba_expand", 2)?);
    let is_auto = config.value()["mamba_dt_rank"].as_str() == Some("auto");
    let rank = hidden_size.div_ceil(16);
    Ok(MambaSizes {
        hidden_size,
        intermediate_size: config.usize_or("mamba_d_inner", expanded)?,
        state: config.usize_or("mamba_d_state", 16)?,
        taps: config.usize_or("mamba_d_conv", 4)?,
        time_step_rank: if is_auto { rank } else { config.usize_or("mamba_dt_rank", rank)? },
        norm_eps: Some(sizes.rms_norm_eps),
    })
}
