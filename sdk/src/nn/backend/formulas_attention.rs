//! Attention in stock candle ops: gathered keys and values, plain products, masks.
//!
//! Sequences that decode one token each are computed together, padded to the longest, so that the number of ops does
//! not grow with the number of sequences; a prompt chunk is computed by itself. Index tensors and masks are built once
//! for all layers of a step.

use candle_core::Tensor;

use super::Formulas;
use crate::{
    Result, Span,
    nn::{
        memory::{
            kv::KvCache,
            pass::{Group, Pass},
            store::Store,
        },
        spec::Attention,
    },
};

/// Limit on the scores in memory at once: 64 MB.
const SCORES_MAX: usize = 16 << 20;

/// Limit on the gathered key elements in memory at once, and on the value elements: 128 MB.
pub(super) const GATHERED_MAX: usize = 32 << 20;

/// Some rows of each span of a group.
#[derive(Clone, Copy)]
struct Rows {
    start: usize,
    len: usize,
}

pub(super) fn attention(
    formulas: &Formulas,
    spec: &Attention,
    q: &Tensor,
    new: Option<(&Tensor, Option<&Tensor>)>,
    pass: &mut Pass<'_>,
) -> Result<Tensor> {
    if let Some((k, v)) = new {
        remember(formulas, spec.layer, [Some(k), v], pass)?;
    }
    let groups = groups(&pass.batch().spans, spec.kv_heads * spec.head_dim);
    let outs = groups.into_iter().map(|group| attend(formulas, spec, q, group, pass));
    let outs = outs.collect::<Result<Vec<_>>>()?;
    if let [only] = outs.as_slice() { Ok(only.clone()) } else { Ok(Tensor::cat(&outs, 0)?) }
}

/// Groups consecutive one-token spans as long as the elements gathered for them, `width` per token, stay within the
/// limit.
fn groups(spans: &[Span<'_>], width: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, span) in spans.iter().enumerate() {
        let all = span.past + span.len;
        let follows = |group: &Group| {
            span.len == 1 && spans[group.start].len == 1 && (group.len + 1) * group.all.max(all) * width <= GATHERED_MAX
        };
        match groups.last_mut().filter(|group| follows(group)) {
            Some(group) => *group = Group { len: group.len + 1, all: group.all.max(all), ..*group },
            None => groups.push(Group { start: index, len: 1, all }),
        }
    }
    groups
}

/// Writes the new tokens' keys and values into their slots.
pub(super) fn remember(
    formulas: &Formulas,
    layer: usize,
    new: [Option<&Tensor>; 2],
    pass: &mut Pass<'_>,
) -> Result<()> {
    let (tokens, kv_heads) = (pass.input().tokens.len(), pass.kv.attention(layer)?.kv_heads);
    for (place, values) in new.into_iter().enumerate() {
        let Some(values) = values else { continue };
        let (dim, kind) = (values.dim(1)? / kv_heads, pass.kv.kind);
        let targets = targets(formulas, (layer, kv_heads), kind.row_elements(dim), pass)?;
        let memory = pass.kv.layer(layer)?[place].tensor()?;
        let heads = values.reshape((tokens, kv_heads, dim))?.transpose(0, 1)?.contiguous()?;
        memory.scatter_set(&targets, &formulas.narrow(&heads, kind)?, 1)?;
    }
    Ok(())
}

/// Target slots for the new tokens' heads of `dim` elements: one per element, in the source's shape, as `scatter_set`
/// requires.
fn targets(formulas: &Formulas, (layer, kv_heads): (usize, usize), dim: usize, pass: &Pass<'_>) -> Result<Tensor> {
    let (tokens, group) = (pass.tokens().len(), pass.kv.group(layer)?);
    let key = (pass.kv.place(layer)?, group, kv_heads, dim);
    if let Some(targets) = pass.prepared.borrow().targets.get(&key) {
        return Ok(targets.clone());
    }
    let mut slots = Vec::with_capacity(tokens * dim);
    for span in &pass.batch().spans {
        let of_span = KvCache::slots_of(span, group, span.past..span.past + span.len)?;
        slots.extend(of_span.into_iter().flat_map(|slot| std::iter::repeat_n(slot, dim)));
    }
    let slots = formulas.ids(&slots)?.reshape((1, tokens, dim))?;
    let targets = slots.broadcast_as((kv_heads, tokens, dim))?.contiguous()?;
    pass.prepared.borrow_mut().targets.insert(key, targets.clone());
    Ok(targets)
}

