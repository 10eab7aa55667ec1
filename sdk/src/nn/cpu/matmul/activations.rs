//! Activations in 8 bits, cut into segments as the weights are.
//!
//! A scale stands for 32 values, also where the weights have blocks of 256: one scale for all of those would have to reach the
//! largest of them, and models have single activations that are far larger than the rest.

use super::super::pool::Pool;
use super::super::quant::{Format, GROUPS, SEGMENT};
use super::super::simd::{Kernel, Level, Simd};

/// Values that share a scale.
const SHARE: usize = 32;

/// One segment of one row: `value = code · scale of the group`.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Piece {
    pub(super) codes: [i8; SEGMENT],
    /// The sum of the values of each group of the weights, for their minimums.
    pub(super) sums: [f32; GROUPS],
    /// What the offset of the weights' codes adds to the dot product with each group, negated.
    pub(super) bias: [i32; GROUPS],
    /// One for each group.
    pub(super) scales: [f32; GROUPS],
}

const EMPTY: Piece = Piece { codes: [0; SEGMENT], sums: [0.0; GROUPS], bias: [0; GROUPS], scales: [0.0; GROUPS] };

impl Piece {
    /// Four codes, the first in the lowest byte.
    #[inline(always)]
    pub(super) fn word(&self, index: usize) -> u32 {
        let [a, b, c, d] = self.codes.as_chunks::<4>().0[index];
        u32::from_le_bytes([a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()])
    }
}

/// All rows of the first segment, then all rows of the second, and so on: the order in which panels take them.
pub(super) struct Activations {
    pieces: Vec<Piece>,
    pub(super) n: usize,
}

impl Activations {
    /// For products with weights of a format whose codes are `offset` too high.
    pub(super) fn quantize<F: Format>(pool: &Pool, x: &[f32], cols: usize, offset: i32) -> Self {
        let n = x.len() / cols;
        let mut pieces = vec![EMPTY; n * cols.div_ceil(SEGMENT)];
        let level = pool.level();
        // Below some thousand values another thread costs more than it brings.
        let rows = (1_usize << 14).div_ceil(SEGMENT).max(n.div_ceil(8));
        pool.run_pieces(&mut pieces, rows, |task, pieces| {
            quantize_pieces::<F>(level, pieces, task * rows, x, n, offset);
        });
        Self { pieces, n }
    }

    /// Every row's piece of a segment.
    pub(super) fn segment(&self, segment: usize) -> &[Piece] {
        &self.pieces[segment * self.n..(segment + 1) * self.n]
    }
}

fn quantize_pieces<F: Format>(level: Level, pieces: &mut [Piece], first: usize, x: &[f32], n: usize, offset: i32) {
    let cols = x.len() / n;
    for (i, piece) in pieces.iter_mut().enumerate() {
        let (segment, row) = ((first + i) / n, (first + i) % n);
        let values = &x[row * cols + segment * SEGMENT..row * cols + cols.min((segment + 1) * SEGMENT)];
        level.run(Quantize { values, group: F::GROUP, offset, piece });
    }
}

struct Quantize<'a> {
    values: &'a [f32],
    group: usize,
    offset: i32,
    piece: &'a mut Piece,
}

impl<S: Simd> Kernel<S> for Quantize<'_> {
    #[inline(always)]
    fn run(self, _simd: S) {
        let Self { values, group, offset, piece } = self;
        let groups = SHARE / group;
        for (share, (values, codes)) in values.chunks_exact(SHARE).zip(piece.codes.chunks_exact_mut(SHARE)).enumerate()
        {
            let scale = quantize_values(values, codes);
            for (g, codes) in codes.chunks_exact(group).enumerate() {
                let (g, sum) = (share * groups + g, codes.iter().map(|code| i32::from(*code)).sum::<i32>());
                piece.scales[g] = scale;
                piece.sums[g] = sum as f32 * scale;
                piece.bias[g] = -offset * sum;
            }
        }
    }
}

/// Rounds to codes in -127..=127 and returns their scale, which is not a number if any of the values is none or infinite.
#[inline(always)]
fn quantize_values(values: &[f32], codes: &mut [i8]) -> f32 {
    // Adding it leaves the nearest integer in the low bits of a small number.
    const ROUND: f32 = 12_582_912.0;
    let (mut largest, mut poison) = ([0.0_f32; 16], [0.0_f32; 16]);
    for values in values.as_chunks::<16>().0 {
        for lane in 0..16 {
            let size = values[lane].abs();
            largest[lane] = if size > largest[lane] { size } else { largest[lane] };
            poison[lane] += values[lane] * 0.0;
        }
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            let other = largest[lane + half];
            largest[lane] = if other > largest[lane] { other } else { largest[lane] };
            poison[lane] += poison[lane + half];
        }
    }
    let (largest, poison) = (largest[0], poison[0]);
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 127.0 / largest } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse + ROUND).to_bits() as i8;
    }
    scale + poison
}
