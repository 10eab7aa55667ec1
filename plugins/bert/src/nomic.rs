//! Nomic's BERT (arXiv 2402.01613): BERT's blocks with rotated positions, gated MLPs, and no biases.
//!
//! Reference: `modeling_nomic_bert.py` in Hugging Face transformers; layers are named as in the published checkpoints.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, Angles, Embedding, Encoder, EncoderShape, ExpertNames, GatedMlp, LayerNorm, Linear, Loader, Lookup,
        Qkv, Rope, Sizes, Step, Tensor, TextAttention,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig},
};

use crate::gguf;

pub struct Config {
    sizes: Sizes,
    layer_norm_eps: f64,
    type_vocab_size: usize,
    rope: RopeConfig,
}

struct SelfAttention {
    qkv: Qkv,
    attention: TextAttention,
    out_proj: Linear,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, head_dim, .. } = config.sizes;
        let inner = heads * head_dim;
        let parts = [("q_proj", inner), ("k_proj", inner), ("v_proj", inner)];
        Ok(Self {
            qkv: Qkv::of(loader.stacked("Wqkv", hidden_size, parts)?),
            attention: TextAttention::new(heads, heads, head_dim)?,
            out_proj: loader.linear("out_proj", inner, hidden_size)?,
        })
    }

    /// `x + attention(x)`.
    fn add_to(&self, x: &Tensor, angles: &Angles, step: &Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv.forward(x, step)?;
        self.out_proj.add_to(x, &self.attention.forward([&q, &k, &v], Some(angles), step)?, step)
    }
}

struct Block {
    attn: SelfAttention,
    norm1: LayerNorm,
    mlp: GatedMlp,
    norm2: LayerNorm,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, .. } = config.sizes;
        let norm = |name| LayerNorm::load(loader, name, hidden_size, config.layer_norm_eps);
        let names = ExpertNames { gate: "fc12", up: "fc11", down: "fc2", ..ExpertNames::default() };
        let mlp = loader.at("mlp");
        Ok(Self {
            attn: SelfAttention::load(&loader.at("attn"), config)?,
            norm1: norm("norm1")?,
            mlp: GatedMlp::load_named(&mlp, names, hidden_size, intermediate_size, Activation::Silu)?,
            norm2: norm("norm2")?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &Step<'_>) -> Result<Tensor> {
        let x = self.norm1.forward(&self.attn.add_to(x, angles, step)?, step)?;
        self.norm2.forward(&self.mlp.add_to(&x, &x, step)?, step)
    }
}

pub struct NomicBert {
    word_embeddings: Embedding,
    token_type_embeddings: Lookup,
    emb_ln: LayerNorm,
    layers: Vec<Block>,
    rope: Rope,
}

impl Encoder for NomicBert {
    const NAME: &'static str = "nomic-bert";
    const GGUF: &'static [&'static str] = &["nomic-bert"];
    const CLASSES: &'static [&'static str] = &["NomicBertModel"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::nomic()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = renamed(checkpoint.config())?;
        for (key, expected) in [("prenorm", false), ("qkv_proj_bias", false), ("use_rms_norm", false)] {
            config.only(key, expected)?;
        }
        if config.usize_or("num_experts", 0)? > 0 {
            return Err(Error::declined("some of its layers are mixtures of experts, which are not computed"));
        }
        Ok(Config {
            layer_norm_eps: config.f64_or("layer_norm_eps", 1e-12)?,
            type_vocab_size: config.usize_or("type_vocab_size", 2)?,
            rope: config.rope()?,
            sizes: Sizes::read(&config)?,
        })
    }

    fn shape(config: &Config) -> EncoderShape {
        let Sizes { vocab_size, hidden_size, intermediate_size, max_position_embeddings, .. } = config.sizes;
        EncoderShape {
            vocabulary: vocab_size,
            context: max_position_embeddings,
            widest: (2 * intermediate_size).max(3 * hidden_size),
            width: hidden_size,
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, head_dim, num_hidden_layers, .. } = config.sizes;
        let is_gguf = loader.format() == Format::Gguf;
        let layers = loader.at(if is_gguf { "model.layers" } else { "encoder.layers" });
        let (embeddings, types) = (loader.at("embeddings"), config.type_vocab_size);
        Ok(Self {
            word_embeddings: embeddings.embedding("word_embeddings", vocab_size, hidden_size)?,
            token_type_embeddings: Lookup::load(&embeddings, "token_type_embeddings", types, hidden_size)?,
            emb_ln: LayerNorm::load(loader, "emb_ln", hidden_size, config.layer_norm_eps)?,
            layers: (0..num_hidden_layers)
                .map(|index| Block::load(&layers.at(index), config))
                .collect::<Result<_>>()?,
            rope: Rope::new(&config.rope, head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let types = self.token_type_embeddings.forward(&vec![0; step.tokens().len()], step)?;
        let x = self.emb_ln.forward(&step.ops().add(&self.word_embeddings.forward(step)?, &types)?, step)?;
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &angles, step))
    }
}

/// The settings of published checkpoints, whose names are those of GPT-2, under the names of transformers.
fn renamed(config: &Settings) -> Result<Settings> {
    let names = [
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("intermediate_size", "n_inner"),
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("rope_theta", "rotary_emb_base"),
    ];
    let value = config.value();
    // With a scaling factor, longer texts than the model was trained on are rotated by other angles.
    let is_scaled = value.get("rotary_scaling_factor").is_some_and(|factor| !factor.is_null());
    let positions = if is_scaled { "max_trained_positions" } else { "n_positions" };
    let names = names.into_iter().chain([("max_position_embeddings", positions)]);
    let found = names.filter_map(|(ours, theirs)| Some((ours, value.get(theirs)?.clone())));
    config.with_defaults(found)?.with_defaults([("rope_theta", 1000.into())])
}
