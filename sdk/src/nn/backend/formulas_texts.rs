//! Attention within whole texts in stock candle ops.
//!
//! Texts that follow each other are computed together, padded to the longest, as long as their scores fit: the number of
//! ops depends on the size of a step, not on its number of texts.

use candle_core::Tensor;

use super::Formulas;
use crate::{
    Result, Span,
    nn::{
        memory::pass::{Group, Pass},
        spec::TextAttention,
    },
};

/// Limit on the scores in memory at once: 64 MB.
const SCORES_MAX: usize = 16 << 20;

pub(super) fn attention(
    formulas: &Formulas,
    spec: &TextAttention,
    [q, k, v]: [&Tensor; 3],
    biases: Option<&Tensor>,
    pass: &Pass<'_>,
) -> Result<Tensor> {
    let groups = groups(&pass.batch().spans, spec.heads);
    let outs = groups.into_iter().map(|group| attend(formulas, spec, ([q, k, v], biases), group, pass));
    let outs = outs.collect::<Result<Vec<_>>>()?;
    if let [only] = outs.as_slice() { Ok(only.clone()) } else { Ok(Tensor::cat(&outs, 0)?) }
}

/// Groups consecutive texts whose padded scores stay within the limit.
fn groups(spans: &[Span<'_>], heads: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, span) in spans.iter().enumerate() {
        let fits = |group: &Group| {
            let all = group.all.max(span.len);
            (group.len + 1).saturating_mul(heads).saturating_mul(all * all) <= SCORES_MAX
        };
        match groups.last_mut().filter(|group| fits(group)) {
            Some(group) => *group = Group { len: group.len + 1, all: group.all.max(span.len), ..*group },
            None => groups.push(Group { start: index, len: 1, all: span.len }),
        }
    }
    groups
}

/// Attends within the texts of a group; its rows are consecutive.
fn attend(
    formulas: &Formulas,
    spec: &TextAttention,
    (qkv, biases): ([&Tensor; 3], Option<&Tensor>),
    group: Group,
    pass: &Pass<'_>,
) -> Result<Tensor> {
    let TextAttention { heads, kv_heads, head_dim, .. } = *spec;
    let spans = &pass.batch().spans[group.start..group.start + group.len];
    let padded = padded(formulas, group, pass)?;
    let by_head = |x: &Tensor, heads: usize| -> Result<Tensor> {
        let x = x.index_select(&padded, 0)?.reshape((group.len, group.all, heads, head_dim))?;
        Ok(x.transpose(1, 2)?.contiguous()?)
    };
    let q = by_head(qkv[0], heads)?;
    let k = by_head(qkv[1], kv_heads)?.reshape((group.len * kv_heads, group.all, head_dim))?;
    let v = by_head(qkv[2], kv_heads)?.reshape((group.len * kv_heads, group.all, head_dim))?;
    // A text so long that its scores alone exceed the limit is computed some rows at a time.
    let rows_at_once = (SCORES_MAX / (heads * group.len * group.all)).clamp(1, group.all);
    let mut parts = Vec::new();
    for start in (0..group.all).step_by(rows_at_once) {
        let len = rows_at_once.min(group.all - start);
        let q = q.narrow(2, start, len)?.force_contiguous()?;
        let q = q.reshape((group.len * kv_heads, heads / kv_heads * len, head_dim))?;
        let mut scores = (q.matmul(&k.transpose(1, 2)?)? * f64::from(spec.scale))?;
        if let Some(biases) = biases {
            let biases = by_distance(formulas, biases, (start, len), group.all)?;
            let dims = (group.len, heads, len, group.all);
            let sum = scores.reshape(dims)?.broadcast_add(&biases.unsqueeze(0)?)?;
            scores = sum.reshape((group.len * kv_heads, heads / kv_heads * len, group.all))?;
        }
        if let Some(mask) = mask(formulas, spec.reach, group, (start, len), pass)? {
            let dims = (group.len, heads, len, group.all);
            let mask = mask.reshape((group.len, 1, len, group.all))?.broadcast_as(dims)?.contiguous()?;
            let sum = (scores.reshape(dims)? + mask)?;
            scores = sum.reshape((group.len * kv_heads, heads / kv_heads * len, group.all))?;
        }
        let out = formulas.softmax(&scores)?.matmul(&v)?;
        parts.push(out.reshape((group.len, heads, len, head_dim))?);
    }
    let out = if let [only] = parts.as_slice() { only.clone() } else { Tensor::cat(&parts, 2)? };
    let out = out.transpose(1, 2)?.contiguous()?.reshape((group.len * group.all, heads * head_dim))?;
    if spans.iter().all(|span| span.len == group.all) {
        return Ok(out);
    }
    let rows = spans.iter().enumerate().flat_map(|(text, span)| {
        let first = (text * group.all) as u32;
        first..first + span.len as u32
    });
    Ok(out.index_select(&formulas.ids(&rows.collect::<Vec<_>>())?, 0)?)
}

