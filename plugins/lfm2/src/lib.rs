//! LFM2 (arXiv 2511.23404): short gated convolutions in most layers, grouped-query attention in the others; and the mixtures of
//! experts of the same kind, whose first layers are dense.
//!
//! Reference: `modeling_lfm2.py` and `modeling_lfm2_moe.py` in Hugging Face transformers; layers carry the names that they
//! have in its checkpoints. Of checkpoints that also see, the text model is loaded.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Activation, Angles, Attention, AttentionCache, Decoder, Embedding, ExpertNames, Experts, GatedMlp, Glu,
        KvShape, LayerCache, Linear, Loader, Paged, RmsNorm, Rope, Router, Scoring, Shape, ShortConv, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, GgufConfig, GgufFamily, Names, RopeConfig},
};

export!(Plugin::new("lfm2", "LFM2, dense and as mixtures of experts").architecture(Paged::<Lfm2>::architecture()));

/// What a checkpoint says about its model.
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    max_position_embeddings: usize,
    norm_eps: f64,
    conv_taps: usize,
    /// Which layers attend; the others convolve.
    attends: Vec<bool>,
    tie_word_embeddings: bool,
    rope: RopeConfig,
    moe: Option<Moe>,
}

/// What it says about experts.
#[derive(Clone, Copy)]
struct Moe {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    /// Layers that are dense, from the first on.
    num_dense_layers: usize,
    routed_scaling_factor: f64,
    norm_topk_prob: bool,
}

impl Config {
    fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }
}

