//! Attention over the KV cache: grouped heads, causal, optionally within a sliding window.

use candle_core::Tensor;

use super::{Angles, Step};
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

    /// Remembers the new tokens' `k` (`[tokens, kv_heads · head_dim]`) and `v` (`[tokens, kv_heads · value_dim]`), and has each
    /// token of `q` (`[tokens, heads · head_dim]`) attend to its sequence so far: `[tokens, heads · value_dim]`.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], step)?;
        self.check(&[(v, self.kv_heads, self.value_dim)], step)?;
        self.check_cache(self.value_dim, step)?;
        if self.value_dim == self.head_dim {
            step.ops().attention(self, q, k, v, step)
        } else {
            step.ops().attention_over(self, q, Some((k, Some(v))), step)
        }
    }

    /// The same of queries and keys that are rotated first. At once, which is faster than one after the other.
    pub fn forward_rotated(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        angles: &Angles,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        if self.value_dim != self.head_dim {
            return self.forward(&angles.rotate(q, step)?, &angles.rotate(k, step)?, v, step);
        }
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], step)?;
        self.check(&[(v, self.kv_heads, self.value_dim)], step)?;
        self.check_cache(self.value_dim, step)?;
        step.ops().rotated_attention(self, [q, k, v], angles.rotation(), step)
    }

    /// The same where the first `value_dim` values of a key are the values too, and only keys are remembered.
    pub fn forward_latent(&self, q: &Tensor, k: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], step)?;
        self.check_cache(0, step)?;
        if self.value_dim == 0 || self.value_dim > self.head_dim {
            let message = format!("values of {} are no view of keys of {}", self.value_dim, self.head_dim);
            return Err(Error::invalid(message));
        }
        step.ops().attention_over(self, q, Some((k, None)), step)
    }

    /// The same over what an earlier layer has remembered in this step and before.
    pub fn forward_shared(&self, q: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim)], step)?;
        self.check_cache(self.value_dim, step)?;
        step.ops().attention_over(self, q, None, step)
    }

    fn check(&self, inputs: &[(&Tensor, usize, usize)], step: &Step<'_>) -> Result<()> {
        let tokens = step.input().tokens.len();
        for (x, heads, dim) in inputs {
            if x.dims2()? != (tokens, heads * dim) {
                let dims = x.dims();
                let message = format!("attention over {heads} heads of {dim} was given {dims:?} for {tokens} tokens");
                return Err(Error::invalid(message));
            }
        }
        Ok(())
    }

    fn check_cache(&self, value_dim: usize, step: &Step<'_>) -> Result<()> {
        let cache = step.kv.attention(self.layer)?;
        if (cache.kv_heads, cache.key_dim, cache.value_dim) != (self.kv_heads, self.head_dim, value_dim) {
            let Self { kv_heads, head_dim, .. } = self;
            let message = format!("attention of {kv_heads} heads of {head_dim} and {value_dim} values over a cache of");
            let (heads, keys, values) = (cache.kv_heads, cache.key_dim, cache.value_dim);
            return Err(Error::invalid(format!("{message} {heads} heads of {keys} and {values}")));
        }
        if cache.window.is_some_and(|cache| self.window.is_none_or(|window| window > cache)) {
            return Err(Error::invalid(format!(
                "layer {} reads more than the window that its cache keeps",
                self.layer
            )));
        }
        Ok(())
    }
}
