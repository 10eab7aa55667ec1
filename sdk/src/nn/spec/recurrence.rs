//! Linear recurrences, which some layers use instead of attention. The state of a head is a matrix from keys to values,
//! so memory does not grow with the sequence.
//!
//! For each token a head's matrix `S` is multiplied by a decay, `kᵀ · u` is added to it, and the output is `q · S`.
//! Mamba-2's state space duality (arXiv 2405.21060) has `u = β · v`, the gated delta rule (arXiv 2412.06464) has `u = β
//! · (v − k · S)`.

use candle_core::Tensor;

use crate::{Error, Result, nn::LayerCache};

/// The recurrence of one layer. It has no weights: queries, keys and values come from the model's own layers.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// Index of its layer in the model's caches.
    pub layer: usize,
    /// The part of the layer's state that holds the matrices: 1 if a convolution's inputs come first.
    pub part: usize,
    /// Number of heads, each with a matrix.
    pub heads: usize,
    /// Query and key heads; `heads` is a multiple of it.
    pub key_heads: usize,
    /// Head `i` uses the keys of head `i mod key_heads`, as in some GGUF files, rather than `i / (heads / key_heads)`.
    pub interleaved_heads: bool,
    /// Values per head of queries and keys.
    pub key_dim: usize,
    /// Values per head of values.
    pub value_dim: usize,
}

/// Inputs of a recurrence, one row per token of the step.
#[derive(Clone, Copy)]
pub(in crate::nn) struct Inputs<'a> {
    /// `[tokens, key_heads · key_dim]`.
    pub(in crate::nn) q: &'a Tensor,
    /// `[tokens, key_heads · key_dim]`.
    pub(in crate::nn) k: &'a Tensor,
    /// `[tokens, heads · value_dim]`.
    pub(in crate::nn) v: &'a Tensor,
    /// Logarithm of the decay, at most 0: `[tokens, heads]`.
    pub(in crate::nn) decay: &'a Tensor,
    /// Scale of the state update, `[tokens, heads]`.
    pub(in crate::nn) beta: &'a Tensor,
    /// Writes `v − k · S` instead of `v`: the delta rule.
    pub(in crate::nn) corrects: bool,
    /// Adds this multiple of a token's own `v` to its output, `[heads]`.
    pub(in crate::nn) skip: Option<&'a Tensor>,
}

impl Recurrence {
    /// The recurrence of a layer whose state starts with a convolution's.
    pub fn new(layer: usize, heads: usize, key_heads: usize, key_dim: usize, value_dim: usize) -> Result<Self> {
        if key_heads == 0 || key_dim == 0 || value_dim == 0 || heads == 0 || !heads.is_multiple_of(key_heads) {
            let message = format!("{heads} heads of {value_dim} values cannot share {key_heads} of {key_dim}");
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        Ok(Self { layer, part: 1, heads, key_heads, interleaved_heads: false, key_dim, value_dim })
    }

    /// The state of such a layer: the last inputs of a convolution over `channels`, and a matrix per head.
    pub fn cache((channels, taps): (usize, usize), heads: usize, key_dim: usize, value_dim: usize) -> LayerCache {
        let matrices = heads.saturating_mul(key_dim).saturating_mul(value_dim);
        LayerCache::States([channels.saturating_mul(taps.saturating_sub(1)), matrices])
    }

    /// Total number of values in all matrices.
    pub(in crate::nn) fn values(&self) -> usize {
        self.heads * self.key_dim * self.value_dim
    }

    /// Checks the shapes of the inputs for a step of `tokens` tokens.
    pub(in crate::nn) fn check(&self, x: Inputs<'_>, tokens: usize) -> Result<()> {
        let Self { heads, key_heads, key_dim, value_dim, .. } = *self;
        if key_heads == 0 || !heads.is_multiple_of(key_heads) || self.values() == 0 {
            return Err(Error::invalid(format!("{heads} heads of {key_dim} × {value_dim} cannot share {key_heads}")));
        }
        let expected = [(x.q, key_heads * key_dim), (x.k, key_heads * key_dim), (x.v, heads * value_dim)];
        let gates = [(x.decay, heads), (x.beta, heads)];
        for (x, width) in expected.into_iter().chain(gates) {
            if x.dims2()? != (tokens, width) {
                let dims = x.dims();
                let message = format!("a recurrence was given {dims:?} where it wants {tokens} rows of {width}");
                return Err(Error::invalid(message));
            }
        }
        match x.skip.map(Tensor::dims) {
            None => Ok(()),
            Some(dims) if dims == [heads] => Ok(()),
            Some(dims) => {
                Err(Error::invalid(format!("a recurrence of {heads} heads was given a skip of shape {dims:?}")))
            }
        }
    }
}
