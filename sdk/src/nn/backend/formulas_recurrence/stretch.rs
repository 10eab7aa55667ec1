//! A stretch of tokens of a recurrence, computed by matrix products if what fades is the same for all values of a head.
//!
//! The writes of the tokens of a stretch are the solution of a triangular system (arXiv 2406.06484): each token's correction depends on
//! the previous ones, weighted by the products of their keys. It is solved blockwise, in `log2(length)` steps. If each
//! key channel fades alone, these products are weighted channel by channel, by exponentials of differences: factors
//! taken apart would overflow. Everything else goes token by token.

use candle_core::{Device, Tensor};

use crate::{
    Result,
    nn::spec::{Decay, Inputs, Recurrence, Update},
};

/// The inputs of `len` tokens of `n` sequences, head by head: `[n · heads, len, …]`.
pub(super) struct Stretch {
    x: Inputs,
}

impl Stretch {
    /// The longest stretch for such inputs.
    pub(super) fn len_max(x: &Inputs) -> usize {
        // Differences by key channel take `len² · key_dim` values per head.
        if matches!((&x.decay, &x.update), (Decay::Head(_), Update::Sum | Update::Delta)) { 64 } else { 16 }
    }

    /// The rows from `row` on, `len` for each of `n` sequences, head by head.
    pub(super) fn of(spec: &Recurrence, x: &Inputs, row: usize, (n, len): (usize, usize)) -> Result<Self> {
        let part = |x: &Tensor, heads: usize| -> Result<Tensor> {
            let (_, width) = x.dims2()?;
            let x = x.narrow(0, row, n * len)?.contiguous()?.reshape((n, len, heads, width / heads))?;
            Ok(x.transpose(1, 2)?.contiguous()?)
        };
        let shared = |x: &Tensor| -> Result<Tensor> {
            let x = part(x, spec.key_heads)?;
            let (times, all) = (spec.heads / spec.key_heads, (n * spec.heads, len, spec.key_dim));
            let x = if spec.interleaved_heads {
                x.unsqueeze(1)?.broadcast_as((n, times, spec.key_heads, len, spec.key_dim))?
            } else {
                x.unsqueeze(2)?.broadcast_as((n, spec.key_heads, times, len, spec.key_dim))?
            };
            Ok(x.contiguous()?.reshape(all)?)
        };
        let own = |x: &Tensor| -> Result<Tensor> { Ok(part(x, spec.heads)?.reshape((n * spec.heads, len, ()))?) };
        let x = Inputs {
            q: shared(&x.q)?,
            k: shared(&x.k)?,
            v: own(&x.v)?,
            decay: match &x.decay {
                Decay::Head(decay) => Decay::Head(own(decay)?),
                Decay::Key(decay) => Decay::Key(own(decay)?),
                Decay::Value(decay) => Decay::Value(own(decay)?),
                Decay::Element { steps, rates } => {
                    Decay::Element { steps: own(steps)?, rates: rates.repeat((n, 1, 1))? }
                }
            },
            beta: x.beta.as_ref().map(own).transpose()?,
            update: match &x.update {
                Update::RankOne { from, into } => Update::RankOne { from: shared(from)?, into: shared(into)? },
                other => other.clone(),
            },
            skip: None,
        };
        Ok(Self { x })
    }

    /// Returns the output of the tokens, `[n · heads, len, value_dim]`, and the state matrices after them.
    pub(super) fn advance(&self, matrices: &Tensor) -> Result<(Tensor, Tensor)> {
        let has_wide_beta = self.x.beta.as_ref().is_some_and(|beta| beta.dims().last() != Some(&1));
        match (&self.x.decay, &self.x.update) {
            (Decay::Value(_) | Decay::Element { .. }, _) => self.by_token(matrices),
            (_, Update::Delta) if has_wide_beta => self.by_token(matrices),
            (Decay::Head(decay), Update::Sum | Update::Delta) => self.by_head(decay, matrices),
            (Decay::Head(decay), _) => self.by_key(&decay.broadcast_as(self.x.k.shape())?.contiguous()?, matrices),
            (Decay::Key(decay), _) => self.by_key(decay, matrices),
        }
    }

