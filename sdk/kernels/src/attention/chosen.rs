//! Attention over chosen positions: reads only their keys and values, wherever their blocks are.
//!
//! Each row has its own positions, so that there are no tiles of keys to share between rows; the heads of a group share
//! each key and value that is loaded. Positions are summed in order, so a row's result does not depend on the batch.

use std::marker::PhantomData;

use super::{Past, Scores};
use crate::{
    float::{F16, F32, Float},
    kv::{Kv, KvLayout, Span},
    pool::Pool,
    simd::{Kernel, Simd},
};

/// Heads that share a key once it is loaded, at most.
const HEADS_MAX: usize = 8;

/// Attends from each row of some spans, which cover all rows in order, to its own positions: ascending, at least one,
/// and none behind the row. Otherwise like [`attention`](super::attention); a window is the caller's business.
pub fn attention_chosen(
    pool: &Pool,
    past: Past<'_>,
    (spans, chosen): (&[Span<'_>], &[Vec<u32>]),
    scores: Scores<'_>,
    heads: usize,
    q: &[f32],
    out: &mut [f32],
) {
    let Past { keys: (layout, keys), values: (value_layout, values), value_dim } = past;
    let rows = chosen.len();
    assert!(heads > 0 && heads.is_multiple_of(layout.kv_heads), "{heads} heads over {layout:?}");
    assert!(q.len() == rows * heads * layout.head_dim && out.len() == rows * heads * value_dim, "{rows} rows");
    assert!(layout.holds(keys) && value_layout.holds(values), "caches of {layout:?} and {value_layout:?}");
    assert!((1..=value_layout.head_dim).contains(&value_dim), "values of {value_dim} in {value_layout:?}");
    assert!(scores.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each of {heads} heads");
    let half = matches!(keys, Kv::F16(_));
    assert_eq!(half, matches!(values, Kv::F16(_)), "keys and values are of one kind");
    layout.check(rows, spans);
    value_layout.check(rows, spans);
    let of_rows: Vec<(&Span<'_>, usize)> =
        spans.iter().flat_map(|span| (0..span.len).map(move |at| (span, at))).collect();
    assert_eq!(of_rows.len(), rows, "rows of the spans");
    for (row, (span, at)) in of_rows.iter().enumerate() {
        assert_eq!(span.start + at, row, "spans cover the rows in order");
        let last = chosen[row].iter().max();
        assert!(last.is_some_and(|&last| last as usize <= span.past + at), "row {row} attends to {last:?}");
    }
    let group = heads / layout.kv_heads;
    let together = (1..=HEADS_MAX.min(group)).rev().find(|many| group.is_multiple_of(*many)).unwrap_or(1);
    pool.run_pieces(out, together * value_dim, |index, out| {
        let (row, head) = (index * together / heads, index * together % heads);
        let (blocks, positions) = (of_rows[row].0.blocks, &chosen[row][..]);
        let q = &q[(row * heads + head) * layout.head_dim..][..together * layout.head_dim];
        let sinks = scores.sinks.map(|sinks| &sinks[head..head + together]);
        let kv_head = head / group;
        if half {
            pool.level().run(Attend::<F16> {
                past,
                blocks,
                positions,
                kv_head,
                q,
                scores,
                sinks,
                out,
                format: PhantomData,
            });
        } else {
            pool.level().run(Attend::<F32> {
                past,
                blocks,
                positions,
                kv_head,
                q,
                scores,
                sinks,
                out,
                format: PhantomData,
            });
        }
    });
}

/// Some heads of one row, which share a cache head.
struct Attend<'a, F> {
    past: Past<'a>,
    blocks: &'a [u32],
    positions: &'a [u32],
    kv_head: usize,
    q: &'a [f32],
    scores: Scores<'a>,
    sinks: Option<&'a [f32]>,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<S: Simd, F: Float> Kernel<S> for Attend<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let (dim, value_dim, count) = (self.past.keys.0.head_dim, self.past.value_dim, self.positions.len());
        let (panels, value_panels) = (dim.div_ceil(S::LANES), value_dim.div_ceil(S::LANES));
        let heads = self.q.len() / dim;
        let zero = simd.splat(0.0);
        let mut queries = Vec::with_capacity(heads * panels);
        for q in self.q.chunks_exact(dim) {
            for part in q.chunks(S::LANES) {
                let mut lanes = [0.0; 64];
                for (lane, q) in lanes.iter_mut().zip(part) {
                    *lane = q * self.scores.scale;
                }
                queries.push(simd.load(&lanes));
            }
        }
        let mut row = vec![zero; panels.max(value_panels)];
        let mut weights = vec![0.0; heads * count];
        for (at, &position) in self.positions.iter().enumerate() {
            load::<S, F>(simd, self.slot(self.past.keys, position), dim, &mut row);
            for (head, q) in queries.chunks_exact(panels).enumerate() {
                let mut product = zero;
                for panel in 0..panels {
                    product = simd.fma(q[panel], row[panel], product);
                }
                let score = simd.sum(product);
                weights[head * count + at] = match self.scores.softcap {
                    Some(cap) => (score / cap).tanh() * cap,
                    None => score,
                };
            }
        }
        let mut totals = Vec::with_capacity(heads);
        for (head, weights) in weights.chunks_exact_mut(count).enumerate() {
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = self.sinks.map_or(0.0, |sinks| (sinks[head] - top).exp());
            for weight in weights.iter_mut() {
                *weight = (*weight - top).exp();
                total += *weight;
            }
            totals.push(total);
        }
        let mut sums = vec![zero; heads * value_panels];
        for (at, &position) in self.positions.iter().enumerate() {
            load::<S, F>(simd, self.slot(self.past.values, position), value_dim, &mut row);
            for (head, sums) in sums.chunks_exact_mut(value_panels).enumerate() {
                let weight = simd.splat(weights[head * count + at]);
                for panel in 0..value_panels {
                    sums[panel] = simd.fma(weight, row[panel], sums[panel]);
                }
            }
        }
        for (head, out) in self.out.chunks_exact_mut(value_dim).enumerate() {
            for (panel, out) in out.chunks_mut(S::LANES).enumerate() {
                let mut lanes = [0.0; 64];
                simd.store(sums[head * value_panels + panel], &mut lanes);
                for (out, lane) in out.iter_mut().zip(lanes) {
                    *out = lane / totals[head];
                }
            }
        }
    }
}

impl<F: Float> Attend<'_, F> {
    /// The bytes of a cache starting at a position's slot.
    #[inline(always)]
    fn slot<'a>(&self, (layout, cache): (KvLayout, Kv<'a>), position: u32) -> &'a [u8] {
        let slot = self.kv_head * layout.slots + layout.slot(self.blocks, position as usize);
        &cache.bytes()[slot * layout.head_dim * F::BYTES..]
    }
}

/// Loads and widens the first `dim` values, padded with zeros to whole vectors.
#[inline(always)]
fn load<S: Simd, F: Float>(simd: S, bytes: &[u8], dim: usize, row: &mut [S::F]) {
    for (to, bytes) in row.iter_mut().zip(bytes[..dim * F::BYTES].chunks(S::LANES * F::BYTES)) {
        *to = if bytes.len() == S::LANES * F::BYTES {
            F::load(simd, bytes)
        } else {
            let mut lanes = [0.0; 64];
            for (lane, bytes) in lanes.iter_mut().zip(bytes.chunks_exact(F::BYTES)) {
                *lane = F::widen(bytes);
            }
            simd.load(&lanes)
        };
    }
}
