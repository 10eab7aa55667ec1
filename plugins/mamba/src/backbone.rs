//! What Mamba and Mamba-2 share: a norm and a mixer in each layer, and nothing else.

use pensieve_sdk::{
    Result,
    nn::{CausalLm, Decoder, KvShape, LayerCache, Loader, RmsNorm, Shape, Step, Tensor},
    weights::{Checkpoint, Config as Settings, Format, GgufConfig, GgufFamily, Names},
};

/// Configurations have no maximum length, as nothing bounds it; this is the number that llama.cpp's converter writes.
const CONTEXT: usize = 1 << 20;

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("token_embd", "backbone.embeddings"),
    ("output_norm", "backbone.norm_f"),
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_x", "mixer.x_proj"),
    ("ssm_dt", "mixer.dt_proj"),
    ("ssm_a", "mixer.A"),
    ("ssm_d", "mixer.D"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
];

/// The mixer of a family's layers.
pub trait Mixer: Sized + Send + 'static {
    /// The architecture's name, in GGUF files too.
    const NAME: &'static str;
    const GGUF: &'static [&'static str];
    const CLASSES: &'static [&'static str];
    /// Defaults of the configuration class in transformers.
    const LAYERS: usize;
    const TIES: bool;

    type Sizes: Copy;

    /// Renames a GGUF file's keys.
    fn complete(config: &mut GgufConfig<'_>) -> Result<()>;

    /// Reads the sizes; `eps` is the layers' epsilon.
    fn sizes(checkpoint: &Checkpoint, eps: f64) -> Result<Self::Sizes>;

    fn cache(sizes: &Self::Sizes) -> LayerCache;

    /// Outputs of its widest layer.
    fn widest(sizes: &Self::Sizes) -> usize;

    fn load(loader: &Loader<'_>, layer: usize, sizes: Self::Sizes) -> Result<Self>;

    /// `residual + mixer(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor>;
}

pub struct Config<S> {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    max_position_embeddings: usize,
    tie_word_embeddings: bool,
    eps: f64,
    mixer: S,
}

struct Block<M> {
    norm: RmsNorm,
    mixer: M,
}

impl<M: Mixer> Block<M> {
    fn load(loader: &Loader<'_>, config: &Config<M::Sizes>, index: usize) -> Result<Self> {
        Ok(Self {
            norm: RmsNorm::load(loader, "norm", config.hidden_size, config.eps)?,
            mixer: M::load(&loader.at("mixer"), index, config.mixer)?,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.mixer.add_to(x, &self.norm.forward(x, step)?, step)
    }
}

pub struct Model<M>(CausalLm<Block<M>>);

/// GGUF files give zero for the sizes of attention and feed-forward blocks, which do not exist.
fn complete<M: Mixer>(config: &mut GgufConfig<'_>) -> Result<()> {
    config.retain(|_, value| *value != 0);
    M::complete(config)
}

impl<M: Mixer> Decoder for Model<M> {
    const NAME: &'static str = M::NAME;
    const GGUF: &'static [&'static str] = M::GGUF;
    const CLASSES: &'static [&'static str] = M::CLASSES;
    const FEATURES: bool = true;

    type Config = Config<M::Sizes>;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, complete: complete::<M>, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Self::Config> {
        let config: &Settings = checkpoint.config();
        let epsilon = if checkpoint.format() == Format::Gguf { "rms_norm_eps" } else { "layer_norm_epsilon" };
        let eps = config.f64_or(epsilon, 1e-5)?;
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size: config.usize("hidden_size")?,
            num_hidden_layers: config.usize_or("num_hidden_layers", M::LAYERS)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", CONTEXT)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", M::TIES)?,
            eps,
            mixer: M::sizes(checkpoint, eps)?,
        })
    }

    fn shape(config: &Self::Config) -> Shape {
        Shape {
            vocabulary: config.vocab_size,
            context: config.max_position_embeddings,
            widest: M::widest(&config.mixer),
            kv: KvShape::new(vec![M::cache(&config.mixer); config.num_hidden_layers]),
        }
    }

    fn load(loader: &Loader<'_>, config: &Self::Config) -> Result<Self> {
        let backbone = loader.at("backbone");
        // The original checkpoints call the table `embedding`.
        let name = if backbone.has("embedding.weight") { "embedding" } else { "embeddings" };
        let embed_tokens = backbone.embedding(name, config.vocab_size, config.hidden_size)?;
        // In GGUF files, layers have the same names in all families.
        let layers = if loader.format() == Format::Gguf { loader.at("model") } else { backbone.clone() };
        Ok(Self(CausalLm {
            layers: layers.layers(config.num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&backbone, "norm_f", config.hidden_size, config.eps)?,
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

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.features(hidden, step)
    }
}
