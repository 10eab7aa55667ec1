//! Nemotron-H, Nemotron Nano 2 and 3 (NVIDIA, arXiv 2504.03624, 2508.14444): layers that each do one thing, behind one norm: state spaces as in
//! Mamba-2, a little attention that knows no positions, feed-forward blocks, or experts. Neither of the last two has gates.
//!
//! Reference: `modeling_nemotron_h.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints. Heads that
//! predict several tokens are left out.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Attention, AttentionCache, Decoder, Embedding, ExpertNames, Experts, GatedNorm, Glu, Groups, KvShape,
        LayerCache, Linear, Loader, Mamba2, Mamba2Sizes, Paged, RmsNorm, Router, Scoring, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, Names},
};

export!(Plugin::new("nemotron", "Nemotron-H, Nemotron Nano 2 and 3").architecture(Paged::<NemotronH>::architecture()));

/// What a checkpoint says about its model.
struct Config {
    sizes: Sizes,
    kinds: Vec<Kind>,
    mamba: Mamba2Sizes,
    moe: Option<Moe>,
}

/// What a layer does, and where it remembers.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba { cache: usize },
    Attention { cache: usize },
    Mlp,
    Moe,
}

/// What a configuration says about experts.
#[derive(Clone, Copy)]
struct Moe {
    n_routed_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    moe_shared_expert_intermediate_size: usize,
    routed_scaling_factor: f64,
    norm_topk_prob: bool,
    groups: Groups,
}

/// Grouped-query attention without positions.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, cache: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention: Attention::new(cache, heads, kv_heads, head_dim)?,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
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

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.down_proj.forward(&self.up_proj.forward(x, step)?.relu()?.sqr()?, step)
    }
}

/// The experts that a router chooses, and one that all tokens share.
struct SparseMlp {
    gate: Router,
    experts: Experts,
    shared_experts: SquaredMlp,
}

impl SparseMlp {
    fn load(loader: &Loader<'_>, width: usize, moe: &Moe) -> Result<Self> {
        let router = Router::load(loader, "gate", width, moe.n_routed_experts, moe.num_experts_per_tok)?;
        let names = ["gate.e_score_correction_bias", "gate.e_score_correction.bias"];
        let router = router.with_correction(loader, &names, moe.n_routed_experts)?;
        let sizes = (moe.n_routed_experts, width, moe.moe_intermediate_size);
        Ok(Self {
            gate: Router {
                scoring: Scoring::Sigmoid,
                renormalize: moe.norm_topk_prob,
                scale: moe.routed_scaling_factor as f32,
                groups: (moe.groups.count > 1).then_some(moe.groups),
                ..router
            },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Square)?,
            shared_experts: SquaredMlp::load(
                &loader.at("shared_experts"),
                width,
                moe.moe_shared_expert_intermediate_size,
            )?,
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let routed = self.experts.forward(x, &self.gate.forward(x, step)?, step)?;
        Ok((routed + self.shared_experts.forward(x, step)?)?)
    }
}

/// What a layer does.
enum Mixer {
    Mamba(Mamba2),
    Attention(SelfAttention),
    Mlp(SquaredMlp),
    Moe(SparseMlp),
}

/// One layer.
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
                    Mixer::Moe(SparseMlp::load(&mixer, hidden_size, moe)?)
                }
            },
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.norm.forward(x, step)?;
        let mixed = match &self.mixer {
            Mixer::Mamba(mamba) => mamba.forward(&normed, step)?,
            Mixer::Attention(attention) => attention.forward(&normed, step)?,
            Mixer::Mlp(mlp) => mlp.forward(&normed, step)?,
            Mixer::Moe(moe) => moe.forward(&normed, step)?,
        };
        Ok((x + mixed)?)
    }
}

/// The model.
struct NemotronH {
    embeddings: Embedding,
    layers: Vec<Block>,
    norm_f: RmsNorm,
    lm_head: Linear,
}

