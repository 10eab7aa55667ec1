//! Attention over the KV cache: grouped heads, causal, optionally within a sliding window.

use candle_core::{DType, Tensor};

use super::{
    Step,
    cpu::{self, Pool},
    kv::{KvCache, Store},
    view::{tensor, view},
};
use crate::{Error, Result, Span};

/// Scores that the generic path holds at once: 64 MB.
const SCORES_MAX: usize = 16 << 20;

/// Some rows of a span.
#[derive(Clone, Copy)]
struct Rows {
    start: usize,
    len: usize,
}

/// One layer's attention. It owns no weights: projections are linear layers of the model's own.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which layer of the KV cache is its.
    pub layer: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; `heads` is a multiple of it.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
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
        Ok(Self { layer, heads, kv_heads, head_dim, scale, window: None, softcap: None, sinks: None })
    }

    /// Remembers the new tokens' `k` and `v` (`[tokens, kv_heads · head_dim]`), and has each token of `q`
    /// (`[tokens, heads · head_dim]`) attend to its sequence so far.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let tokens = step.tokens().len();
        for (x, heads) in [(q, self.heads), (k, self.kv_heads), (v, self.kv_heads)] {
            step.ops().check(x, 2)?;
            if x.dims2()? != (tokens, heads * self.head_dim) {
                return Err(Error::invalid(format!(
                    "attention over {heads} heads of {} was given {:?} for {tokens} tokens",
                    self.head_dim,
                    x.dims()
                )));
            }
        }
        let shape = step.kv.shape;
        if (shape.kv_heads, shape.head_dim) != (self.kv_heads, self.head_dim) {
            let message = format!("attention of {} heads of {} values over a cache of", self.kv_heads, self.head_dim);
            return Err(Error::invalid(format!("{message} {} heads of {}", shape.kv_heads, shape.head_dim)));
        }
        match step.ops().pool() {
            Some(pool) => self.forward_in_place(pool, q, k, v, step),
            None => self.forward_generic(q, k, v, step),
        }
    }
}

/// The path of the CPU kernels: keys and values are read where they lie.
impl Attention {
    fn forward_in_place(&self, pool: &Pool, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let spans = step.batch().spans.iter();
        let spans: Vec<_> = spans
            .map(|span| cpu::Span { start: span.start, len: span.len, past: span.past, blocks: span.blocks })
            .collect();
        let layout = step.kv.layout();
        let kind = step.kv.kind;
        let [keys, values] = step.kv.layer(self.layer)?;
        cpu::store_kv(layout, keys.mapped_mut(kind)?, &view(k)?, &spans);
        cpu::store_kv(layout, values.mapped_mut(kind)?, &view(v)?, &spans);
        let sinks = self.sinks.as_ref().map(view).transpose()?;
        let (scale, window, softcap) = (self.scale, self.window, self.softcap);
        let scores = cpu::Scores { scale, window, softcap, sinks: sinks.as_deref() };
        let q_values = view(q)?;
        let mut out = vec![0.0; q_values.len()];
        let (keys, values) = (keys.mapped(kind)?, values.mapped(kind)?);
        cpu::attention(pool, layout, keys, values, &spans, scores, self.heads, &q_values, &mut out);
        tensor(out, q.dims2()?)
    }
}

/// The generic path: per sequence, gathered keys and values, plain products.
impl Attention {
    fn forward_generic(&self, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.remember(k, v, step)?;
        let spans = &step.batch().spans;
        let outs = spans.iter().enumerate().map(|(index, span)| self.attend(q, index, span, step));
        let outs = outs.collect::<Result<Vec<_>>>()?;
        if let [only] = outs.as_slice() { Ok(only.clone()) } else { Ok(Tensor::cat(&outs, 0)?) }
    }