/// Attends from a group's new tokens to all tokens of their sequences.
fn attend(formulas: &Formulas, spec: &Attention, q: &Tensor, group: Group, pass: &mut Pass<'_>) -> Result<Tensor> {
    let (slots, kind) = (slots(formulas, spec, group, pass)?, pass.kv.kind);
    let [keys, values] = pass.kv.layer(spec.layer)?;
    let gather = |store: &Store, dim: usize| -> Result<Tensor> {
        let gathered = formulas.widen(&store.tensor()?.index_select(&slots, 1)?, kind, dim)?;
        Ok(gathered.reshape((spec.kv_heads * group.len, group.all, dim))?)
    };
    let keys = gather(keys, spec.head_dim)?;
    let values = match values {
        Store::Nothing => keys.narrow(2, 0, spec.value_dim)?.contiguous()?,
        values => gather(values, spec.value_dim)?,
    };
    let span = &pass.batch().spans[group.start];
    // Scores of all rows at once would take memory quadratic in the prompt's length.
    let rows_at_once = (SCORES_MAX / (spec.heads * group.len * group.all)).max(1);
    let mut parts = Vec::new();
    for start in (0..span.len).step_by(rows_at_once) {
        let rows = Rows { start, len: rows_at_once.min(span.len - start) };
        let mask = mask(formulas, spec, group, rows, pass)?;
        let q = formulas.rows(q, span.start + start, group.len * rows.len)?;
        parts.push(attend_rows(formulas, spec, &q, (&keys, &values), mask, (group, rows))?);
    }
    if let [only] = parts.as_slice() { Ok(only.clone()) } else { Ok(Tensor::cat(&parts, 0)?) }
}

/// Attends from some rows; the query heads that share a key head become rows of one product.
fn attend_rows(
    formulas: &Formulas,
    spec: &Attention,
    q: &Tensor,
    (keys, values): (&Tensor, &Tensor),
    mask: Option<Tensor>,
    (group, rows): (Group, Rows),
) -> Result<Tensor> {
    let (spans, all, shared) = (group.len, group.all, spec.heads / spec.kv_heads);
    let q = if spans == 1 {
        q.reshape((rows.len, spec.heads, spec.head_dim))?
    } else {
        q.reshape((spans, spec.kv_heads, shared * spec.head_dim))?
    };
    let q = q.transpose(0, 1)?.contiguous()?;
    let q = q.reshape((spec.kv_heads * spans, shared * rows.len, spec.head_dim))?;
    let mut scores = (q.matmul(&keys.transpose(1, 2)?)? * f64::from(spec.scale))?;
    if let Some(cap) = spec.softcap {
        scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
    }
    if let Some(mask) = mask {
        let dims =
            if spans == 1 { (spec.kv_heads, shared, rows.len, all) } else { (spec.kv_heads, spans, shared, all) };
        let mask = mask.reshape((1, mask.dim(0)?, mask.dim(1)?, all))?.broadcast_as(dims)?.contiguous()?;
        scores = (scores.reshape(dims)? + mask)?.reshape((spec.kv_heads * spans, (), all))?;
    }
    let weights = match &spec.sinks {
        Some(sinks) => {
            // One row of scores for each head of each span, or for each row of a span's heads.
            let (heads, of_each) =
                if spans == 1 { ((spec.kv_heads, shared, 1), rows.len) } else { ((spec.kv_heads, 1, shared), spans) };
            let sinks = sinks.reshape(heads)?;
            let sinks = if spans == 1 {
                sinks.broadcast_as((spec.kv_heads, shared, of_each))?
            } else {
                sinks.broadcast_as((spec.kv_heads, of_each, shared))?
            };
            let sinks = sinks.contiguous()?.reshape((spec.kv_heads * spans, shared * rows.len, 1))?;
            formulas.softmax(&Tensor::cat(&[&scores, &sinks], 2)?)?.narrow(2, 0, all)?.force_contiguous()?
        }
        None => formulas.softmax(&scores)?,
    };
    let out = weights.matmul(values)?;
    let out = if spans == 1 {
        out.reshape((spec.heads, rows.len, spec.value_dim))?
    } else {
        out.reshape((spec.kv_heads, spans, shared * spec.value_dim))?
    };
    Ok(out.transpose(0, 1)?.contiguous()?.reshape((spans * rows.len, spec.heads * spec.value_dim))?)
}