/// Tensors of GGUF files.
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

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let norm_topk_prob = architecture == "nemotron_h_moe";
        GgufFamily { names: GGUF_NAMES, norm_topk_prob, complete: |config| config.mamba2(), ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let eps = checkpoint.config().f64_or("layer_norm_epsilon", 1e-5)?;
        let kinds = kinds(checkpoint)?;
        let defaults = [
            ("rms_norm_eps", eps.into()),
            ("num_hidden_layers", kinds.len().into()),
            ("head_dim", 128.into()),
            ("max_position_embeddings", 4096.into()),
        ];
        let config = checkpoint.config().with_defaults(defaults)?;
        if config.find_usize("moe_latent_size")?.is_some() {
            return Err(Error::declined("its experts work on a latent, which is not computed"));
        }
        let is_square = config.str_or("mlp_hidden_act", "relu2")? == "relu2";
        if !is_square {
            return Err(Error::declined("'mlp_hidden_act' is not relu2, which is all that is computed"));
        }
        let sizes = Sizes { num_hidden_layers: kinds.len(), ..Sizes::read(&config)? };
        Ok(Config {
            mamba: mamba(checkpoint.format(), &config, sizes.rms_norm_eps)?,
            moe: if kinds.contains(&Kind::Moe) { Some(moe(&config)?) } else { None },
            kinds,
            sizes,
        })
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
        let embeddings = model.embedding("embeddings", vocab_size, hidden_size)?;
        Ok(Self {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm_f: RmsNorm::load(&model, "norm_f", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embeddings, config.sizes.tie_word_embeddings)?,
            embeddings,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let mut x = self.embeddings.forward(step)?;
        for layer in &self.layers {
            x = layer.forward(&x, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm_f.forward(hidden, step)?, step)
    }
}

/// What each layer is, by the tensors that it has: configurations have several ways to say it, and GGUF files none.
fn kinds(checkpoint: &Checkpoint) -> Result<Vec<Kind>> {
    let mut cache = 0;
    let mut next = || {
        cache += 1;
        cache - 1
    };
    let layers = declared_layers(checkpoint.config())?;
    let kind = |layer: usize| {
        let has = |part: &str| {
            ["backbone", "model"]
                .iter()
                .any(|model| checkpoint.weights().contains(&format!("{model}.layers.{layer}.mixer.{part}.weight")))
        };
        match () {
            () if has("in_proj") => Ok(Kind::Mamba { cache: next() }),
            () if has("q_proj") => Ok(Kind::Attention { cache: next() }),
            () if has("gate") => Ok(Kind::Moe),
            () if has("up_proj") => Ok(Kind::Mlp),
            () => Err(Error::corrupt(format!(
                "`layers.{layer}`, of {layers} layers, has none of the weights that layers of Nemotron-H have"
            ))
            .help("the checkpoint is incomplete: download it again")),
        }
    };
    (0..layers).map(kind).collect()
}

/// How many layers there are: by their number, or by the pattern that has a letter or a name for each.
fn declared_layers(config: &Settings) -> Result<usize> {
    let value = config.value();
    let named = || value["layers_block_type"].as_array().map(Vec::len);
    let lettered = || value["hybrid_override_pattern"].as_str().map(str::len);
    let declared = config.find_usize("num_hidden_layers")?.or_else(named).or_else(lettered);
    let declared = declared.filter(|layers| (1..=4096).contains(layers));
    declared.ok_or_else(|| Error::corrupt("the configuration does not say how many layers there are"))
}

/// The sizes of state spaces, under the names of this class, or those that GGUF's are read as.
fn mamba(format: Format, config: &Settings, eps: f64) -> Result<Mamba2Sizes> {
    // Files in GGUF have no key for the shortest step of time, and llama.cpp has none; it is the one of every published
    // configuration, so that both forms of a checkpoint give the same numbers, which are those of transformers.
    let time_step_limit = (config.f64_or("time_step_min", 0.001)?, f64::INFINITY);
    if format == Format::Gguf {
        return Ok(Mamba2Sizes { time_step_limit, ..Mamba2Sizes::read(config, eps)? });
    }
    let either = |key: &str, other: &str, default: usize| -> Result<usize> {
        Ok(config.find_usize(key)?.or(config.find_usize(other)?).unwrap_or(default))
    };
    Ok(Mamba2Sizes {
        hidden_size: config.usize("hidden_size")?,
        heads: either("mamba_num_heads", "mamba_n_heads", 128)?,
        head_dim: either("mamba_head_dim", "mamba_d_head", 64)?,
        groups: either("n_groups", "mamba_n_groups", 8)?,
        state: either("ssm_state_size", "mamba_d_state", 128)?,
        taps: either("conv_kernel", "mamba_d_conv", 4)?,
        eps,
        time_step_limit,
        norm: GatedNorm::AfterGate,
    })
}

fn moe(config: &Settings) -> Result<Moe> {
    let shared = config.find_usize("moe_shared_expert_intermediate_size")?;
    let shared = shared.or(config.find_usize("shared_expert_intermediate_size")?);
    let (count, kept) = (config.usize_or("n_group", 1)?, config.usize_or("topk_group", 1)?);
    Ok(Moe {
        n_routed_experts: config.experts()?.unwrap_or(8),
        num_experts_per_tok: config.usize_or("num_experts_per_tok", 2)?,
        moe_intermediate_size: config.usize_or("moe_intermediate_size", 7688)?,
        moe_shared_expert_intermediate_size: shared.unwrap_or(7688),
        routed_scaling_factor: config.f64_or("routed_scaling_factor", 1.0)?,
        norm_topk_prob: config.bool_or("norm_topk_prob", true)?,
        groups: Groups { count, kept, compared: 2 },
    })
}