/// Grouped-query attention over normed and rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    out_proj: Linear,
    q_layernorm: RmsNorm,
    k_layernorm: RmsNorm,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (width, head_dim, eps) = (config.hidden_size, config.head_dim(), config.norm_eps);
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        Ok(Self {
            q_proj: loader.linear("q_proj", width, heads * head_dim)?,
            k_proj: loader.linear("k_proj", width, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", width, kv_heads * head_dim)?,
            out_proj: loader.linear("out_proj", heads * head_dim, width)?,
            q_layernorm: RmsNorm::load(loader, "q_layernorm", head_dim, eps)?,
            k_layernorm: RmsNorm::load(loader, "k_layernorm", head_dim, eps)?,
            attention: Attention::new(layer, heads, kv_heads, head_dim)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = self.q_layernorm.forward_heads(&self.q_proj.forward(x, step)?, step)?;
        let k = self.k_layernorm.forward_heads(&self.k_proj.forward(x, step)?, step)?;
        let (q, k, v) = (angles.rotate(&q, step)?, angles.rotate(&k, step)?, self.v_proj.forward(x, step)?);
        self.out_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
    }
}

/// A convolution over the last tokens, gated before and after.
struct GatedConv {
    in_proj: Linear,
    conv: ShortConv,
    out_proj: Linear,
}

impl GatedConv {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let width = config.hidden_size;
        Ok(Self {
            in_proj: loader.linear("in_proj", width, 3 * width)?,
            conv: ShortConv::load(loader, "conv", layer, width, config.conv_taps)?,
            out_proj: loader.linear("out_proj", width, width)?,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (all, width) = (self.in_proj.forward(x, step)?, x.dim(1)?);
        let [before, after, x] = step.split(&all, [width; 3])?;
        let convolved = self.conv.forward(&(before * x)?, step)?;
        self.out_proj.forward(&(after * convolved)?, step)
    }
}

/// The names of gate, what is gated and the way back, in blocks and in experts.
const NAMES: ExpertNames = ExpertNames { gate: "w1", up: "w3", gate_up: "w1_w3", down: "w2" };

/// `w2(silu(w1(x)) · w3(x))`, or the experts that a router chooses.
enum FeedForward {
    Dense(GatedMlp),
    Sparse { gate: Router, experts: Experts },
}

impl FeedForward {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let width = config.hidden_size;
        let Some(moe) = config.moe.filter(|moe| layer >= moe.num_dense_layers) else {
            let inner = config.intermediate_size;
            return Ok(Self::Dense(GatedMlp::load_named(loader, NAMES, width, inner, Activation::Silu)?));
        };
        let router = Router::load(loader, "gate", width, moe.num_experts, moe.num_experts_per_tok)?;
        let router = router.with_correction(loader, &["expert_bias", "expert_bias.bias"], moe.num_experts)?;
        let sizes = (moe.num_experts, width, moe.moe_intermediate_size);
        Ok(Self::Sparse {
            gate: Router {
                scoring: Scoring::Sigmoid,
                renormalize: moe.norm_topk_prob,
                scale: moe.routed_scaling_factor as f32,
                ..router
            },
            experts: Experts::load(&loader.at("experts"), NAMES, sizes, Glu::Plain(Activation::Silu))?,
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x, step),
            Self::Sparse { gate, experts } => experts.forward(x, &gate.forward(x, step)?, step),
        }
    }
}

/// What mixes the tokens of a sequence.
enum Operator {
    Attention(SelfAttention),
    Conv(GatedConv),
}

/// One decoder layer.
struct Block {
    operator_norm: RmsNorm,
    operator: Operator,
    ffn_norm: RmsNorm,
    feed_forward: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let (width, eps) = (config.hidden_size, config.norm_eps);
        Ok(Self {
            operator_norm: RmsNorm::load(loader, "operator_norm", width, eps)?,
            operator: if config.attends[index] {
                Operator::Attention(SelfAttention::load(&loader.at("self_attn"), config, index)?)
            } else {
                Operator::Conv(GatedConv::load(&loader.at("conv"), config, index)?)
            },
            ffn_norm: RmsNorm::load(loader, "ffn_norm", width, eps)?,
            feed_forward: FeedForward::load(&loader.at("feed_forward"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.operator_norm.forward(x, step)?;
        let mixed = match &self.operator {
            Operator::Attention(attention) => attention.forward(&normed, angles, step)?,
            Operator::Conv(conv) => conv.forward(&normed, step)?,
        };
        let x = (x + mixed)?;
        let transformed = self.feed_forward.forward(&self.ffn_norm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// The model.
struct Lfm2 {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    embedding_norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Tensors of GGUF files.
const GGUF_NAMES: Names = &[
    ("token_embd_norm", "model.embedding_norm"),
    ("output_norm", "model.embedding_norm"),
    ("attn_norm", "operator_norm"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("attn_output", "self_attn.out_proj"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_down", "feed_forward.w2"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_gate_inp", "feed_forward.gate"),
    ("ffn_gate_exps", "feed_forward.experts.w1"),
    ("ffn_down_exps", "feed_forward.experts.w2"),
    ("ffn_up_exps", "feed_forward.experts.w3"),
    ("exp_probs_b", "feed_forward.expert_bias"),
];

/// Metadata of GGUF files.
const GGUF_KEYS: Names = &[("attention.layer_norm_rms_epsilon", "norm_eps")];

/// Layers without key-value heads convolve, and the width of the MLPs is the one that they have.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    config.attends_where_heads_are("conv");
    config.set("block_auto_adjust_ff_dim", false);
    Ok(())
}

impl Decoder for Lfm2 {
    const NAME: &'static str = "lfm2";
    const GGUF: &'static [&'static str] = &["lfm2", "lfm2moe"];
    const CLASSES: &'static [&'static str] =
        &["Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"];

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let norm_topk_prob = architecture == "lfm2moe";
        GgufFamily { names: GGUF_NAMES, keys: GGUF_KEYS, norm_topk_prob, complete, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config().with_defaults([("rope_theta", 1e6.into())])?;
        let (hidden_size, num_attention_heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
        let layers = config.usize("num_hidden_layers")?;
        let tied = config.bool_or("tie_word_embeddings", true)?;
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: intermediate_size(&config)?,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 128_000)?,
            norm_eps: config.f64_or("norm_eps", 1e-5)?,
            conv_taps: config.usize_or("conv_L_cache", 3)?,
            attends: attends(&config, layers)?,
            tie_word_embeddings: config.bool_or("tie_embedding", tied)?,
            rope: config.rope()?,
            moe: config.experts()?.map(|experts| moe(&config, experts)).transpose()?,
        })
    }

    fn shape(config: &Config) -> Shape {
        let cache = |attends: &bool| match attends {
            true => LayerCache::Attention(AttentionCache::new(config.num_key_value_heads, config.head_dim())),
            false => ShortConv::cache(config.hidden_size, config.conv_taps),
        };
        Shape {
            vocabulary: config.vocab_size,
            context: config.max_position_embeddings,
            widest: config.intermediate_size.max(3 * config.hidden_size),
            kv: KvShape::new(config.attends.iter().map(cache).collect()),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", config.vocab_size, config.hidden_size)?;
        Ok(Self {
            layers: model.layers(config.attends.len(), |loader, index| Block::load(loader, config, index))?,
            embedding_norm: RmsNorm::load(&model, "embedding_norm", config.hidden_size, config.norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.tie_word_embeddings)?,
            rope: Rope::new(&config.rope, config.head_dim(), loader.context())?,
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
        self.lm_head.forward(&self.embedding_norm.forward(hidden, step)?, step)
    }
}

fn moe(config: &Settings, num_experts: usize) -> Result<Moe> {
    Ok(Moe {
        num_experts,
        num_experts_per_tok: config.usize_or("num_experts_per_tok", 4)?,
        moe_intermediate_size: config.usize_or("moe_intermediate_size", 1792)?,
        num_dense_layers: config
            .find_usize("num_dense_layers")?
            .or(config.find_usize("first_k_dense_replace")?)
            .unwrap_or(2),
        routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
        norm_topk_prob: config.bool_or("norm_topk_prob", true)?,
    })
}

/// The inner width of feed-forward blocks, which configurations give before it is cut to two thirds and rounded up; those of
/// mixtures give it as it is.
fn intermediate_size(config: &Settings) -> Result<usize> {
    if config.experts()?.is_some() {
        return config.usize_or("intermediate_size", 7168);
    }
    let given = config.usize_or("intermediate_size", 12_288)?;
    let given = config.usize_or("block_ff_dim", given)?;
    if !config.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let multiplier = config.f64_or("block_ffn_dim_multiplier", 1.0)?;
    let multiple = config.usize_or("block_multiple_of", 256)?.max(1);
    let adjusted = (multiplier * (2 * given / 3) as f64) as usize;
    Ok(adjusted.div_ceil(multiple) * multiple)
}

/// Which layers attend: by name, by index, or all.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    let attends: Vec<bool> = match config.value()["layer_types"].as_array() {
        Some(types) => types.iter().map(|of| of != "conv").collect(),
        None if config.value()["full_attn_idxs"].is_array() => {
            let attending = config.usizes("full_attn_idxs")?;
            (0..layers).map(|layer| attending.contains(&layer)).collect()
        }
        None => vec![true; layers],
    };
    if attends.len() != layers {
        return Err(Error::corrupt(format!("layer_types names {} of {layers} layers", attends.len())));
    }
    Ok(attends)
}
