//! Activations in 8 bits, cut into segments as the weights are.

use super::super::pool::Pool;
use super::super::quant::{Format, GROUPS, SEGMENT};
use super::super::simd::{Kernel, Level, Simd};

/// One segment of one row: `value = code · scale of the block`.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Piece {
    pub(super) codes: [i8; SEGMENT],
    /// The sum of the codes of each group of the weights, for their minimums.
    pub(super) sums: [f32; GROUPS],
    /// What the offset of the weights' codes adds to the dot product with each group, negated.
    pub(super) bias: [i32; GROUPS],
    /// One for each block.
    pub(super) scales: [f32; SEGMENT / 32],
}

const EMPTY: Piece = Piece { codes: [0; SEGMENT], sums: [0.0; GROUPS], bias: [0; GROUPS], scales: [0.0; SEGMENT / 32] };

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
        level.run(Quantize { values, block: F::BLOCK, group: F::GROUP, offset, piece });
    }
}

struct Quantize<'a> {
    values: &'a [f32],
    block: usize,
    group: usize,
    offset: i32,
    piece: &'a mut Piece,
}

impl<S: Simd> Kernel<S> for Quantize<'_> {
    #[inline(always)]
    fn run(self, _simd: S) {
        let Self { values, block, group, offset, piece } = self;
        for (b, (values, codes)) in values.chunks_exact(block).zip(piece.codes.chunks_exact_mut(block)).enumerate() {
            piece.scales[b] = quantize_block(values, codes);
        }
        for (g, codes) in piece.codes[..values.len()].chunks_exact(group).enumerate() {
            let sum = codes.iter().map(|code| i32::from(*code)).sum::<i32>();
            piece.sums[g] = sum as f32;
            piece.bias[g] = -offset * sum;
        }
    }
}

/// Rounds to codes in -127..=127 and returns their scale, which is not a number if any of the values is none or infinite.
#[inline(always)]
fn quantize_block(values: &[f32], codes: &mut [i8]) -> f32 {
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
    let largest = largest.into_iter().fold(0.0, f32::max);
    let poison = poison.into_iter().sum::<f32>();
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 127.0 / largest } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse + ROUND).to_bits() as i8;
    }
    scale + poison
}
