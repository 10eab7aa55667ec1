//! ERNIE 4.5 (Baidu), dense and as mixtures of experts: Llama with interleaved RoPE, a correction added to router
//! scores, and shared experts.
//!
//! Reference: `modeling_ernie4_5.py` and `modeling_ernie4_5_moe.py` in Hugging Face transformers; layers are named as
//! in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp, Glu, Linear, Loader, Paged,
        Qkv, RmsNorm, Rope, Router, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, GgufRope, Names, RopeConfig, RopeStyle},
};

export!(Plugin::new("ernie", "ERNIE 4.5").architecture(Paged::<Ernie>::architecture()));

struct Config {
    sizes: Sizes,
    moe: Option<Moe>,
    rope: RopeConfig,
}

/// Sizes of a mixture and settings of its router.
struct Moe {
    num_experts: usize,
    top_k: usize,
    intermediate_size: usize,
    num_shared_experts: usize,
    /// True for each dense layer.
    dense: Vec<bool>,
}

/// Grouped-query attention with rotated queries and keys.
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

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// The feed-forward block of a layer: dense, or routed and shared experts.
fn mlp(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    let Some(moe) = config.moe.as_ref().filter(|moe| !moe.dense[layer]) else {
        return Ok(FeedForward::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
    };
    let router = Router::load(loader, "gate", hidden_size, moe.num_experts, moe.top_k)?;
    let names = ["moe_statics.e_score_correction_bias", "moe_statics.e_score_correction.bias"];
    let router = router.with_correction(loader, &names, moe.num_experts)?;
    let sizes = (moe.num_experts, hidden_size, moe.intermediate_size);
    let experts = Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?;
    let mut mlp = SparseMlp::new(Router { renormalize: true, ..router }, experts);
    if moe.num_shared_experts > 0 {
        let shared = moe.num_shared_experts * moe.intermediate_size;
        mlp = mlp.with_shared(GatedMlp::load(&loader.at("shared_experts"), hidden_size, shared, hidden_act)?);
    }
    Ok(FeedForward::Sparse(mlp))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

struct Ernie {
    model: CausalLm<Block>,
    rope: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("exp_probs_b", "mlp.moe_statics.e_score_correction"),
];

impl Decoder for Ernie {
    const NAME: &'static str = "ernie4_5";
    const GGUF: &'static [&'static str] = &["ernie4_5", "ernie4_5-moe"];
    const CLASSES: &'static [&'static str] =
        &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5_MoeForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, rope: GgufRope::Interleaved, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let is_moe = checkpoint.architecture().to_lowercase().contains("moe");
        let defaults = [("rms_norm_eps", 1e-5.into()), ("max_position_embeddings", 131_072.into())];
        let mut config = checkpoint.config().with_defaults(defaults)?;
        if !is_moe {
            config = config.with_defaults([("head_dim", 128.into())])?;
        }
        let sizes = Sizes::read(&config)?;
        Ok(Config {
            moe: if is_moe { Some(moe(checkpoint, &config, sizes.num_hidden_layers)?) } else { None },
            rope: RopeConfig { style: RopeStyle::Interleaved, ..config.rope()? },
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
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

/// Reads the sizes of a mixture under the configuration's names or GGUF's.
fn moe(checkpoint: &Checkpoint, config: &Settings, layers: usize) -> Result<Moe> {
    let first = config.usize_or("moe_layer_start_index", config.usize_or("first_k_dense_replace", 1)?)?;
    // The last layer with experts; -1 means the last layer of the model.
    let last = config.value()["moe_layer_end_index"].as_u64().map_or(layers, |last| last as usize);
    let interval = config.usize_or("moe_layer_interval", 1)?.max(1);
    let is_gguf = checkpoint.format() == Format::Gguf;
    let is_sparse = |layer: usize| match is_gguf {
        // GGUF has no key for the last layer with experts.
        true => checkpoint.weights().contains(&format!("model.layers.{layer}.mlp.gate.weight")),
        false => layer >= first && layer <= last && (layer + 1).is_multiple_of(interval),
    };
    let gguf = |key: &str, name: &str, default: usize| -> Result<usize> {
        Ok(config.find_usize(key)?.or(config.find_usize(name)?).unwrap_or(default))
    };
    Ok(Moe {
        num_experts: gguf("moe_num_experts", "num_local_experts", 64)?,
        top_k: gguf("moe_k", "num_experts_per_tok", 6)?,
        intermediate_size: config.usize_or("moe_intermediate_size", 1536)?,
        num_shared_experts: gguf("moe_num_shared_experts", "n_shared_experts", 2)?,
        dense: (0..layers).map(|layer| !is_sparse(layer)).collect(),
    })
}
