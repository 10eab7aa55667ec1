//! DeepSeek-V2 (arXiv 2405.04434) and V3 (2412.19437), and GLM-4.7-Flash: multi-head latent attention, which caches one
//! latent per token for the keys and values of all heads, and mixtures with shared experts.
//!
//! Reference: `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py` and `modeling_glm4_moe_lite.py` in Hugging Face
//! transformers; layers are named as in its checkpoints. The up-projections from latents to keys and values are
//! absorbed into queries and outputs (2405.04434, section 2.1.2), so adapters on `kv_b_proj` are refused.

mod config;
mod gguf;

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, AttentionCache, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp, Glu,
        KvShape, LayerCache, Linear, Loader, Paged, RmsNorm, Rope, Router, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily},
};

use config::Config;

export!(Plugin::new("deepseek", "DeepSeek-V2 and V3, GLM-4.7-Flash").architecture(Paged::<DeepSeek>::architecture()));

/// Epsilon of the latents' norms, which configurations do not contain.
const LATENT_EPS: f64 = 1e-6;

/// The projection of queries, direct or low-rank.
enum Queries {
    Direct(Linear),
    Latent { q_a_proj: Linear, q_a_layernorm: RmsNorm, q_b_proj: Linear },
}

/// Multi-head latent attention, with the up-projections absorbed.
struct LatentAttention {
    queries: Queries,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: RmsNorm,
    /// Maps a head's query to the latent space: `[heads, qk_nope_head_dim, kv_lora_rank]`.
    absorb_k: Tensor,
    /// Maps a head's latent output to values: `[heads, kv_lora_rank, v_head_dim]`.
    absorb_v: Tensor,
    o_proj: Linear,
    attention: Attention,
    nope: usize,
    rotated: usize,
}

impl LatentAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size: width, num_attention_heads: heads, .. } = config.sizes;
        let (rank, nope, rotated) = (config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim);
        let (value, of_queries) = (config.v_head_dim, heads * (nope + rotated));
        let queries = match config.q_lora_rank {
            Some(rank) => Queries::Latent {
                q_a_proj: loader.linear("q_a_proj", width, rank)?,
                q_a_layernorm: RmsNorm::load(loader, "q_a_layernorm", rank, LATENT_EPS)?,
                q_b_proj: loader.linear("q_b_proj", rank, of_queries)?,
            },
            None => Queries::Direct(loader.linear("q_proj", width, of_queries)?),
        };
        // GGUF files have the two parts as separate tensors, with the keys' part transposed.
        let (absorb_k, absorb_v) = if loader.has("k_b_proj.weight") {
            let keys = loader.dense("k_b_proj.weight", &[heads, rank, nope])?;
            (keys.transpose(1, 2)?, loader.dense("v_b_proj.weight", &[heads, value, rank])?)
        } else {
            let both = loader.dense("kv_b_proj.weight", &[heads * (nope + value), rank])?;
            let both = both.reshape((heads, nope + value, rank))?;
            (both.narrow(1, 0, nope)?, both.narrow(1, nope, value)?)
        };
        Ok(Self {
            queries,
            kv_a_proj_with_mqa: loader.linear("kv_a_proj_with_mqa", width, rank + rotated)?,
            kv_a_layernorm: RmsNorm::load(loader, "kv_a_layernorm", rank, LATENT_EPS)?,
            absorb_k: absorb_k.contiguous()?,
            absorb_v: absorb_v.transpose(1, 2)?.contiguous()?,
            o_proj: loader.linear("o_proj", heads * value, width)?,
            attention: Attention {
                value_dim: rank,
                scale: config.scale as f32,
                ..Attention::new(layer, heads, 1, rank + rotated)?
            },
            nope,
            rotated,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = match &self.queries {
            Queries::Direct(q_proj) => q_proj.forward(x, step)?,
            Queries::Latent { q_a_proj, q_a_layernorm, q_b_proj } => {
                q_b_proj.forward(&q_a_layernorm.forward(&q_a_proj.forward(x, step)?, step)?, step)?
            }
        };
        let (tokens, heads, rank) = (x.dim(0)?, self.attention.heads, self.attention.value_dim);
        let q = q.reshape((tokens, heads, self.nope + self.rotated))?;
        let rotated = q.narrow(2, self.nope, self.rotated)?.contiguous()?.reshape((tokens, heads * self.rotated))?;
        let rotated = angles.rotate(&rotated, step)?.reshape((tokens, heads, self.rotated))?;
        let q = q.narrow(2, 0, self.nope)?.transpose(0, 1)?.contiguous()?.matmul(&self.absorb_k)?;
        let q = Tensor::cat(&[&q.transpose(0, 1)?, &rotated], 2)?.reshape((tokens, heads * (rank + self.rotated)))?;

        let latent = self.kv_a_proj_with_mqa.forward(x, step)?;
        let [latent, rotated] = step.split(&latent, [rank, self.rotated])?;
        let (latent, rotated) = (self.kv_a_layernorm.forward(&latent, step)?, angles.rotate(&rotated, step)?);
        let k = Tensor::cat(&[&latent, &rotated], 1)?.contiguous()?;

        let out = self.attention.forward_latent(&q, &k, step)?.reshape((tokens, heads, rank))?;
        let out = out.transpose(0, 1)?.contiguous()?.matmul(&self.absorb_v)?;
        let out = out.transpose(0, 1)?.contiguous()?.flatten_from(1)?;
        self.o_proj.add_to(residual, &out, step)
    }
}

/// The feed-forward block of a layer: dense, or routed and shared experts.
fn mlp(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    let Some(moe) = config.moe.as_ref().filter(|_| !config.dense[layer]) else {
        return Ok(FeedForward::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
    };
    let (count, inner) = (moe.n_routed_experts, moe.moe_intermediate_size);
    let names = ["gate.e_score_correction_bias", "gate.e_score_correction.bias"];
    let router = Router::load(loader, "gate", hidden_size, count, moe.num_experts_per_tok)?;
    let router = router.with_correction(loader, &names, count)?;
    let router = Router {
        scoring: moe.scoring,
        renormalize: moe.norm_topk_prob,
        scale: moe.routed_scaling_factor as f32,
        groups: moe.groups,
        ..router
    };
    let (sizes, names) = ((count, hidden_size, inner), ExpertNames::default());
    let experts = Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?;
    let shared = inner * moe.n_shared_experts;
    let shared_experts = GatedMlp::load(&loader.at("shared_experts"), hidden_size, shared, hidden_act)?;
    Ok(FeedForward::Sparse(SparseMlp::new(router, experts).with_shared(shared_experts)))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: LatentAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: LatentAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

struct DeepSeek {
    model: CausalLm<Block>,
    rope: Rope,
}

impl Decoder for DeepSeek {
    const NAME: &'static str = "deepseek";
    const GGUF: &'static [&'static str] = &["deepseek2"];
    const CLASSES: &'static [&'static str] =
        &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::family()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let cache =
            AttentionCache { value_dim: 0, ..AttentionCache::new(1, config.kv_lora_rank + config.qk_rope_head_dim) };
        let heads = config.sizes.num_attention_heads;
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(heads * (config.kv_lora_rank + config.qk_rope_head_dim)),
            kv: KvShape::new(vec![LayerCache::Attention(cache); config.sizes.num_hidden_layers]),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.qk_rope_head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }
}
