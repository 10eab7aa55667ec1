//! Linear recurrences: what some layers have in place of attention. Each head keeps a matrix from keys to values, into which
//! every token writes and from which it reads, so that memory does not grow with what was read.
//!
//! The matrix `S` of a head fades by a factor and takes in `kᵀ · u`; what a token reads is `q · S`. Mamba-2's state space
//! duality (arXiv 2405.21060) writes its value, `u = β · v`; the gated delta rule (arXiv 2412.06464) corrects what the key means so
//! far, `u = β · (v − k · S)`.

use candle_core::Tensor;

use crate::{Error, Result, nn::LayerCache};

/// One layer's recurrence. It owns no weights: what makes queries, keys and values is the model's own.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// Which layer of the caches is its.
    pub layer: usize,
    /// Which part of that layer's state holds its matrices; the second, behind a convolution's.
    pub part: usize,
    /// Heads, each with a matrix.
    pub heads: usize,
    /// Heads of queries and keys; `heads` is a multiple of it.
    pub key_heads: usize,
    /// Whether heads take turns with the heads of keys, as in some GGUF files, instead of following each in a group.
    pub interleaved_heads: bool,
    /// Values in a head of queries and keys.
    pub key_dim: usize,
    /// Values in a head of values.
    pub value_dim: usize,
}

/// What the tokens of a step bring to a recurrence, a row for each.
#[derive(Clone, Copy)]
pub(in crate::nn) struct Inputs<'a> {
    /// `[tokens, key_heads · key_dim]`.
    pub(in crate::nn) q: &'a Tensor,
    /// `[tokens, key_heads · key_dim]`.
    pub(in crate::nn) k: &'a Tensor,
    /// `[tokens, heads · value_dim]`.
    pub(in crate::nn) v: &'a Tensor,
    /// The logarithm of the factor by which a matrix fades, at most 0: `[tokens, heads]`.
    pub(in crate::nn) decay: &'a Tensor,
    /// The factor by which what is written is multiplied, `[tokens, heads]`.
    pub(in crate::nn) beta: &'a Tensor,
    /// Whether only what differs from what the key means so far is written: the delta rule.
    pub(in crate::nn) corrects: bool,
    /// How much of its own value a token reads besides, `[heads]`.
    pub(in crate::nn) skip: Option<&'a Tensor>,
}

impl Recurrence {
    /// The recurrence of a layer that convolves before it.
    pub fn new(layer: usize, heads: usize, key_heads: usize, key_dim: usize, value_dim: usize) -> Result<Self> {
        if key_heads == 0 || key_dim == 0 || value_dim == 0 || heads == 0 || !heads.is_multiple_of(key_heads) {
            let message = format!("{heads} heads of {value_dim} values cannot share {key_heads} of {key_dim}");
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        Ok(Self { layer, part: 1, heads, key_heads, interleaved_heads: false, key_dim, value_dim })
    }

    /// What such a layer remembers of a sequence: the last inputs of a convolution of `channels`, and a matrix for each head.
    pub fn cache((channels, taps): (usize, usize), heads: usize, key_dim: usize, value_dim: usize) -> LayerCache {
        let matrices = heads.saturating_mul(key_dim).saturating_mul(value_dim);
        LayerCache::States([channels.saturating_mul(taps.saturating_sub(1)), matrices])
    }

    /// The values of all its matrices.
    pub(in crate::nn) fn values(&self) -> usize {
        self.heads * self.key_dim * self.value_dim
    }

    /// Whether the inputs of a step of so many tokens have its sizes.
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
            Some(dims) => Err(Error::invalid(format!("{heads} heads skip by factors of shape {dims:?}"))),
        }
    }
}
