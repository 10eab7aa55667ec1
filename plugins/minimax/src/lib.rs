//! MiniMax M2: many small experts, routed by sigmoid scores with a correction; norms over all queries and over all
//! keys, and RoPE on half of each head.
//!
//! Reference: `modeling_minimax_m2.py` in Hugging Face transformers; layers are named as in its checkpoints.
//! Multi-token prediction heads are not loaded.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, Glu, Linear, Loader, Paged, Qkv, RmsNorm, Rope,
        Router, Scoring, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

export!(Plugin::new("minimax", "MiniMax M2").architecture(Paged::<MiniMaxM2>::architecture()));

struct Config {
    sizes: Sizes,
    num_experts: usize,
    num_experts_per_tok: usize,
    /// Inner width of an expert.
    expert_size: usize,
    rope: RopeConfig,
}

/// Grouped-query attention with normalized and rotated queries and keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        let norm = |name, heads| RmsNorm::load(loader, name, heads * head_dim, rms_norm_eps);
        let qkv_proj =
            Qkv::load(loader, hidden_size, &attention)?.with_norms(norm("q_norm", heads)?, norm("k_norm", kv_heads)?);
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

fn block_sparse_moe(loader: &Loader<'_>, config: &Config) -> Result<SparseMlp> {
    let Sizes { hidden_size, hidden_act, .. } = config.sizes;
    let (count, chosen) = (config.num_experts, config.num_experts_per_tok);
    let router = Router::load(loader, "gate", hidden_size, count, chosen)?;
    let correction = ["e_score_correction_bias", "e_score_correction.bias"];
    let router = router.with_correction(loader, &correction, count)?;
    let router = Router { scoring: Scoring::Sigmoid, renormalize: true, ..router };
    let names = ExpertNames { gate: "w1", up: "w3", down: "w2", ..ExpertNames::default() };
    let sizes = (count, hidden_size, config.expert_size);
    let experts = Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?;
    Ok(SparseMlp::new(router, experts))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    block_sparse_moe: SparseMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            block_sparse_moe: block_sparse_moe(&loader.at("block_sparse_moe"), config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.block_sparse_moe.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

struct MiniMaxM2 {
    model: CausalLm<Block>,
    rope: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.experts.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.w2"),
    ("exp_probs_b", "block_sparse_moe.e_score_correction"),
];

impl Decoder for MiniMaxM2 {
    const NAME: &'static str = "minimax-m2";
    const GGUF: &'static [&'static str] = &["minimax-m2"];
    const CLASSES: &'static [&'static str] = &["MiniMaxM2ForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let defaults = [("head_dim", 128.into()), ("max_position_embeddings", 196_608.into())];
        let config = checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(&config)?;
        let mut rope = config.rope()?;
        let is_given = config.value().pointer("/rope_parameters/partial_rotary_factor").is_some();
        // Published checkpoints give the number of rotated values per head.
        if let Some(rotated) = config.find_usize("rotary_dim")?.filter(|_| !is_given) {
            rope.partial_rotary_factor = rotated as f64 / sizes.head_dim as f64;
        }
        let missing = || Error::corrupt("the configuration names no experts");
        Ok(Config {
            num_experts: config.experts()?.ok_or_else(missing)?,
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 8)?,
            expert_size: config.usize_or("moe_intermediate_size", sizes.intermediate_size)?,
            rope,
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
