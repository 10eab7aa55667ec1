//! Attention within whole texts, as in encoders: every row sees its text in both directions, and nothing is cached.
//!
//! Keys and values are laid out by head, each text at the start of a block, and then go through the tiles of paged
//! attention. So a text's rows are the same to the last bit, whatever else is in the batch.

use std::ops::Range;

use super::{Distances, Past, Scores, attention};
use crate::{
    kv::{Kv, KvLayout, Span},
    pool::Pool,
};

/// A multiple of every vector's lanes, so that whole vectors of positions are read.
const BLOCK: usize = 16;

/// The heads of attention within texts. Consecutive query heads share a key head.
#[derive(Clone, Copy, Debug)]
pub struct TextHeads<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// How far from itself a row sees, to either side; `None` for the whole text.
    pub reach: Option<usize>,
    pub distances: Option<Distances<'a>>,
}

/// Attends from the rows of texts, `q[n, heads, head_dim]`, to the rows of their own text in `k` and `v`, `[n, kv_heads,
/// head_dim]`: `out[n, heads, head_dim]`. Texts are ranges of rows that do not overlap.
pub fn attention_within(
    pool: &Pool,
    of: TextHeads<'_>,
    texts: &[Range<usize>],
    [q, k, v]: [&[f32]; 3],
    out: &mut [f32],
) {
    let TextHeads { heads, kv_heads, head_dim, scale, reach, distances } = of;
    let n = k.len() / (kv_heads * head_dim).max(1);
    assert!(kv_heads * head_dim > 0 && k.len() == n * kv_heads * head_dim && v.len() == k.len(), "{} keys", k.len());
    assert!(texts.iter().all(|text| text.start <= text.end && text.end <= n), "texts of {n} rows");
    let blocks: Vec<Vec<u32>> = texts
        .iter()
        .scan(0, |next, text| {
            let first = *next;
            *next += text.len().div_ceil(BLOCK) as u32;
            Some((first..*next).collect())
        })
        .collect();
    let slots = BLOCK * blocks.iter().map(Vec::len).sum::<usize>();
    let layout = KvLayout { kv_heads, slots, head_dim, block_len: BLOCK };
    let spans = texts.iter().zip(&blocks);
    let spans: Vec<_> =
        spans.map(|(text, blocks)| Span { start: text.start, len: text.len(), past: 0, blocks }).collect();
    let [keys, values] = [k, v].map(|rows| by_head(pool, layout, rows, &spans));
    let past = Past { keys: (layout, Kv::F32(&keys)), values: (layout, Kv::F32(&values)), value_dim: head_dim };
    let (window, ahead) = (reach.map(|reach| reach.saturating_add(1)), reach.unwrap_or(usize::MAX));
    let scores = Scores { scale, window, ahead, seen: None, softcap: None, sinks: None, distances };
    attention(pool, past, &spans, scores, heads, q, out);
}

/// Copies `rows[n, kv_heads, head_dim]` to the layout of a cache.
fn by_head(pool: &Pool, layout: KvLayout, rows: &[f32], spans: &[Span<'_>]) -> Vec<f32> {
    let KvLayout { kv_heads, slots, head_dim, .. } = layout;
    let mut cache = vec![0.0; layout.elements()];
    pool.run_pieces(&mut cache, (slots * head_dim).max(1), |head, cache| {
        for span in spans {
            let Some(first) = span.blocks.first() else { continue };
            let places = cache[*first as usize * BLOCK * head_dim..].chunks_exact_mut(head_dim);
            for (row, place) in (span.start..span.start + span.len).zip(places) {
                place.copy_from_slice(&rows[(row * kv_heads + head) * head_dim..][..head_dim]);
            }
        }
    });
    cache
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618).sin() * 1.5).collect()
    }

    /// One row's output for one head, in `f64`.
    fn expected(of: TextHeads<'_>, text: &Range<usize>, [q, k, v]: [&[f32]; 3], row: usize, head: usize) -> Vec<f64> {
        let TextHeads { heads, kv_heads, head_dim, scale, reach, distances } = of;
        let kv_head = head / (heads / kv_heads);
        let at = |of: &[f32], row: usize, heads: usize, head: usize| -> Vec<f64> {
            of[(row * heads + head) * head_dim..][..head_dim].iter().map(|x| f64::from(*x)).collect()
        };
        let q = at(q, row, heads, head);
        let seen: Vec<usize> = text.clone().filter(|other| reach.is_none_or(|r| other.abs_diff(row) <= r)).collect();
        let weight = |other: &usize| {
            let k = at(k, *other, kv_heads, kv_head);
            let bias = distances.map_or(0.0, |Distances { biases, far }| {
                let distance = (other.cast_signed() - row.cast_signed()).clamp(-far.cast_signed(), far.cast_signed());
                biases[head * (2 * far + 1) + (distance + far.cast_signed()).cast_unsigned()]
            });
            (q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale) + f64::from(bias)).exp()
        };
        let weights: Vec<f64> = seen.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; head_dim];
        for (other, weight) in seen.iter().zip(weights) {
            for (out, v) in out.iter_mut().zip(at(v, *other, kv_heads, kv_head)) {
                *out += weight / total * v;
            }
        }
        out
    }

    #[test]
    fn rows_see_their_own_text_in_both_directions_and_no_further_than_they_reach() {
        let texts = [0..1, 1..71, 71..74, 74..202, 202..267];
        let cases = [
            (6, 2, 64, None, None),
            (4, 4, 20, None, None),
            (2, 2, 16, Some(0), None),
            (2, 1, 16, Some(3), None),
            (3, 3, 32, Some(64), None),
            (6, 2, 64, None, Some(0)),
            (2, 2, 16, None, Some(9)),
            (2, 2, 16, None, Some(70)),
            (3, 3, 32, Some(64), Some(200)),
        ];
        for (heads, kv_heads, head_dim, reach, far) in cases {
            let biases = numbers(heads * (2 * far.unwrap_or(0) + 1), 4);
            let distances = far.map(|far| Distances { biases: &biases, far });
            let of = TextHeads { heads, kv_heads, head_dim, scale: 0.3, reach, distances };
            let n = 267;
            let (q, k) = (numbers(n * heads * head_dim, 1), numbers(n * kv_heads * head_dim, 2));
            let v = numbers(n * kv_heads * head_dim, 3);
            for level in Level::available() {
                let pool = Pool::with_level(2, level);
                let mut out = vec![f32::NAN; q.len()];
                attention_within(&pool, of, &texts, [&q, &k, &v], &mut out);
                for text in &texts {
                    for (row, head) in text.clone().flat_map(|row| (0..heads).map(move |head| (row, head))) {
                        let right = expected(of, text, [&q, &k, &v], row, head);
                        let found = &out[(row * heads + head) * head_dim..][..head_dim];
                        for (found, right) in found.iter().zip(right) {
                            assert!((f64::from(*found) - right).abs() < 1e-5, "{of:?} row {row}: {found} {right}");
                        }
                    }
                    // Alone, a text gives the same bits.
                    let rows = |of: &[f32], heads: usize| {
                        of[text.start * heads * head_dim..text.end * heads * head_dim].to_vec()
                    };
                    let (q, k, v) = (rows(&q, heads), rows(&k, kv_heads), rows(&v, kv_heads));
                    let mut alone = vec![f32::NAN; q.len()];
                    let only = 0..text.len();
                    attention_within(&pool, of, std::slice::from_ref(&only), [&q, &k, &v], &mut alone);
                    assert_eq!(alone, rows(&out, heads), "{of:?} {text:?}");
                }
            }
        }
    }
}
