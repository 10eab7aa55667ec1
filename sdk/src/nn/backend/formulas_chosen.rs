//! Cached keys and values for an author's own use, and attention over chosen positions, in stock candle ops.
//!
//! Rows of all sequences are alike here: each gathers its own positions, padded to the longest choice, as many rows at
//! once as memory allows.

use candle_core::Tensor;

use super::{Formulas, formulas_attention::GATHERED_MAX};
use crate::{
    Result,
    nn::{
        memory::{kv::KvCache, pass::Pass, store::Store},
        spec::{Attention, Positions},
    },
};

/// All keys (`part` 0) or values (1) of a sequence up to the step's last token: `[tokens, kv_heads · dim]`.
pub(super) fn cached(
    formulas: &Formulas,
    layer: usize,
    part: usize,
    span: usize,
    pass: &mut Pass<'_>,
) -> Result<Tensor> {
    let (group, span, kind) = (pass.kv.group(layer)?, &pass.batch().spans[span], pass.kv.kind);
    let cache = pass.kv.attention(layer)?;
    let slots = formulas.ids(&KvCache::slots_of(span, group, 0..span.past + span.len)?)?;
    let gathered = pass.kv.layer(layer)?[part].tensor()?.index_select(&slots, 1)?;
    let gathered = formulas.widen(&gathered, kind, [cache.key_dim, cache.value_dim][part])?;
    Ok(gathered.transpose(0, 1)?.contiguous()?.flatten_from(1)?)
}

/// Attends from each token to its chosen positions, whose keys and values are in the cache.
pub(super) fn attention(
    formulas: &Formulas,
    spec: &Attention,
    q: &Tensor,
    chosen: &Positions,
    pass: &mut Pass<'_>,
) -> Result<Tensor> {
    let group = pass.kv.group(spec.layer)?;
    let spans = pass.batch().spans.iter().flat_map(|span| std::iter::repeat_n(span, span.len));
    let rows: Vec<_> = spans.zip(chosen.rows()).collect();
    let longest = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(1);
    let width = spec.kv_heads * spec.head_dim.max(spec.value_dim);
    let at_once = (GATHERED_MAX / (longest * width)).max(1);
    let mut outs = Vec::new();
    for (chunk, rows) in rows.chunks(at_once).enumerate() {
        let (mut slots, mut mask) = (Vec::new(), Vec::new());
        for (span, row) in rows {
            for &position in *row {
                slots.extend(KvCache::slots_of(span, group, position as usize..position as usize + 1)?);
            }
            // The padding repeats one of the row's own slots: others may contain NaN.
            let (padding, last) = (longest - row.len(), slots.last().copied().unwrap_or_default());
            slots.extend(std::iter::repeat_n(last, padding));
            mask.extend(std::iter::repeat_n(0.0, row.len()));
            mask.extend(std::iter::repeat_n(f32::NEG_INFINITY, padding));
        }
        let slots = formulas.ids(&slots)?;
        let mask = Tensor::from_vec(mask, (1, rows.len(), 1, longest), &formulas.device)?;
        let q = formulas.rows(q, chunk * at_once, rows.len())?;
        outs.push(attend(formulas, spec, &q, (&slots, &mask), pass)?);
    }
    if let [only] = outs.as_slice() { Ok(only.clone()) } else { Ok(Tensor::cat(&outs, 0)?) }
}

fn attend(
    formulas: &Formulas,
    spec: &Attention,
    q: &Tensor,
    (slots, mask): (&Tensor, &Tensor),
    pass: &mut Pass<'_>,
) -> Result<Tensor> {
    let (rows, heads, kv_heads) = (q.dim(0)?, spec.heads, spec.kv_heads);
    let (shared, longest, kind) = (heads / kv_heads, mask.dim(3)?, pass.kv.kind);
    let [keys, values] = pass.kv.layer(spec.layer)?;
    let gather = |store: &Store, dim: usize| -> Result<Tensor> {
        let gathered = formulas.widen(&store.tensor()?.index_select(slots, 1)?, kind, dim)?;
        Ok(gathered.reshape((kv_heads * rows, longest, dim))?)
    };
    let keys = gather(keys, spec.head_dim)?;
    let values = match values {
        Store::Nothing => keys.narrow(2, 0, spec.value_dim)?.contiguous()?,
        values => gather(values, spec.value_dim)?,
    };
    let by_head = |x: &Tensor, dim: usize| -> Result<Tensor> {
        let x = x.reshape((rows, kv_heads, shared * dim))?.transpose(0, 1)?.contiguous()?;
        Ok(x.reshape((kv_heads * rows, shared, dim))?)
    };
    let mut scores = (by_head(q, spec.head_dim)?.matmul(&keys.transpose(1, 2)?)? * f64::from(spec.scale))?;
    if let Some(cap) = spec.softcap {
        scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
    }
    let dims = (kv_heads, rows, shared, longest);
    let mut scores = (scores.reshape(dims)? + mask.broadcast_as(dims)?.contiguous()?)?;
    if let Some(sinks) = &spec.sinks {
        let sinks = sinks.reshape((kv_heads, 1, shared, 1))?.broadcast_as((kv_heads, rows, shared, 1))?.contiguous()?;
        scores = Tensor::cat(&[&scores, &sinks], 3)?;
    }
    let weights = formulas.softmax(&scores.reshape((kv_heads * rows, shared, ()))?)?;
    let weights = if spec.sinks.is_some() { weights.narrow(2, 0, longest)?.force_contiguous()? } else { weights };
    let out = weights.matmul(&values)?.reshape((kv_heads, rows, shared * spec.value_dim))?;
    Ok(out.transpose(0, 1)?.contiguous()?.reshape((rows, heads * spec.value_dim))?)
}