/// The biases of some rows' scores, `[heads, rows, all]`.
fn by_distance(formulas: &Formulas, biases: &Tensor, (start, len): (usize, usize), all: usize) -> Result<Tensor> {
    let (heads, distances) = biases.dims2()?;
    let far = distances / 2;
    let place = |row: usize, column: usize| (column + far).saturating_sub(row).min(distances - 1) as u32;
    let places: Vec<u32> =
        (start..start + len).flat_map(|row| (0..all).map(move |column| place(row, column))).collect();
    Ok(biases.index_select(&formulas.ids(&places)?, 1)?.reshape((heads, len, all))?)
}

/// The rows of a group's texts, each padded to the longest by its own last row, which the mask hides.
fn padded(formulas: &Formulas, group: Group, pass: &Pass<'_>) -> Result<Tensor> {
    if let Some(rows) = pass.prepared.borrow().texts.get(&group) {
        return Ok(rows.clone());
    }
    let spans = &pass.batch().spans[group.start..group.start + group.len];
    let rows = spans.iter().flat_map(|span| {
        let (first, end) = (span.start as u32, (span.start + span.len) as u32);
        (first..first + group.all as u32).map(move |row| row.min(end - 1))
    });
    let rows = formulas.ids(&rows.collect::<Vec<_>>())?;
    pass.prepared.borrow_mut().texts.insert(group, rows.clone());
    Ok(rows)
}

/// The mask of some rows of each text, `[texts, rows, all]`: −∞ for padding, and for tokens out of reach. Padding itself
/// sees everything, so that no row is without a score.
fn mask(
    formulas: &Formulas,
    reach: Option<usize>,
    group: Group,
    (start, len): (usize, usize),
    pass: &Pass<'_>,
) -> Result<Option<Tensor>> {
    let spans = &pass.batch().spans[group.start..group.start + group.len];
    let reach = reach.filter(|&reach| reach + 1 < group.all);
    if reach.is_none() && spans.iter().all(|span| span.len == group.all) {
        return Ok(None);
    }
    // An encoder lies on one device.
    let key = (0, group, start, reach, false);
    if let Some(mask) = pass.prepared.borrow().masks.get(&key) {
        return Ok(Some(mask.clone()));
    }
    let mut values = Vec::with_capacity(group.len * len * group.all);
    for span in spans {
        for row in start..start + len {
            let is_seen = |column: usize| {
                row >= span.len || column < span.len && reach.is_none_or(|reach| column.abs_diff(row) <= reach)
            };
            values.extend((0..group.all).map(|column| if is_seen(column) { 0.0 } else { f32::NEG_INFINITY }));
        }
    }
    let mask = Tensor::from_vec(values, (group.len, len, group.all), &formulas.device)?;
    // Keeping the masks of a text that is split into many parts would take the memory that splitting saves.
    if len == group.all {
        pass.prepared.borrow_mut().masks.insert(key, mask.clone());
    }
    Ok(Some(mask))
}
