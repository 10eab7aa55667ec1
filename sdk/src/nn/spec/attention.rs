//! Attention over the KV cache: grouped heads, causal, optionally within a sliding window.

use candle_core::Tensor;

use crate::{Error, Result};

/// One layer's attention. It owns no weights: projections are linear layers of the model's own.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which layer of the KV cache is its.
    pub layer: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; `heads` is a multiple of it.
    pub kv_heads: usize,
    /// Values in a head of queries and keys.
    pub head_dim: usize,
    /// Values in a head of values; as many unless the cache says otherwise.
    pub value_dim: usize,
    /// What scores are multiplied by; commonly `1 / √head_dim`.
    pub scale: f32,
    /// How many tokens back a token sees, itself included.
    pub window: Option<usize>,
    /// Bounds scores to `± cap` by `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// A score for each head that stands beside those of tokens and takes its share of the weights, but has no value: where
    /// nothing in the past is worth looking at, attention sinks into it (gpt-oss).
    pub sinks: Option<Tensor>,
}

impl Attention {
    /// Plain causal attention of a layer.
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
        })
    }
}
