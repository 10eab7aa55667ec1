//! Nemotron-H, Nemotron Nano 2 and 3 (NVIDIA, arXiv 2504.03624, 2508.14444): each layer is a norm and one mixer:
//! Mamba-2, attention without position encoding (in few layers), a feed-forward block or experts. The last two have no
//! gates.
//!
//! Reference: `modeling_nemotron_h.py` in Hugging Face transformers; layers are named as in its checkpoints.
//! Multi-token prediction heads are not loaded.

mod config;

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Attention, AttentionCache, CausalLm, Decoder, ExpertNames, Experts, Glu, KvShape, LayerCache, Linear, Loader,
        Mamba2, Paged, Qkv, RmsNorm, Router, Scoring, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily, Names},
};

use config::{Config, Kind, MoeSizes};

export!(Plugin::new("nemotron", "Nemotron-H, Nemotron Nano 2 and 3").architecture(Paged::<NemotronH>::architecture()));

/// Grouped-query attention without position encoding.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
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
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, None, step)?, step)
    }
}

/// `down(relu(up(x))²)`.
struct SquaredMlp {
    up_proj: Linear,
    down_proj: Linear,
}

impl SquaredMlp {
    fn load(loader: &Loader<'_>, width: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            up_proj: loader.linear("up_proj", width, inner)?,
            down_proj: loader.linear("down_proj", inner, width)?,
        })
    }

    /// `residual + block(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.down_proj.add_to(residual, &self.up_proj.forward(x, step)?.relu()?.sqr()?, step)
    }
}

/// Routed experts and a shared one, all without gates.
struct Moe {
    experts: SparseMlp,
    shared_experts: SquaredMlp,
}

impl Moe {
    fn load(loader: &Loader<'_>, width: usize, moe: &MoeSizes) -> Result<Self> {
        let router = Router::load(loader, "gate", width, moe.n_routed_experts, moe.num_experts_per_tok)?;
        let names = ["gate.e_score_correction_bias", "gate.e_score_correction.bias"];
        let router = router.with_correction(loader, &names, moe.n_routed_experts)?;
        let router = Router {
            scoring: Scoring::Sigmoid,
            renormalize: moe.norm_topk_prob,
            scale: moe.routed_scaling_factor as f32,
            groups: (moe.groups.count > 1).then_some(moe.groups),
            ..router
        };
        let sizes = (moe.n_routed_experts, width, moe.moe_intermediate_size);
        let experts = Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Square)?;
        let shared = loader.at("shared_experts");
        Ok(Self {
            experts: SparseMlp::new(router, experts),
            shared_experts: SquaredMlp::load(&shared, width, moe.moe_shared_expert_intermediate_size)?,
        })
    }

    /// `residual + block(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.shared_experts.add_to(&self.experts.add_to(residual, x, step)?, x, step)
    }
}

/// The mixer of a layer.
enum Mixer {
    Mamba(Mamba2),
    Attention(SelfAttention),
    Mlp(SquaredMlp),
    Moe(Moe),
}

struct Block {
    norm: RmsNorm,
    mixer: Mixer,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, rms_norm_eps, .. } = config.sizes;
        let mixer = loader.at("mixer");
        let no_experts = || Error::corrupt("the configuration says nothing of the experts that a layer has");
        Ok(Self {
            norm: RmsNorm::load(loader, "norm", hidden_size, rms_norm_eps)?,
            mixer: match config.kinds[index] {
                Kind::Mamba { cache } => Mixer::Mamba(Mamba2::load(&mixer, cache, config.mamba)?),
                Kind::Attention { cache } => Mixer::Attention(SelfAttention::load(&mixer, config, cache)?),
                Kind::Mlp => Mixer::Mlp(SquaredMlp::load(&mixer, hidden_size, intermediate_size)?),
                Kind::Moe => {
                    let moe = config.moe.as_ref().ok_or_else(no_experts)?;
                    Mixer::Moe(Moe::load(&mixer, hidden_size, moe)?)
                }
            },
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.norm.forward(x, step)?;
        match &self.mixer {
            Mixer::Mamba(mamba) => mamba.add_to(x, &normed, step),
            Mixer::Attention(attention) => attention.add_to(x, &normed, step),
            Mixer::Mlp(mlp) => mlp.add_to(x, &normed, step),
            Mixer::Moe(moe) => moe.add_to(x, &normed, step),
        }
    }
}

struct NemotronH(CausalLm<Block>);

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("token_embd", "model.embeddings"),
    ("output_norm", "model.norm_f"),
    ("attn_norm", "norm"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_dt", "mixer.dt_proj"),
    ("ssm_a", "mixer.A"),
    ("ssm_d", "mixer.D"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("ffn_up_exps", "mixer.experts.up_proj"),
    ("ffn_down_exps", "mixer.experts.down_proj"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
    ("exp_probs_b", "mixer.gate.e_score_correction"),
];

impl Decoder for NemotronH {
    const NAME: &'static str = "nemotron-h";
    const GGUF: &'static [&'static str] = &["nemotron_h", "nemotron_h_moe"];
    const CLASSES: &'static [&'static str] = &["NemotronHForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let norm_topk_prob = architecture == "nemotron_h_moe";
        GgufFamily { names: GGUF_NAMES, norm_topk_prob, complete: |config| config.mamba2(), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let Sizes { num_key_value_heads, head_dim, .. } = config.sizes;
        let cache = |kind: &Kind| match kind {
            Kind::Mamba { .. } => Some(config.mamba.cache()),
            Kind::Attention { .. } => Some(LayerCache::Attention(AttentionCache::new(num_key_value_heads, head_dim))),
            Kind::Mlp | Kind::Moe => None,
        };
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(config.mamba.widest()),
            kv: KvShape::new(config.kinds.iter().filter_map(cache).collect()),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let backbone = loader.at("backbone");
        let model = if backbone.has("embeddings.weight") { backbone } else { loader.at("model") };
        let embed_tokens = model.embedding("embeddings", vocab_size, hidden_size)?;
        Ok(Self(CausalLm {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&model, "norm_f", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            embed_tokens,
        }))
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
