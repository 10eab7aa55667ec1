//! The sizes in nearly every decoder's configuration, under their names in `config.json`.
//!
//! Keys that a `config.json` may omit default to Llama's values in transformers. A family with other defaults overrides
//! them by struct update: `Sizes { rms_norm_eps: …, ..Sizes::read(config)? }`.

use super::{Activation, KvShape, Shape, activation};
use crate::{Result, weights::Config};

/// The sizes of a decoder, named as in `config.json`.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Logits per token.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of a feed-forward block.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// The longest sequence that the checkpoint supports, in tokens.
    pub max_position_embeddings: usize,
    /// The norms' epsilon.
    pub rms_norm_eps: f64,
    /// Activation of feed-forward blocks.
    pub hidden_act: Activation,
    /// Use the embedding as the output layer if the checkpoint has no `lm_head`.
    pub tie_word_embeddings: bool,
}

impl Sizes {
    /// Reads the configuration; only sizes without a sensible default are required.
    pub fn read(config: &Config) -> Result<Self> {
        Self::read_except(config, &[])
    }

    /// [`Self::read`] without these keys, which get their defaults: for a model file that reads them in its own way, such
    /// as an activation that the SDK does not know, or a size that is a list.
    pub fn read_except(config: &Config, keys: &[&str]) -> Result<Self> {
        let config = &config.without(keys);
        let hidden_size = config.usize("hidden_size")?;
        let num_attention_heads = config.usize("num_attention_heads")?;
        Ok(Self {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            // A mixture of experts may have no dense block.
            intermediate_size: config.usize_or("intermediate_size", hidden_size)?,
            num_hidden_layers: config.usize("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", num_attention_heads)?,
            head_dim: config.usize_or("head_dim", hidden_size / num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 2048)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-6)?,
            hidden_act: activation(config.str_or("hidden_act", "silu")?)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", true)?,
        })
    }

    /// The shape of a decoder whose layers all have the same KV cache.
    pub fn shape(&self) -> Shape {
        Shape {
            vocabulary: self.vocab_size,
            context: self.max_position_embeddings,
            widest: self.intermediate_size.max(self.num_attention_heads * self.head_dim),
            kv: KvShape::uniform(self.num_hidden_layers, self.num_key_value_heads, self.head_dim),
        }
    }
}
