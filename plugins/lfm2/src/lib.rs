//! LFM2 (arXiv 2511.23404): short gated convolutions in most layers, grouped-query attention in the others; also its
//! mixture-of-experts variants, whose first layers are dense.
//!
//! Reference: `modeling_lfm2.py` and `modeling_lfm2_moe.py` in Hugging Face transformers; layers are named as in its
//! checkpoints.

mod config;
mod vision;

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Activation, Angles, Attention, AttentionCache, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp,
        Glu, KvShape, LayerCache, Linear, Loader, Paged, Qkv, RmsNorm, Rope, Router, Scoring, Shape, ShortConv,
        SparseMlp, Step, Tensor,
        vision::{Processor, Tower},
    },
    weights::{Checkpoint, GgufConfig, GgufFamily, Names},
};

use config::Config;
use vision::Lfm2Vision;

export!(Plugin::new("lfm2", "LFM2, dense and as mixtures of experts").architecture(Paged::<Lfm2>::architecture()));

/// Grouped-query attention with normalized and rotated queries and keys.
struct SelfAttention {
    qkv_proj: Qkv,
    out_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (width, head_dim) = (config.hidden_size, config.head_dim());
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let norm = |name| RmsNorm::load(loader, name, head_dim, config.norm_eps);
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        let qkv_proj = Qkv::load(loader, width, &attention)?;
        Ok(Self {
            qkv_proj: qkv_proj.with_norms(norm("q_layernorm")?, norm("k_layernorm")?),
            out_proj: loader.linear("out_proj", heads * head_dim, width)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.out_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
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

    /// `residual + conv(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (bcx, width) = (self.in_proj.forward(x, step)?, x.dim(1)?);
        let [b, c, x] = step.split(&bcx, [width; 3])?;
        let conv_out = self.conv.forward(&(b * x)?, step)?;
        self.out_proj.add_to(residual, &(c * conv_out)?, step)
    }
}

/// Names of the gate, up and down projections, in dense blocks and in experts.
const NAMES: ExpertNames = ExpertNames { gate: "w1", up: "w3", gate_up: "w1_w3", down: "w2" };

/// `w2(silu(w1(x)) · w3(x))`, or routed experts.
fn feed_forward(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<FeedForward> {
    let width = config.hidden_size;
    let Some(moe) = config.moe.filter(|moe| layer >= moe.num_dense_layers) else {
        let inner = config.intermediate_size;
        return Ok(FeedForward::Dense(GatedMlp::load_named(loader, NAMES, width, inner, Activation::Silu)?));
    };
    let router = Router::load(loader, "gate", width, moe.num_experts, moe.num_experts_per_tok)?;
    let router = router.with_correction(loader, &["expert_bias", "expert_bias.bias"], moe.num_experts)?;
    let router = Router {
        scoring: Scoring::Sigmoid,
        renormalize: moe.norm_topk_prob,
        scale: moe.routed_scaling_factor as f32,
        ..router
    };
    let sizes = (moe.num_experts, width, moe.moe_intermediate_size);
    let experts = Experts::load(&loader.at("experts"), NAMES, sizes, Glu::Plain(Activation::Silu))?;
    Ok(FeedForward::Sparse(SparseMlp::new(router, experts)))
}

/// The token mixer of a layer.
enum Operator {
    Attention(SelfAttention),
    Conv(GatedConv),
}

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
            feed_forward: feed_forward(&loader.at("feed_forward"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.operator_norm.forward(x, step)?;
        let x = match &self.operator {
            Operator::Attention(attention) => attention.add_to(x, &normed, angles, step)?,
            Operator::Conv(conv) => conv.add_to(x, &normed, step)?,
        };
        self.feed_forward.add_to(&x, &self.ffn_norm.forward(&x, step)?, step)
    }
}

struct Lfm2 {
    model: CausalLm<Block>,
    rope: Rope,
    vision: Option<Lfm2Vision>,
}

/// GGUF tensor names and transformers' names.
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

/// GGUF metadata keys and transformers' keys.
const GGUF_KEYS: Names = &[("attention.layer_norm_rms_epsilon", "norm_eps")];

/// Layers without key-value heads are convolutions, and GGUF gives the MLPs' final width.
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
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let norm_topk_prob = architecture == "lfm2moe";
        let tower = Some(&vision::TOWER);
        GgufFamily { names: GGUF_NAMES, keys: GGUF_KEYS, norm_topk_prob, complete, tower, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
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
        let model = CausalLm {
            layers: model.layers(config.attends.len(), |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&model, "embedding_norm", config.hidden_size, config.norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.tie_word_embeddings)?,
            embed_tokens,
        };
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let vision = vision.map(|vision| Lfm2Vision::load(loader, vision, config.hidden_size)).transpose()?;
        Ok(Self { model, rope: Rope::new(&config.rope, config.head_dim(), loader.context())?, vision })
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
