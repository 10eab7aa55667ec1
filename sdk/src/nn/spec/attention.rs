//! Attention over the KV cache: grouped heads, causal, optionally within a sliding window.

use candle_core::Tensor;

use crate::{Error, Result};

/// The attention of one layer. It has no weights: projections are the model's own linear layers.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Index of its layer in the KV cache.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple of it.
    pub kv_heads: usize,
    /// Values per head of queries and keys.
    pub head_dim: usize,
    /// Values per head of values; `head_dim` unless the model's caches differ.
    pub value_dim: usize,
    /// Factor of the scores, usually `1 / √head_dim`.
    pub scale: f32,
    /// Sliding window in tokens, including the token itself; `None` for full attention.
    pub window: Option<usize>,
    /// Bounds scores to `± cap` by `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Attention sinks (gpt-oss): an extra score per head that takes part in the softmax but has no value, so that a
    /// token can attend to nothing.
    pub sinks: Option<Tensor>,
    /// The slots of an image see each other, later ones included (Gemma 3).
    pub whole_items: bool,
}

impl Attention {
    /// Plain causal attention, without window, softcap or sinks.
    pub fn new(layer: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Result<Self> {
        if kv_heads == 0 || head_dim == 0 || !heads.is_multiple_of(kv_heads) {
            let message = format!("{heads} query heads cannot share {kv_heads} key heads of {head_dim} values");
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        let scale = 1.0 / (head_dim as f32).sqrt();
        Ok(Self {
            layer,
            heads,
            kv_heads,
            head_dim,
            value_dim: head_dim,
            scale,
            window: None,
            softcap: None,
            sinks: None,
            whole_items: false,
        })
    }
}
