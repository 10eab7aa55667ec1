//! Activations quantized to 8 bits, cut into segments like the weights.
//!
//! A scale covers 32 values, even where weights have blocks of 256: a single scale for all of those would have to cover
//! the largest, and models have individual activations far larger than the rest.

use std::cell::RefCell;
use std::ops::Range;

use super::super::pool::Pool;
use super::super::quant::{Format, GROUPS, Layout, SEGMENT};
use super::super::simd::{Kernel, Simd, based};

/// Values per scale.
pub(super) const SHARE: usize = 32;

/// Bytes of activations used together, so that they stay in a core's L2 cache: every pair of panels passes over all of
/// them.
const CACHE: usize = 1 << 19;

/// Buffers that a thread keeps for the next activations, as to clear new ones takes as long as to fill them.
const KEPT: usize = 3;
const KEPT_PIECES: usize = (2 << 20) / size_of::<Piece>();

thread_local! {
    static FREE: RefCell<Vec<Vec<Piece>>> = const { RefCell::new(Vec::new()) };
}

/// One segment of one row: `value = code · scale`.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Piece {
    pub(super) codes: [i8; SEGMENT],
    /// One per [`SHARE`], with its [`base`](based).
    pub(super) scales: [f32; SEGMENT / SHARE],
    pub(super) bases: [f32; SEGMENT / SHARE],
    /// Per group of weights: if the format has minimums, the sum of the values, as the bits of an `f32`; otherwise the
    /// integer that a dot product starts with, which cancels the offset of the weights' codes.
    pub(super) rest: [u32; GROUPS],
}

const EMPTY: Piece =
    Piece { codes: [0; SEGMENT], scales: [0.0; SEGMENT / SHARE], bases: [0.0; SEGMENT / SHARE], rest: [0; GROUPS] };

impl Piece {
    /// Some columns' codes by fours.
    #[inline(always)]
    pub(super) fn words(&self, range: Range<usize>) -> &[[i8; 4]] {
        &self.codes.as_chunks().0[range]
    }

    /// Four codes as a word, the first in the lowest byte.
    #[inline(always)]
    pub(super) fn word(&self, index: usize) -> u32 {
        let [a, b, c, d] = self.codes.as_chunks::<4>().0[index];
        u32::from_le_bytes([a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()])
    }
}

/// How a format wants its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounding {
    /// Values per group of the weights.
    group: usize,
    /// Weights have minimums, so groups of activations need their sums.
    minimums: bool,
    /// How much too high the weights' codes are.
    offset: i32,
}

impl Rounding {
    pub(super) fn of<S: Simd, F: Format>() -> Self {
        let minimums = <F::Shape as Layout>::MINIMUMS;
        let is_wide = S::WIDE_IS_SIGNED && <F::Shape as Layout>::CODE_MAX > 127;
        Self { group: F::GROUP, minimums, offset: if is_wide { 0 } else { i32::from(F::OFFSET) } }
    }
}

/// All rows of the first segment, then all rows of the second, and so on: the order in which panels consume them.
pub(super) struct Activations {
    pieces: Vec<Piece>,
    pub(super) n: usize,
    pub(super) cols: usize,
    pub(super) rounding: Rounding,
}

impl Activations {
    /// Number of the `n` rows to compute together: about as many as fit the cache, but enough to pay for unpacking the
    /// weights.
    pub(super) fn batch(n: usize, cols: usize) -> usize {
        let most = (CACHE / (cols.div_ceil(SEGMENT) * size_of::<Piece>())).max(48);
        n.div_ceil((n / most).max(1))
    }

    pub(super) fn quantize(pool: &Pool, x: &[f32], cols: usize, rounding: Rounding) -> Self {
        let n = x.len() / cols;
        let len = n * cols.div_ceil(SEGMENT);
        let mut pieces = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        // What a short last segment leaves unwritten is not read.
        pieces.resize(len.max(pieces.len()), EMPTY);
        let level = pool.level();
        // Fewer values than that are not worth another thread.
        let rows = if x.len() < 1 << 14 { len.max(1) } else { ((1 << 12) / SEGMENT).max(n.div_ceil(8)) };
        pool.run_pieces(&mut pieces[..len], rows, |task, pieces| {
            for (i, piece) in pieces.iter_mut().enumerate() {
                let (segment, row) = ((task * rows + i) / n, (task * rows + i) % n);
                let values = &x[row * cols + segment * SEGMENT..row * cols + cols.min((segment + 1) * SEGMENT)];
                match rounding.group {
                    16 => level.run(Quantize::<16> { values, rounding, piece }),
                    SHARE => level.run(Quantize::<SHARE> { values, rounding, piece }),
                    group => unreachable!("groups have 16 or {SHARE} values, not {group}"),
                }
            }
        });
        Self { pieces, n, cols, rounding }
    }

    /// Returns every row's piece of a segment.
    pub(super) fn segment(&self, segment: usize) -> &[Piece] {
        &self.pieces[segment * self.n..(segment + 1) * self.n]
    }
}

impl Drop for Activations {
    fn drop(&mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        FREE.with_borrow_mut(|free| {
            if free.len() < KEPT && pieces.len() <= KEPT_PIECES {
                free.push(pieces);
            }
        });
    }
}

struct Quantize<'a, const GROUP: usize> {
    values: &'a [f32],
    rounding: Rounding,
    piece: &'a mut Piece,
}

impl<S: Simd, const GROUP: usize> Kernel<S> for Quantize<'_, GROUP> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { values, rounding: Rounding { minimums, offset, .. }, piece } = self;
        // Index loops over vectors, because iterator adaptors are not always inlined into a kernel.
        let (shares, _) = values.as_chunks::<SHARE>();
        let groups = SHARE / GROUP;
        for (share, of_share) in shares.iter().enumerate() {
            let (scale, base) = based(scale(simd, of_share));
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            piece.scales[share] = scale;
            piece.bases[share] = base;
            for group in 0..groups {
                let start = share * SHARE + group * GROUP;
                let codes = &mut piece.codes[start..start + GROUP];
                let sum = round(simd, &values[start..start + GROUP], inverse, codes);
                piece.rest[share * groups + group] = if minimums {
                    (sum * scale).to_bits()
                } else {
                    S::ORIGIN.wrapping_sub((offset * sum as i32).cast_unsigned())
                };
            }
        }
    }
}

/// The scale that maps the values to codes in -127..=127; NaN if any of the values is NaN or infinite.
#[inline(always)]
fn scale<S: Simd>(simd: S, values: &[f32; SHARE]) -> f32 {
    let zero = simd.splat(0.0);
    let (mut largest, mut poison) = (zero, zero);
    for part in 0..SHARE / S::LANES {
        let values = simd.load(&values[part * S::LANES..]);
        largest = simd.max(simd.max(values, simd.sub(zero, values)), largest);
        poison = simd.fma(values, zero, poison);
    }
    simd.top(largest) / 127.0 + simd.sum(poison)
}

/// Writes the values' codes and returns their sum.
#[inline(always)]
fn round<S: Simd>(simd: S, values: &[f32], inverse: f32, codes: &mut [i8]) -> f32 {
    // Adding this leaves the nearest integer in the low bits of a small number.
    let round = simd.splat(12_582_912.0);
    let mut sum = simd.splat(0.0);
    for part in 0..values.len() / S::LANES {
        let at = part * S::LANES;
        let rounded = simd.add(simd.mul(simd.load(&values[at..]), simd.splat(inverse)), round);
        simd.store_low_bytes(rounded, &mut codes[at..]);
        sum = simd.add(sum, simd.sub(rounded, round));
    }
    simd.sum(sum)
}
