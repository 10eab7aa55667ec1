//! Granite 4 hybrids (IBM): nine layers out of ten are Mamba-2 (arXiv 2405.21060), the others attention without
//! position encoding. Every layer has a shared feed-forward block; larger models add routed experts. Models without
//! Mamba-2 layers have RoPE.
//! Mamba-2 layers have RoPE.
//!
//! Reference: `modeling_granitemoehybrid.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, AttentionCache, CausalLm, Decoder, ExpertNames, FeedForward, GatedMlp, KvShape, LayerCache, Loader,
        Mamba2, Mamba2Sizes, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, Names},
};

use crate::granite::{self, SelfAttention};

pub struct Config {
    granite: granite::Config,
    /// True for each attention layer; the others are Mamba-2 mixers.
    attends: Vec<bool>,
    mamba: Mamba2Sizes,
    rotates: bool,
    shared_intermediate_size: usize,
}

/// The token mixer of a layer.
enum Mixer {
    Attention(SelfAttention),
    Mamba(Mamba2),
}

struct Block {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    shared_mlp: GatedMlp,
    block_sparse_moe: Option<FeedForward>,
    residual_multiplier: f64,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.granite.sizes;
        let has_experts = config.granite.experts.is_some();
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            mixer: if config.attends[index] {
                Mixer::Attention(SelfAttention::load(&loader.at("self_attn"), &config.granite, index)?)
            } else {
                Mixer::Mamba(Mamba2::load(&loader.at("mamba"), index, config.mamba)?)
            },
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            shared_mlp: shared_mlp(loader, config)?,
            block_sparse_moe: if has_experts { Some(granite::mlp(loader, &config.granite)?) } else { None },
            residual_multiplier: config.granite.residual_multiplier,
        })
    }

    fn forward(&self, x: &Tensor, angles: Option<&Angles>, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(&normed, angles, step)?,
            Mixer::Mamba(mamba) => mamba.forward(&normed, step)?,
        };
        let x = step.ops().add(x, &(mixed * self.residual_multiplier)?)?;
        let normed = self.post_attention_layernorm.forward(&x, step)?;
        let mlp_out = match &self.block_sparse_moe {
            Some(moe) => self.shared_mlp.add_to(&moe.forward(&normed, step)?, &normed, step)?,
            None => self.shared_mlp.forward(&normed, step)?,
        };
        step.ops().add(&x, &(mlp_out * self.residual_multiplier)?)
    }
}

/// The shared block. GGUF files name it as a shared expert if there are routed ones, otherwise as the MLP.
fn shared_mlp(loader: &Loader<'_>, config: &Config) -> Result<GatedMlp> {
    let Sizes { hidden_size, hidden_act, .. } = config.granite.sizes;
    let inner = config.shared_intermediate_size;
    if loader.format() == Format::Gguf {
        let place = if config.granite.experts.is_some() { "mlp.shared_expert" } else { "mlp" };
        return GatedMlp::load(&loader.at(place), hidden_size, inner, hidden_act);
    }
    let names = ExpertNames { gate_up: "input_linear", down: "output_linear", ..ExpertNames::default() };
    GatedMlp::load_named(&loader.at("shared_mlp"), names, hidden_size, inner, hidden_act)
}

pub struct Hybrid {
    model: CausalLm<Block>,
    rope: Option<Rope>,
    embedding_multiplier: f64,
    logits_scaling: f64,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_dt", "mamba.dt_proj"),
    ("ssm_a", "mamba.A"),
    ("ssm_d", "mamba.D"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

impl Decoder for Hybrid {
    const NAME: &'static str = "granite-hybrid";
    const GGUF: &'static [&'static str] = &["granitehybrid"];
    const CLASSES: &'static [&'static str] = &["GraniteMoeHybridForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily {
            names: GGUF_NAMES,
            norm_topk_prob: true,
            complete: |config| config.mamba2(),
            ..GgufFamily::PERMUTED
        }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config().with_defaults([("num_experts_per_tok", 2.into())])?;
        let granite = granite::Config::read(&config)?;
        Ok(Config {
            attends: attends(&config, granite.sizes.num_hidden_layers)?,
            mamba: Mamba2Sizes::read(&config, granite.sizes.rms_norm_eps)?,
            rotates: config.str_or("position_embedding_type", "nope")? == "rope",
            shared_intermediate_size: config.usize_or("shared_intermediate_size", 1024)?,
            granite,
        })
    }

    fn shape(config: &Config) -> Shape {
        let Sizes { num_key_value_heads, head_dim, .. } = config.granite.sizes;
        let cache = |attends: &bool| match attends {
            true => LayerCache::Attention(AttentionCache::new(num_key_value_heads, head_dim)),
            false => config.mamba.cache(),
        };
        let shape = config.granite.sizes.shape();
        Shape {
            widest: shape.widest.max(config.mamba.widest()).max(config.shared_intermediate_size),
            kv: KvShape::new(config.attends.iter().map(cache).collect()),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { head_dim, .. } = config.granite.sizes;
        let rope = config.rotates.then(|| Rope::new(&config.granite.rope, head_dim, loader.context()));
        Ok(Self {
            model: CausalLm::load(loader, &config.granite.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: rope.transpose()?,
            embedding_multiplier: config.granite.embedding_multiplier,
            logits_scaling: config.granite.logits_scaling,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.as_ref().map(|rope| rope.angles(step)).transpose()?;
        let x = (self.model.embed_tokens.forward(step)? * self.embedding_multiplier)?;
        self.model.hidden_from(x, step, |layer, x, step| layer.forward(x, angles.as_ref(), step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok((self.model.logits(hidden, step)? / self.logits_scaling)?)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}

/// The attention layers, by `layer_types`; none if the configuration has no such list.
fn attends(config: &Settings, layers: usize) -> Result<Vec<bool>> {
    let types = match config.layer_types("layer_types", layers)? {
        None => config.layer_types("layers_block_type", layers)?,
        types => types,
    };
    let attends = |types: &[_]| types.iter().map(|of| of == "attention" || of == "full_attention").collect();
    Ok(types.map_or_else(|| vec![false; layers], attends))
}