    fn scaled(&self, values: &Tensor) -> Result<Tensor> {
        Ok(match &self.x.beta {
            Some(beta) => values.broadcast_mul(beta)?,
            None => values.clone(),
        })
    }

    fn by_head(&self, decay: &Tensor, matrices: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = &self.x;
        // The decay up to each token, as a logarithm, and from each token to each later one, as a factor.
        let (_, len, _) = x.k.dims3()?;
        let faded = summed(decay)?;
        let later = mask(len, 0, x.k.device())?;
        let between = faded.broadcast_sub(&faded.transpose(1, 2)?.contiguous()?)?.broadcast_add(&later)?.exp()?;
        let keys = x.k.transpose(1, 2)?.contiguous()?;
        let so_far = faded.exp()?;
        let written = if matches!(x.update, Update::Delta) {
            let known = x.k.matmul(matrices)?.broadcast_mul(&so_far)?;
            let wanted = self.scaled(&(&x.v - known)?)?;
            solve(&self.scaled(&(x.k.matmul(&keys)? * &between)?)?, &wanted)?
        } else {
            self.scaled(&x.v)?
        };
        let read = x.q.matmul(matrices)?.broadcast_mul(&so_far)?;
        let out = (read + (x.q.matmul(&keys)? * between)?.matmul(&written)?)?;
        let end = faded.narrow(1, len - 1, 1)?;
        let left = end.broadcast_sub(&faded)?.exp()?;
        let added = x.k.broadcast_mul(&left)?.transpose(1, 2)?.contiguous()?.matmul(&written)?;
        Ok((out, (matrices.broadcast_mul(&end.exp()?)? + added)?))
    }

    /// `decay` is `[n · heads, len, key_dim]`.
    fn by_key(&self, decay: &Tensor, matrices: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = &self.x;
        let len = x.k.dim(1)?;
        let faded = summed(decay)?;
        let before = (&faded - decay)?;
        // `[n, len, len]`: the products of one token's `a` with every other's `b`, weighted by what fades between them.
        let pairs = |a: &Tensor, up_to: &Tensor, b: &Tensor, back: usize| -> Result<Tensor> {
            let later = mask(len, back, a.device())?.unsqueeze(3)?;
            let between = up_to.unsqueeze(2)?.broadcast_sub(&faded.unsqueeze(1)?)?.broadcast_add(&later)?.exp()?;
            Ok(between.broadcast_mul(&a.unsqueeze(2)?)?.broadcast_mul(&b.unsqueeze(1)?)?.sum(3)?)
        };
        let written = self.scaled(&x.v)?;
        // What the state is multiplied with before it fades, where the product is added, and its scale.
        let change = match &x.update {
            Update::Sum => None,
            Update::Delta => Some(((&x.k * decay.exp()?)?.neg()?, x.k.clone(), true)),
            Update::RankOne { from, into } => Some((from.clone(), into.clone(), false)),
        };
        let read = (&x.q * faded.exp()?)?.matmul(matrices)?;
        let mut out = (read + pairs(&x.q, &faded, &x.k, 0)?.matmul(&written)?)?;
        let end = faded.narrow(1, len - 1, 1)?;
        let left = end.broadcast_sub(&faded)?.exp()?;
        let added = |keys: &Tensor, written: &Tensor| -> Result<Tensor> {
            Ok((keys * &left)?.transpose(1, 2)?.contiguous()?.matmul(written)?)
        };
        let faded_matrices = matrices.broadcast_mul(&end.exp()?.transpose(1, 2)?.contiguous()?)?;
        let mut after = (faded_matrices + added(&x.k, &written)?)?;
        if let Some((from, into, is_scaled)) = change {
            let scaled = |x: &Tensor| if is_scaled { self.scaled(x) } else { Ok(x.clone()) };
            let known = (&from * before.exp()?)?.matmul(matrices)?;
            let known = (known + pairs(&from, &before, &x.k, 1)?.matmul(&written)?)?;
            let known = solve(&scaled(&pairs(&from, &before, &into, 1)?.neg()?)?, &scaled(&known)?)?;
            out = (out + pairs(&x.q, &faded, &into, 0)?.matmul(&known)?)?;
            after = (after + added(&into, &known)?)?;
        }
        Ok((out, after))
    }