    /// Writes the new tokens' keys and values into their slots.
    fn remember(&self, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<()> {
        let tokens = step.tokens().len();
        let targets = step.prepared.borrow().targets.clone();
        let targets = match targets {
            Some(targets) => targets,
            None => {
                // One slot per value, in the shape of the source, as `scatter_set` wants it.
                let spans = step.batch().spans.iter();
                let slots = spans.flat_map(|span| KvCache::slots_of(span, span.past..span.past + span.len));
                let slots: Vec<u32> = slots.flat_map(|slot| std::iter::repeat_n(slot, self.head_dim)).collect();
                let slots = step.ops().ids(&slots)?.reshape((1, tokens, self.head_dim))?;
                let targets = slots.broadcast_as((self.kv_heads, tokens, self.head_dim))?.contiguous()?;
                step.prepared.borrow_mut().targets = Some(targets.clone());
                targets
            }
        };
        for (store, values) in step.kv.layer(self.layer)?.iter().zip([k, v]) {
            let memory = store.tensor()?;
            let heads = values.reshape((tokens, self.kv_heads, self.head_dim))?.transpose(0, 1)?.contiguous()?;
            memory.scatter_set(&targets, &heads.to_dtype(memory.dtype())?, 1)?;
        }
        Ok(())
    }

    /// One sequence's new tokens over all of its tokens. The query heads of a group become rows of one product.
    fn attend(&self, q: &Tensor, index: usize, span: &Span<'_>, step: &mut Step<'_>) -> Result<Tensor> {
        let slots = slots(index, span, step)?;
        let [keys, values] = step.kv.layer(self.layer)?;
        let gather =
            |store: &Store| -> Result<Tensor> { Ok(store.tensor()?.index_select(&slots, 1)?.to_dtype(DType::F32)?) };
        let (keys, values) = (gather(keys)?, gather(values)?);
        // Scores of all rows at once would take memory with the square of a prompt's length.
        let rows_at_once = (SCORES_MAX / (self.heads * (span.past + span.len))).max(1);
        let mut parts = Vec::new();
        for start in (0..span.len).step_by(rows_at_once) {
            let rows = Rows { start, len: rows_at_once.min(span.len - start) };
            let mask = self.mask((index, rows), span, step)?;
            parts.push(self.attend_rows(
                &step.ops().rows(q, span.start + start, rows.len)?,
                &keys,
                &values,
                mask,
                step,
            )?);
        }
        if let [only] = parts.as_slice() { Ok(only.clone()) } else { Ok(Tensor::cat(&parts, 0)?) }
    }

    fn attend_rows(
        &self,
        rows: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<Tensor>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let (ops, len, all, group) = (step.ops(), rows.dim(0)?, keys.dim(1)?, self.heads / self.kv_heads);
        let rows = rows.reshape((len, self.heads, self.head_dim))?.transpose(0, 1)?.contiguous()?;
        let rows = rows.reshape((self.kv_heads, group * len, self.head_dim))?;
        let mut scores = (ops.matmul_transposed(&rows, keys)? * f64::from(self.scale))?;
        if let Some(cap) = self.softcap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        if let Some(mask) = mask {
            let mask = mask.broadcast_as((group, len, all))?.contiguous()?;
            scores = scores.broadcast_add(&mask.reshape((1, group * len, all))?)?;
        }
        let weights = match &self.sinks {
            Some(sinks) => {
                let sinks = sinks.reshape((self.kv_heads, group, 1))?.broadcast_as((self.kv_heads, group, len))?;
                let sinks = sinks.contiguous()?.reshape((self.kv_heads, group * len, 1))?;
                ops.softmax(&Tensor::cat(&[&scores, &sinks], 2)?)?.narrow(2, 0, all)?.force_contiguous()?
            }
            None => ops.softmax(&scores)?,
        };
        let out = ops.matmul(&weights, values)?;
        let out = out.reshape((self.heads, len, self.head_dim))?.transpose(0, 1)?.contiguous()?;
        Ok(out.reshape((len, self.heads * self.head_dim))?)
    }

    /// What is added to the scores of some rows of a span, `[1, rows, past + len]`: −∞ where a token may not look.
    fn mask(&self, key: (usize, Rows), span: &Span<'_>, step: &Step<'_>) -> Result<Option<Tensor>> {
        let (rows, all) = (key.1, span.past + span.len);
        let window = self.window.filter(|&window| window < all);
        if span.len == 1 && window.is_none() {
            return Ok(None);
        }
        let key = (key.0, rows.start, window);
        if let Some(mask) = step.prepared.borrow().masks.get(&key) {
            return Ok(Some(mask.clone()));
        }
        let visible = |row: usize, column: usize| {
            let position = span.past + rows.start + row;
            column <= position && window.is_none_or(|window| position - column < window)
        };
        let mask: Vec<f32> = (0..rows.len)
            .flat_map(|row| (0..all).map(move |column| if visible(row, column) { 0.0 } else { f32::NEG_INFINITY }))
            .collect();
        let mask = Tensor::from_vec(mask, (1, rows.len, all), step.ops().device())?;
        // Masks of a prompt in many parts would take the memory that the parts save.
        if rows.len == span.len {
            step.prepared.borrow_mut().masks.insert(key, mask.clone());
        }
        Ok(Some(mask))
    }
}

/// The slots of all tokens of a span's sequence, built once for all layers.
fn slots(index: usize, span: &Span<'_>, step: &Step<'_>) -> Result<Tensor> {
    if let Some(slots) = step.prepared.borrow().slots.get(&index) {
        return Ok(slots.clone());
    }
    let ids: Vec<u32> = KvCache::slots_of(span, 0..span.past + span.len).collect();
    let slots = step.ops().ids(&ids)?;
    step.prepared.borrow_mut().slots.insert(index, slots.clone());
    Ok(slots)
}
