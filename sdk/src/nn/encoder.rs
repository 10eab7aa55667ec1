//! Encoders: models in which a token's row depends on its whole text, so that nothing is cached and nothing generated.
//!
//! An [`Encoder`] is loaded and run like a decoder, by the same code: it is one whose shape has no caches, and it has no
//! output layer. A step is a packed batch of whole texts of any lengths.

use candle_core::Tensor;

use super::{Decoder, KvShape, Loader, Paged, Shape, Step};
use crate::{
    Error, Result,
    weights::{Checkpoint, GgufFamily, Pooling, RowsUse, Tokenizer},
};

/// A bidirectional model for embeddings, scores or classes: what an author writes.
pub trait Encoder: Sized + Send + 'static {
    /// The architecture's name in the plugin's manifest and in cards.
    const NAME: &'static str;
    /// Values of `general.architecture` in the GGUF files that it claims.
    const GGUF: &'static [&'static str];
    /// Values of `architectures` in the `config.json` files that it claims.
    const CLASSES: &'static [&'static str];

    /// The settings that the model needs, read from `config.json` or GGUF metadata.
    type Config;

    /// The conventions of the GGUF files of an architecture that it claims.
    fn gguf_family(architecture: &str) -> GgufFamily {
        GgufFamily::of(architecture)
    }

    /// Reads the configuration. [`Error::declined`] leaves the checkpoint to another architecture.
    fn config(checkpoint: &Checkpoint) -> Result<Self::Config>;

    /// The sizes by which memory is planned.
    fn shape(config: &Self::Config) -> EncoderShape;

    /// Loads the layers.
    fn load(loader: &Loader<'_>, config: &Self::Config) -> Result<Self>;

    /// Runs the layers over the step's texts and returns each token's row, `[tokens, width]`.
    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor>;

    /// The use of the rows, if the checkpoint has a head. `None` stands for embeddings, pooled as the checkpoint's files
    /// say, or else by the mean of all tokens.
    fn rows(_checkpoint: &Checkpoint, _tokenizer: &Tokenizer, _config: &Self::Config) -> Result<Option<RowsUse>> {
        Ok(None)
    }

    /// The width of [`Encoder::finish`]; 0 for a model without a head.
    fn finish_width(&self) -> usize {
        0
    }

    /// Applies the head to pooled `rows`. The step has no tokens.
    fn finish(&self, rows: &Tensor, _step: &Step<'_>) -> Result<Tensor> {
        Ok(rows.clone())
    }
}

/// The sizes of an encoder that a host plans by.
#[derive(Clone, Debug)]
pub struct EncoderShape {
    /// Number of token ids.
    pub vocabulary: usize,
    /// The longest text that the checkpoint supports, in tokens.
    pub context: usize,
    /// The widest activation of a token, such as an MLP's inner width.
    pub widest: usize,
    /// Width of a token's row.
    pub width: usize,
}

/// The architecture of an [`Encoder`].
pub type Packed<E> = Paged<Headless<E>>;

/// An encoder as a decoder without caches and output layer.
pub struct Headless<E>(E);

impl<E: Encoder> Decoder for Headless<E> {
    const NAME: &'static str = E::NAME;
    const GGUF: &'static [&'static str] = E::GGUF;
    const CLASSES: &'static [&'static str] = E::CLASSES;

    const FEATURES: bool = true;
    const IS_ENCODER: bool = true;

    type Config = E::Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        E::gguf_family(architecture)
    }

    fn config(checkpoint: &Checkpoint) -> Result<Self::Config> {
        E::config(checkpoint)
    }

    fn shape(config: &Self::Config) -> Shape {
        let EncoderShape { vocabulary, context, widest, .. } = E::shape(config);
        Shape { vocabulary, context, widest, kv: KvShape::new(Vec::new()) }
    }

    fn load(loader: &Loader<'_>, config: &Self::Config) -> Result<Self> {
        Ok(Self(E::load(loader, config)?))
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        self.0.hidden(step)
    }

    fn logits(&self, _: &Tensor, _: &Step<'_>) -> Result<Tensor> {
        Err(Error::unsupported(format!("{} is an encoder: it has no output layer", E::NAME)))
    }

    fn features(&self, hidden: &Tensor, _: &Step<'_>) -> Result<Tensor> {
        Ok(hidden.clone())
    }

    fn features_width(config: &Self::Config) -> Option<usize> {
        Some(E::shape(config).width)
    }

    fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, config: &Self::Config) -> Result<RowsUse> {
        let rows = match E::rows(checkpoint, tokenizer, config)? {
            Some(rows) => rows,
            None => {
                let rows = RowsUse::read(checkpoint, tokenizer)?;
                if rows.made_for { rows } else { RowsUse { pooling: Pooling::Mean, ..rows } }
            }
        };
        Ok(RowsUse { whole: true, generates: false, ..rows })
    }

    fn finish_width(&self) -> usize {
        self.0.finish_width()
    }

    fn finish(&self, rows: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.finish(rows, step)
    }
}
