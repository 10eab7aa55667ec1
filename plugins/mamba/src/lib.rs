//! Mamba-2 (arXiv 2405.21060): state-space layers only, so a sequence's memory does not grow with its length.
//!
//! Reference: `modeling_mamba2.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{CausalLm, Decoder, GatedNorm, KvShape, Loader, Mamba2, Mamba2Sizes, Paged, RmsNorm, Shape, Step, Tensor},
    weights::{Checkpoint, Config as Settings, Format, GgufConfig, GgufFamily, Names},
};

export!(Plugin::new("mamba", "Mamba-2").architecture(Paged::<Model>::architecture()));

/// Configurations have no maximum length, as nothing bounds it; this is the number that llama.cpp's converter writes.
const CONTEXT: usize = 1 << 20;

struct Config {
    vocab_size: usize,
    num_hidden_layers: usize,
    max_position_embeddings: usize,
    tie_word_embeddings: bool,
    mamba: Mamba2Sizes,
}

struct Block {
    norm: RmsNorm,
    mixer: Mamba2,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        Ok(Self {
            norm: RmsNorm::load(loader, "norm", config.mamba.hidden_size, config.mamba.eps)?,
            mixer: Mamba2::load(&loader.at("mixer"), index, config.mamba)?,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.mixer.add_to(x, &self.norm.forward(x, step)?, step)
    }
}

struct Model(CausalLm<Block>);

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("token_embd", "backbone.embeddings"),
    ("output_norm", "backbone.norm_f"),
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_dt", "mixer.dt_proj"),
    ("ssm_a", "mixer.A"),
    ("ssm_d", "mixer.D"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
];

/// GGUF files give zero for the sizes of attention and feed-forward blocks, which do not exist.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    config.retain(|_, value| *value != 0);
    config.mamba2()
}

impl Decoder for Model {
    const NAME: &'static str = "mamba2";
    const GGUF: &'static [&'static str] = &["mamba2"];
    const CLASSES: &'static [&'static str] = &["Mamba2ForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, complete, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            num_hidden_layers: config.usize_or("num_hidden_layers", 64)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", CONTEXT)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            mamba: mamba(checkpoint.format(), config)?,
        })
    }

    fn shape(config: &Config) -> Shape {
        Shape {
            vocabulary: config.vocab_size,
            context: config.max_position_embeddings,
            widest: config.mamba.widest(),
            kv: KvShape::new(vec![config.mamba.cache(); config.num_hidden_layers]),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let backbone = loader.at("backbone");
        let embed_tokens = backbone.embedding("embeddings", config.vocab_size, config.mamba.hidden_size)?;
        // In GGUF files, layers have the same names in all families.
        let layers = if loader.format() == Format::Gguf { loader.at("model") } else { backbone.clone() };
        Ok(Self(CausalLm {
            layers: layers.layers(config.num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&backbone, "norm_f", config.mamba.hidden_size, config.mamba.eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.tie_word_embeddings)?,
            embed_tokens,
        }))
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        self.0.hidden(step, Block::forward)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.logits(hidden, step)
    }
}

/// Reads the mixer's sizes, by this class's keys or those that GGUF metadata is mapped to.
fn mamba(format: Format, config: &Settings) -> Result<Mamba2Sizes> {
    if format == Format::Gguf {
        return Mamba2Sizes::read(config, config.f64_or("rms_norm_eps", 1e-5)?);
    }
    Ok(Mamba2Sizes {
        hidden_size: config.usize("hidden_size")?,
        heads: config.usize_or("num_heads", 128)?,
        head_dim: config.usize_or("head_dim", 64)?,
        groups: config.usize_or("n_groups", 8)?,
        state: config.usize_or("state_size", 128)?,
        taps: config.usize_or("conv_kernel", 4)?,
        eps: config.f64_or("layer_norm_epsilon", 1e-5)?,
        time_step_limit: Mamba2Sizes::time_step_limit(config)?,
        norm: GatedNorm::AfterGate,
    })
}
