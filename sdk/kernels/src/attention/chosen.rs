//! Attention over chosen positions: reads only their keys and values, wherever their blocks are.
//!
//! Each row has its own positions, so that there are no tiles of keys to share between rows; the heads of a group share
//! each key and value that is loaded. Positions are summed in order, so a row's result does not depend on the batch.

use std::marker::PhantomData;

use super::{Past, Scores, load_part};
use crate::{
    float::{F16, F32, Float},
    kv::{Kv, KvLayout, Span},
    kv_packed::rotate_rows,
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
    let Past { keys: (layout, keys), values: (value_layout, _), value_dim } = past;
    let rows = chosen.len();
    assert!(heads > 0 && heads.is_multiple_of(layout.kv_heads), "{heads} heads over {layout:?}");
    assert!(q.len() == rows * heads * layout.head_dim && out.len() == rows * heads * value_dim, "{rows} rows");
    past.check();
    assert!(scores.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each of {heads} heads");
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
    let q = &*past.turned(pool, q);
    pool.run_pieces(out, together * value_dim, |index, out| {
        let (row, head) = (index * together / heads, index * together % heads);
        let (blocks, positions) = (of_rows[row].0.blocks, &chosen[row][..]);
        let q = &q[(row * heads + head) * layout.head_dim..][..together * layout.head_dim];
        let sinks = scores.sinks.map(|sinks| &sinks[head..head + together]);
        let kv_head = head / group;
        let attend = Heads { past, blocks, positions, kv_head, q, scores, sinks, out };
        match keys {
            Kv::F16(_) => pool.level().run(Attend::<F16>(attend, PhantomData)),
            // Packed rows are widened first.
            Kv::F32(_) | Kv::Packed(..) => pool.level().run(Attend::<F32>(attend, PhantomData)),
        }
    });
    if let Some((_, of_values)) = past.rotation() {
        rotate_rows(pool, out, value_dim, of_values);
    }
}

/// Some heads of one row, which share a cache head.
struct Heads<'a> {
    past: Past<'a>,
    blocks: &'a [u32],
    positions: &'a [u32],
    kv_head: usize,
    q: &'a [f32],
    scores: Scores<'a>,
    sinks: Option<&'a [f32]>,
    out: &'a mut [f32],
}

struct Attend<'a, F>(Heads<'a>, PhantomData<F>);

impl<S: Simd, F: Float> Kernel<S> for Attend<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self(of, _) = self;
        let (dim, value_dim, count) = (of.past.keys.0.head_dim, of.past.value_dim, of.positions.len());
        let (panels, value_panels) = (dim.div_ceil(S::LANES), value_dim.div_ceil(S::LANES));
        let heads = of.q.len() / dim;
        let zero = simd.splat(0.0);
        let mut queries = Vec::with_capacity(heads * panels);
        for q in of.q.chunks_exact(dim) {
            for part in q.chunks(S::LANES) {
                let mut lanes = [0.0; 64];
                for (lane, q) in lanes.iter_mut().zip(part) {
                    *lane = q * of.scores.scale;
                }
                queries.push(simd.load(&lanes));
            }
        }
        let (mut row, mut unpacked) = (vec![zero; panels.max(value_panels)], Vec::new());
        let mut weights = vec![0.0; heads * count];
        for (at, &position) in of.positions.iter().enumerate() {
            of.load::<S, F>(simd, of.past.keys, position, &mut unpacked, &mut row[..panels]);
            for (head, q) in queries.chunks_exact(panels).enumerate() {
                let mut product = zero;
                for panel in 0..panels {
                    product = simd.fma(q[panel], row[panel], product);
                }
                let score = simd.sum(product);
                weights[head * count + at] = match of.scores.softcap {
                    Some(cap) => (score / cap).tanh() * cap,
                    None => score,
                };
            }
        }
        let mut totals = Vec::with_capacity(heads);
        for (head, weights) in weights.chunks_exact_mut(count).enumerate() {
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = of.sinks.map_or(0.0, |sinks| (sinks[head] - top).exp());
            for weight in weights.iter_mut() {
                *weight = (*weight - top).exp();
                total += *weight;
            }
            totals.push(total);
        }
        let mut sums = vec![zero; heads * value_panels];
        for (at, &position) in of.positions.iter().enumerate() {
            of.load::<S, F>(simd, of.past.values, position, &mut unpacked, &mut row[..value_panels]);
            for (head, sums) in sums.chunks_exact_mut(value_panels).enumerate() {
                let weight = simd.splat(weights[head * count + at]);
                for panel in 0..value_panels {
                    sums[panel] = simd.fma(weight, row[panel], sums[panel]);
                }
            }
        }
        for (head, out) in of.out.chunks_exact_mut(value_dim).enumerate() {
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

impl Heads<'_> {
    /// Loads and widens a position's row, as far as the vectors have room, padded with zeros.
    #[inline(always)]
    fn load<S: Simd, F: Float>(
        &self,
        simd: S,
        (layout, cache): (KvLayout, Kv<'_>),
        position: u32,
        unpacked: &mut Vec<f32>,
        row: &mut [S::F],
    ) {
        let slot = self.kv_head * layout.slots + layout.slot(self.blocks, position as usize);
        let each = cache.row_bytes(layout.head_dim);
        let mut bytes = &cache.bytes()[slot * each..][..each];
        if let Kv::Packed(packing, _) = cache {
            unpacked.resize(layout.head_dim, 0.0);
            packing.unpack(bytes, unpacked);
            bytes = Kv::F32(unpacked).bytes();
        }
        for (to, bytes) in row.iter_mut().zip(bytes.chunks(S::LANES * F::BYTES)) {
            *to = load_part::<S, F>(simd, bytes);
        }
    }
}
