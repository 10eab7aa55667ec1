//! Recurrences in stock candle ops, and the short convolutions before them. Sequences that decode one token each are
//! computed together.

mod stretch;

use candle_core::Tensor;

use self::stretch::Stretch;
use super::Formulas;
use crate::{
    Error, Result, Span,
    nn::{
        memory::{pass::Pass, states::StateWrite},
        spec::{Inputs, Recurrence, ShortConv},
    },
};

/// A short convolution over the step's rows, gathered from one tensor: the states' rows, then the step's.
pub(super) fn short_conv(formulas: &Formulas, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
    let (taps, channels) = conv.taps.dims2()?;
    let states = pass.states(conv.layer, conv.part)?;
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
    pass.write_states(conv.layer, conv.part, &kept, &last)?;
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

pub(super) fn recurrence(spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Tensor> {
    let read = without_skip(spec, x, pass)?;
    let Some(skip) = &x.skip else { return Ok(read) };
    let rows = x.v.dim(0)?;
    let heads = |x: &Tensor| x.reshape((rows, spec.heads, spec.value_dim));
    let past = heads(&x.v)?.broadcast_mul(&skip.reshape((spec.heads, ()))?)?;
    Ok((heads(&read)? + past)?.reshape((rows, spec.heads * spec.value_dim))?)
}

/// The output of a recurrence, without the skip connection.
fn without_skip(spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Tensor> {
    let (spans, kept) = (&pass.batch().spans, pass.state_writes(spec.layer)?);
    let states = pass.states(spec.layer, spec.part)?;
    if spans.iter().all(|span| span.len == 1) && kept.len() == spans.len() {
        let matrices = states.reshape((spans.len() * spec.heads, spec.key_dim, spec.value_dim))?;
        let (out, matrices) = Stretch::of(spec, x, 0, (spans.len(), 1))?.advance(&matrices)?;
        pass.write_states(spec.layer, spec.part, &kept, &matrices.reshape((spans.len(), spec.values()))?)?;
        return Ok(out.reshape((spans.len(), spec.heads * spec.value_dim))?);
    }
    let (mut outs, mut stored) = (Vec::new(), Vec::with_capacity(kept.len()));
    for (index, span) in spans.iter().enumerate() {
        let mut matrices = states.narrow(0, index, 1)?.reshape((spec.heads, spec.key_dim, spec.value_dim))?;
        let mut row = span.start;
        for one in kept.iter().filter(|one| one.span == index) {
            while row < one.end {
                let len = Stretch::len_max(x).min(one.end - row);
                let (out, after) = Stretch::of(spec, x, row, (1, len))?.advance(&matrices)?;
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
