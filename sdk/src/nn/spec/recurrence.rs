//! Linear recurrences, which some layers use instead of attention. The state of a head is a matrix from keys to values,
//! so memory does not grow with the sequence.
//!
//! For each token a head's matrix `S` fades, `kᵀ · u` is added to it, and the output is `q · S`. Published designs
//! differ in what fades alone and in what is added:
//!
//! - per head: Mamba-2 (arXiv 2405.21060) with `u = β · v`, the gated delta rule (2412.06464) with `u = β · (v − k · S)`;
//! - per key: GLA (2312.06635) as the former, Kimi's delta attention (2510.26692) as the latter, RWKV-7 (2503.14456) with
//!   a change of rank one;
//! - per value: gated linear units such as RG-LRU (2402.19427), whose keys are one value wide;
//! - per element: Mamba (2312.00752).

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

/// Logarithms of the factors, at most 0, by which a state fades before a token is added.
#[derive(Clone, Debug)]
pub enum Decay {
    /// One factor per head: `[tokens, heads]`. A plain tensor converts to this.
    Head(Tensor),
    /// One per key channel: `[tokens, heads · key_dim]`.
    Key(Tensor),
    /// One per value channel: `[tokens, heads · value_dim]`.
    Value(Tensor),
    /// One per element of the matrices.
    Element {
        /// A token's factor of the rates, such as Mamba's `dt`: `[tokens, heads · value_dim]`.
        steps: Tensor,
        /// `[heads, key_dim, value_dim]`, such as Mamba's `A`.
        rates: Tensor,
    },
}

impl From<&Tensor> for Decay {
    fn from(per_head: &Tensor) -> Self {
        Self::Head(per_head.clone())
    }
}

/// The update of a state `S` that has faded.
#[derive(Clone, Debug)]
pub(in crate::nn) enum Update {
    /// `S + kᵀ · β · v`.
    Sum,
    /// `S + kᵀ · β · (v − k · S)`: the delta rule.
    Delta,
    /// `S + intoᵀ · (from · S₀) + kᵀ · β · v`, where `S₀` is the state before it faded; `[tokens, key_heads · key_dim]`
    /// each.
    RankOne { from: Tensor, into: Tensor },
}

/// Inputs of a recurrence, one row per token of the step.
#[derive(Clone, Debug)]
pub(in crate::nn) struct Inputs {
    /// `[tokens, key_heads · key_dim]`.
    pub(in crate::nn) q: Tensor,
    /// `[tokens, key_heads · key_dim]`.
    pub(in crate::nn) k: Tensor,
    /// `[tokens, heads · value_dim]`.
    pub(in crate::nn) v: Tensor,
    pub(in crate::nn) decay: Decay,
    /// Scale of the state update, `[tokens, heads]` or `[tokens, heads · value_dim]`; 1 if absent.
    pub(in crate::nn) beta: Option<Tensor>,
    pub(in crate::nn) update: Update,
    /// Adds this multiple of a token's own `v` to its output, `[heads]` or `[heads · value_dim]`.
    pub(in crate::nn) skip: Option<Tensor>,
}

impl Inputs {
    /// Changes each tensor.
    pub(in crate::nn) fn try_map(&self, mut change: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            q: change(&self.q)?,
            k: change(&self.k)?,
            v: change(&self.v)?,
            decay: match &self.decay {
                Decay::Head(decay) => Decay::Head(change(decay)?),
                Decay::Key(decay) => Decay::Key(change(decay)?),
                Decay::Value(decay) => Decay::Value(change(decay)?),
                Decay::Element { steps, rates } => Decay::Element { steps: change(steps)?, rates: change(rates)? },
            },
            beta: self.beta.as_ref().map(&mut change).transpose()?,
            update: match &self.update {
                Update::RankOne { from, into } => Update::RankOne { from: change(from)?, into: change(into)? },
                other => other.clone(),
            },
            skip: self.skip.as_ref().map(&mut change).transpose()?,
        })
    }

    /// The tensors with a row per token.
    pub(in crate::nn) fn by_token(&self) -> impl Iterator<Item = &Tensor> {
        let decay = match &self.decay {
            Decay::Head(rows) | Decay::Key(rows) | Decay::Value(rows) | Decay::Element { steps: rows, .. } => rows,
        };
        let keys = match &self.update {
            Update::RankOne { from, into } => [Some(from), Some(into)],
            Update::Sum | Update::Delta => [None, None],
        };
        [&self.q, &self.k, &self.v, decay].into_iter().chain(&self.beta).chain(keys.into_iter().flatten())
    }
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
        LayerCache::States(vec![channels.saturating_mul(taps.saturating_sub(1)), matrices])
    }

    /// Total number of values in all matrices.
    pub(in crate::nn) fn values(&self) -> usize {
        self.heads * self.key_dim * self.value_dim
    }

    /// Checks the shapes of the inputs for a step of `tokens` tokens.
    pub(in crate::nn) fn check(&self, x: &Inputs, tokens: usize) -> Result<()> {
        let Self { heads, key_heads, key_dim, value_dim, .. } = *self;
        if key_heads == 0 || !heads.is_multiple_of(key_heads) || self.values() == 0 {
            return Err(Error::invalid(format!("{heads} heads of {key_dim} × {value_dim} cannot share {key_heads}")));
        }
        let (keys, values) = (key_heads * key_dim, heads * value_dim);
        let mut expected = vec![(&x.q, keys), (&x.k, keys), (&x.v, values)];
        match &x.decay {
            Decay::Head(decay) => expected.push((decay, heads)),
            Decay::Key(decay) => expected.push((decay, heads * key_dim)),
            Decay::Value(decay) => expected.push((decay, values)),
            Decay::Element { steps, rates } => {
                expected.push((steps, values));
                if rates.dims() != [heads, key_dim, value_dim] {
                    let dims = rates.dims();
                    let message = format!("{heads} heads of {key_dim} × {value_dim} cannot fade at rates of {dims:?}");
                    return Err(Error::invalid(message));
                }
            }
        }
        if let Update::RankOne { from, into } = &x.update {
            expected.extend([(from, keys), (into, keys)]);
        }
        if let Some(beta) = &x.beta {
            expected.push((beta, if beta.dims() == [tokens, values] { values } else { heads }));
        }
        for (x, width) in expected {
            if x.dims2()? != (tokens, width) {
                let dims = x.dims();
                let message = format!("a recurrence was given {dims:?} where it wants {tokens} rows of {width}");
                return Err(Error::invalid(message));
            }
        }
        match x.skip.as_ref().map(Tensor::dims) {
            None => Ok(()),
            Some(dims) if dims == [heads] || dims == [values] => Ok(()),
            Some(dims) => {
                Err(Error::invalid(format!("a recurrence of {heads} heads was given a skip of shape {dims:?}")))
            }
        }
    }
}
