//! Recurrences in stock candle ops, computed chunkwise by matrix products, and the short convolutions before them.
//!
//! Within a stretch of tokens, the values to write solve a triangular system (arXiv 2406.06484): each token's
//! correction depends on the previous ones, weighted by the products of their keys. It is solved blockwise, in
//! `log2(length)` steps. Sequences that decode one token each are computed together.

use candle_core::{Device, Tensor};

use super::Formulas;
use crate::{
    Error, Result, Span,
    nn::{
        memory::{pass::Pass, states::StateWrite},
        spec::{Inputs, Recurrence, ShortConv},
    },
};

/// Tokens per stretch.
const STRETCH: usize = 64;

/// The inputs of `len` tokens of `n` sequences, head by head: `[n · heads, len, …]`.
struct Stretch {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// `[n · heads, len, 1]`.
    decay: Tensor,
    beta: Tensor,
    corrects: bool,
}

/// A short convolution over the step's rows, gathered from one tensor: the states' rows, then the step's.
pub(super) fn short_conv(formulas: &Formulas, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
    let (taps, channels) = conv.taps.dims2()?;
    let states = pass.states(conv.layer, 0)?;
    let states = states.reshape((states.dim(0)? * (taps - 1), channels))?;
    let rows = Tensor::cat(&[&states, x], 0)?;
    let kept = pass.state_writes(conv.layer)?;
    let (read, last) = conv_rows(formulas, conv.layer, taps, &kept, pass)?;
    let mut out: Option<Tensor> = None;
    for (tap, read) in read.iter().enumerate() {
        let term = rows.index_select(read, 0)?.broadcast_mul(&conv.taps.get(tap)?.force_contiguous()?)?;
        out = Some(match out {
            Some(sum) => (sum + term)?,
            None => term,
        });
    }
    let last = rows.index_select(&last, 0)?.reshape((kept.len(), (taps - 1) * channels))?;
    pass.write_states(conv.layer, 0, &kept, &last)?;
    let out = out.ok_or_else(|| Error::invalid("a convolution without taps"))?;
    let out = match &conv.bias {
        Some(bias) => out.broadcast_add(bias)?,
        None => out,
    };
    match conv.activation {
        Some(activation) => formulas.activate(&out, activation),
        None => Ok(out),
    }
}

