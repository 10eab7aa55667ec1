//! Attention of encoders: within whole texts, in both directions, without a cache.

use crate::{Error, Result};

/// The attention of an encoder's layer: each token attends to its whole text. It has no weights: projections are the
/// model's own linear layers.
#[derive(Clone, Copy, Debug)]
pub struct TextAttention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple of it.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Factor of the scores, usually `1 / √head_dim`.
    pub scale: f32,
    /// How far from itself a token sees, to either side; `None` for the whole text. A window of `w` tokens around a
    /// token reaches `w / 2`.
    pub reach: Option<usize>,
}

impl TextAttention {
    /// Attention over whole texts.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Result<Self> {
        if kv_heads == 0 || head_dim == 0 || !heads.is_multiple_of(kv_heads) {
            let message = format!("{heads} query heads cannot share {kv_heads} key heads of {head_dim} values");
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        Ok(Self { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), reach: None })
    }
}