    fn by_token(&self, matrices: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = &self.x;
        let (len, mut matrices) = (x.k.dim(1)?, matrices.clone());
        let mut outs = Vec::with_capacity(len);
        for token in 0..len {
            let row = |x: &Tensor| -> Result<Tensor> { Ok(x.narrow(1, token, 1)?.contiguous()?) };
            let column = |x: &Tensor| -> Result<Tensor> { Ok(row(x)?.transpose(1, 2)?.contiguous()?) };
            let scaled = |values: Tensor| -> Result<Tensor> {
                Ok(match &x.beta {
                    Some(beta) => values.broadcast_mul(&row(beta)?)?,
                    None => values,
                })
            };
            let fade = match &x.decay {
                Decay::Head(decay) | Decay::Value(decay) => row(decay)?,
                Decay::Key(decay) => column(decay)?,
                Decay::Element { steps, rates } => rates.broadcast_mul(&row(steps)?)?,
            };
            let faded = matrices.broadcast_mul(&fade.exp()?)?;
            let (v, k) = (row(&x.v)?, column(&x.k)?);
            let (write, faded) = match &x.update {
                Update::Sum => (scaled(v)?, faded),
                Update::Delta => (scaled((v - row(&x.k)?.matmul(&faded)?)?)?, faded),
                Update::RankOne { from, into } => {
                    let change = column(into)?.matmul(&row(from)?.matmul(&matrices)?)?;
                    (scaled(v)?, (faded + change)?)
                }
            };
            matrices = (faded + k.matmul(&write)?)?;
            outs.push(row(&x.q)?.matmul(&matrices)?);
        }
        Ok((Tensor::cat(&outs, 1)?, matrices))
    }
}

/// Sums of the rows up to each one.
fn summed(x: &Tensor) -> Result<Tensor> {
    let (n, len, _) = x.dims3()?;
    let sums = square(len, |row, column| f32::from(u8::from(column <= row)), x.device())?;
    Ok(sums.broadcast_as((n, len, len))?.contiguous()?.matmul(x)?)
}

/// Zeros where a column is at least `back` before its row, and minus infinity elsewhere.
fn mask(len: usize, back: usize, device: &Device) -> Result<Tensor> {
    square(len, |row, column| if column + back <= row { 0.0 } else { f32::NEG_INFINITY }, device)
}

/// `[1, len, len]` values by row and column.
fn square(len: usize, value: impl Fn(usize, usize) -> f32, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..len * len).map(|place| value(place / len, place % len)).collect();
    Ok(Tensor::from_vec(values, (1, len, len), device)?)
}

/// `(1 + a)⁻¹ · b`, where only the part of `a` below the diagonal counts. Inverts diagonal blocks, each from two of
/// half its size: the lower left quarter is minus the coupling of the two, between both inverses.
fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (_, len, _) = a.dims3()?;
    let mut inverse = square(len, |row, column| f32::from(u8::from(row == column)), a.device())?;
    inverse = inverse.broadcast_as(a.shape())?.contiguous()?;
    let mut size = 1;
    while size < len {
        let is_between =
            |row: usize, column: usize| row / (2 * size) == column / (2 * size) && row / size > column / size;
        let between = square(len, |row, column| f32::from(u8::from(is_between(row, column))), a.device())?;
        inverse = (&inverse - inverse.matmul(&a.broadcast_mul(&between)?)?.matmul(&inverse)?)?;
        size *= 2;
    }
    Ok(inverse.matmul(b)?)
}