/// The row that each token reads for each tap, and the rows that become states.
fn conv_rows(
    formulas: &Formulas,
    layer: usize,
    taps: usize,
    kept: &[StateWrite],
    pass: &Pass<'_>,
) -> Result<(Vec<Tensor>, Tensor)> {
    let (before, spans) = (taps - 1, &pass.batch().spans);
    let key = (pass.kv.place(layer)?, pass.kv.group(layer)?, before);
    if let Some(known) = pass.prepared.borrow().convolved.get(&key) {
        return Ok(known.clone());
    }
    // The row `back` rows before the one that follows `count` tokens of a span.
    let row = |span: usize, count: usize, back: usize| {
        let at = if count >= back {
            spans.len() * before + spans[span].start + count - back
        } else {
            span * before + before + count - back
        };
        at as u32
    };
    let mut read = Vec::with_capacity(taps);
    for back in (1..=taps).rev() {
        let of = |(index, span): (usize, &Span<'_>)| (1..=span.len).map(move |count| row(index, count, back));
        let ids: Vec<u32> = spans.iter().enumerate().flat_map(of).collect();
        read.push(formulas.ids(&ids)?);
    }
    let of = |one: &StateWrite| {
        let (span, count) = (one.span, one.end - spans[one.span].start);
        (1..=before).rev().map(move |back| row(span, count, back)).collect::<Vec<_>>()
    };
    let last: Vec<u32> = kept.iter().flat_map(of).collect();
    let indices = (read, formulas.ids(&last)?);
    pass.prepared.borrow_mut().convolved.insert(key, indices.clone());
    Ok(indices)
}

pub(super) fn recurrence(spec: &Recurrence, x: Inputs<'_>, pass: &Pass<'_>) -> Result<Tensor> {
    let read = without_skip(spec, x, pass)?;
    let Some(skip) = x.skip else { return Ok(read) };
    let rows = x.v.dim(0)?;
    let heads = |x: &Tensor| x.reshape((rows, spec.heads, spec.value_dim));
    let past = heads(x.v)?.broadcast_mul(&skip.reshape((spec.heads, 1))?)?;
    Ok((heads(&read)? + past)?.reshape((rows, spec.heads * spec.value_dim))?)
}

/// The output of a recurrence, without the skip connection.
fn without_skip(spec: &Recurrence, x: Inputs<'_>, pass: &Pass<'_>) -> Result<Tensor> {
    let (spans, kept) = (&pass.batch().spans, pass.state_writes(spec.layer)?);
    let states = pass.states(spec.layer, spec.part)?;
    if spans.iter().all(|span| span.len == 1) && kept.len() == spans.len() {
        let matrices = states.reshape((spans.len() * spec.heads, spec.key_dim, spec.value_dim))?;
        let (out, matrices) = stretch(&Stretch::of(spec, x, 0, (spans.len(), 1))?, &matrices)?;
        pass.write_states(spec.layer, spec.part, &kept, &matrices.reshape((spans.len(), spec.values()))?)?;
        return Ok(out.reshape((spans.len(), spec.heads * spec.value_dim))?);
    }
    let (mut outs, mut stored) = (Vec::new(), Vec::with_capacity(kept.len()));
    for (index, span) in spans.iter().enumerate() {
        let mut matrices = states.narrow(0, index, 1)?.reshape((spec.heads, spec.key_dim, spec.value_dim))?;
        let mut row = span.start;
        for one in kept.iter().filter(|one| one.span == index) {
            while row < one.end {
                let len = STRETCH.min(one.end - row);
                let (out, after) = stretch(&Stretch::of(spec, x, row, (1, len))?, &matrices)?;
                let out = out.transpose(0, 1)?.contiguous()?.reshape((len, spec.heads * spec.value_dim))?;
                outs.push(out);
                (matrices, row) = (after, row + len);
            }
            stored.push(matrices.reshape((1, spec.values()))?);
        }
    }
    pass.write_states(spec.layer, spec.part, &kept, &Tensor::cat(&stored, 0)?)?;
    Ok(Tensor::cat(&outs, 0)?)
}

impl Stretch {
    /// The rows from `row` on, `len` for each of `n` sequences, head by head.
    fn of(spec: &Recurrence, x: Inputs<'_>, row: usize, (n, len): (usize, usize)) -> Result<Self> {
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
        let own = |x: &Tensor, width: usize| -> Result<Tensor> {
            Ok(part(x, spec.heads)?.reshape((n * spec.heads, len, width))?)
        };
        Ok(Self {
            q: shared(x.q)?,
            k: shared(x.k)?,
            v: own(x.v, spec.value_dim)?,
            decay: own(x.decay, 1)?,
            beta: own(x.beta, 1)?,
            corrects: x.corrects,
        })
    }
}

/// Returns the output of a stretch's tokens, `[n, len, value_dim]`, and the state matrices after them.
fn stretch(x: &Stretch, matrices: &Tensor) -> Result<(Tensor, Tensor)> {
    let (_, len, _) = x.k.dims3()?;
    // The decay up to each token, as a logarithm, and from each token to each later one, as a factor.
    let (n, device) = (x.k.dim(0)?, x.k.device());
    let sums = square(len, |row, column| f32::from(u8::from(column <= row)), device)?;
    let faded = sums.broadcast_as((n, len, len))?.contiguous()?.matmul(&x.decay)?;
    let later = square(len, |row, column| if column <= row { 0.0 } else { f32::NEG_INFINITY }, device)?;
    let between = faded.broadcast_sub(&faded.transpose(1, 2)?.contiguous()?)?.broadcast_add(&later)?.exp()?;
    let keys = x.k.transpose(1, 2)?.contiguous()?;
    let so_far = faded.exp()?;
    let written = if x.corrects {
        let known = x.k.matmul(matrices)?.broadcast_mul(&so_far)?;
        let wanted = (&x.v - known)?.broadcast_mul(&x.beta)?;
        solve(&(x.k.matmul(&keys)? * &between)?.broadcast_mul(&x.beta)?, &wanted)?
    } else {
        x.v.broadcast_mul(&x.beta)?
    };
    let read = x.q.matmul(matrices)?.broadcast_mul(&so_far)?;
    let out = (read + (x.q.matmul(&keys)? * between)?.matmul(&written)?)?;
    let end = faded.narrow(1, len - 1, 1)?;
    let left = end.broadcast_sub(&faded)?.exp()?;
    let added = x.k.broadcast_mul(&left)?.transpose(1, 2)?.contiguous()?.matmul(&written)?;
    Ok((out, (matrices.broadcast_mul(&end.exp()?)? + added)?))
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