/// The attention mask, added to the scores: −∞ where a token must not attend. `[1, rows, all]` for one span's rows,
/// `[spans, 1, all]` for decoding spans.
fn mask(formulas: &Formulas, spec: &Attention, group: Group, rows: Rows, pass: &Pass<'_>) -> Result<Option<Tensor>> {
    let spans = &pass.batch().spans[group.start..group.start + group.len];
    let window = spec.window.filter(|&window| window < group.all);
    let is_padded = spans.iter().any(|span| span.past + span.len != group.all);
    if spans[0].len == 1 && window.is_none() && !is_padded {
        return Ok(None);
    }
    let seen = pass.seen(spec);
    let key = (pass.kv.place(spec.layer)?, group, rows.start, window, seen.is_some());
    if let Some(mask) = pass.prepared.borrow().masks.get(&key) {
        return Ok(Some(mask.clone()));
    }
    let hidden = |(position, end): (usize, usize), column: usize| {
        column >= end || window.is_some_and(|window| position.saturating_sub(column) >= window)
    };
    let row = |span: &Span<'_>, row: usize| {
        let position = span.past + row;
        (position, seen.as_ref().map_or(position + 1, |seen| seen[span.start + row] as usize))
    };
    let rows_of = |span| (rows.start..rows.start + rows.len).map(move |at| row(span, at));
    let mask: Vec<f32> = spans
        .iter()
        .flat_map(rows_of)
        .flat_map(|at| (0..group.all).map(move |column| if hidden(at, column) { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    let mask = Tensor::from_vec(mask, (group.len, rows.len, group.all), &formulas.device)?;
    // Caching the masks of a prompt split into many parts would take the memory that splitting saves.
    if rows.len == spans[0].len {
        pass.prepared.borrow_mut().masks.insert(key, mask.clone());
    }
    Ok(Some(mask))
}

/// The slots of all tokens in a group's sequences, each padded with slots that its mask hides.
fn slots(formulas: &Formulas, spec: &Attention, group: Group, pass: &Pass<'_>) -> Result<Tensor> {
    let (place, caches) = (pass.kv.place(spec.layer)?, pass.kv.group(spec.layer)?);
    if let Some(slots) = pass.prepared.borrow().slots.get(&(place, caches, group)) {
        return Ok(slots.clone());
    }
    let mut ids = Vec::with_capacity(group.len * group.all);
    for span in &pass.batch().spans[group.start..group.start + group.len] {
        let all = span.past + span.len;
        let slots = KvCache::slots_of(span, caches, 0..all)?;
        // The padding repeats one of the sequence's own slots: others may contain NaN.
        let padding = slots.last().copied().unwrap_or_default();
        ids.extend(slots);
        ids.extend(std::iter::repeat_n(padding, group.all - all));
    }
    let slots = formulas.ids(&ids)?;
    pass.prepared.borrow_mut().slots.insert((place, caches, group), slots.clone());
    Ok(slots)
}
