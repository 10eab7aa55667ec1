//! Products with weights in `f32`, `f16`, `bf16` and FP8.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::float::{BF16, Dense, F16, F32, Fp8};
use super::super::simd::{Kernel, Rows, Simd};
use super::super::tile::{PAIR, TILE, in_tiles, tile};
use super::panels::{AHEAD, Panels};
use super::{Output, PanelTask};
use pensieve_weights::Dtype;

/// Columns per step: a pair of panels of this width leaves room in the L1 cache.
const SEGMENT: usize = 128;

/// Bytes of a cache line.
const LINE: usize = 64;

/// How many lines of a row lie between what is prefetched and what is read.
const LINES_AHEAD: usize = 8;

/// Most lanes that a set has.
const LANES_MAX: usize = 16;

/// Computes pairs of panels times the whole batch, which has so many columns.
pub(super) fn task<'a, S: Simd + 'a>(
    simd: S,
    dtype: Dtype,
    panels: Panels<'a>,
    x: (&'a [f32], usize),
    out: Output<'a>,
) -> PanelTask<'a> {
    match dtype {
        Dtype::F16 => task_of::<S, F16>(simd, panels, x, out),
        Dtype::BF16 => task_of::<S, BF16>(simd, panels, x, out),
        Dtype::Fp8 => task_of::<S, Fp8>(simd, panels, x, out),
        _ => task_of::<S, F32>(simd, panels, x, out),
    }
}

fn task_of<'a, S: Simd + 'a, F: Dense + 'a>(
    simd: S,
    panels: Panels<'a>,
    (x, cols): (&'a [f32], usize),
    out: Output<'a>,
) -> PanelTask<'a> {
    Box::new(move |pairs| {
        simd.enter(Stretch::<F> { panels: &panels, pairs, cols, x, out: &out, format: PhantomData });
    })
}

/// Some pairs of panels times the whole batch.
struct Stretch<'a, F> {
    panels: &'a Panels<'a>,
    pairs: Range<usize>,
    cols: usize,
    x: &'a [f32],
    out: &'a Output<'a>,
    format: PhantomData<F>,
}

impl<S: Simd, F: Dense> Kernel<S> for Stretch<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let (n, zero) = (self.x.len() / self.cols, simd.splat(0.0));
        if F::VALUE_BYTES.is_some_and(|bytes| (self.cols * bytes).is_multiple_of(LINE)) {
            match n {
                1 if S::LANES >= 8 => return self.multiply_rows::<S, 1>(simd),
                // AVX2, with half the registers, gains with one row alone. NEON was not measured.
                2 if S::LANES >= 16 => return self.multiply_rows::<S, 2>(simd),
                3 if S::LANES >= 16 => return self.multiply_rows::<S, 3>(simd),
                4 if S::LANES >= 16 => return self.multiply_rows::<S, 4>(simd),
                _ => {}
            }
        }
        let mut pair = [[zero; SEGMENT]; PAIR];
        let mut sums = vec![[zero; PAIR]; n];
        for index in self.pairs {
            sums.fill([zero; PAIR]);
            for start in (0..self.cols).step_by(SEGMENT) {
                let values = SEGMENT.min(self.cols - start);
                for (panel, unpacked) in pair.iter_mut().enumerate() {
                    let rows = self.panels.rows(index, panel).skip(F::bytes(start));
                    F::fill(simd, rows, &mut unpacked[..values]);
                }
                let x = &self.x[start..];
                let pair = [&pair[0][..values], &pair[1][..values]];
                in_tiles!(n, TILE, |rows| {
                    let part = PAIR * S::LANES * rows.start / n..PAIR * S::LANES * rows.end / n;
                    self.panels.prefetch(index, start / SEGMENT, F::bytes(SEGMENT), part, AHEAD);
                    if start + values == self.cols {
                        self.panels.prefetch_out(index, rows.clone(), self.out);
                    }
                    tile(simd, pair, &x[rows.start * self.cols..], self.cols, &mut sums[rows]);
                });
            }
            self.panels.write(simd, index, &sums, self.out);
        }
    }
}

impl<F: Dense> Stretch<'_, F> {
    /// [`run`](Kernel::run) for so few rows of activations that weights need not be written down as they are unpacked.
    ///
    /// Rows of weights are often a power of two apart. Then their lines share a few places in the cache, and replace each other
    /// before all of a line is used. So each line is read once, into a window over two lines of its row, the weights being
    /// as far into a line as they are in memory.
    #[inline(always)]
    fn multiply_rows<S: Simd, const N: usize>(self, simd: S) {
        let zero = simd.splat(0.0);
        let piece = LINE / F::VALUE_BYTES.unwrap_or(LINE);
        let together = 16 / F::VALUE_BYTES.unwrap_or(16);
        let offset = self.panels.offset_in(LINE);
        let mut windows = [const { Windows([0; 2 * LINE * LANES_MAX]) }; PAIR];
        let mut unpacked = [[zero; 8]; PAIR];
        for index in self.pairs {
            let pair = [0, 1].map(|panel| self.panels.rows(index, panel));
            for (rows, windows) in pair.iter().zip(&mut windows) {
                for row in 0..S::LANES {
                    let first = &rows.bytes[row * rows.stride..][..LINE - offset];
                    windows.of(row)[offset..LINE].copy_from_slice(first);
                }
            }
            let (mut sums, mut of_segment) = ([[zero; PAIR]; N], [[zero; PAIR]; N]);
            for start in (0..self.cols).step_by(piece) {
                for (panel, (rows, windows)) in pair.iter().zip(&mut windows).enumerate() {
                    let lanes = panel * S::LANES..(panel + 1) * S::LANES;
                    self.panels.prefetch(index, start / piece, LINE, lanes, LINES_AHEAD);
                    for row in 0..S::LANES {
                        let line = row * rows.stride + F::bytes(start) + LINE - offset;
                        let next = &mut windows.of(row)[LINE..];
                        match rows.bytes.get(line..line + LINE) {
                            Some(line) => next.copy_from_slice(line),
                            None => {
                                let rest = rows.bytes.get(line..).unwrap_or_default();
                                next[..rest.len()].copy_from_slice(rest);
                            }
                        }
                    }
                }
                for first in (0..piece).step_by(together) {
                    for (windows, unpacked) in windows.iter().zip(&mut unpacked) {
                        let rows = Rows { bytes: &windows.0[offset + F::bytes(first)..], stride: 2 * LINE };
                        F::fill(simd, rows, &mut unpacked[..together]);
                    }
                    let [left, right] = &unpacked;
                    for (at, (left, right)) in left.iter().zip(right).enumerate().take(together) {
                        for (i, sums) in of_segment.iter_mut().enumerate() {
                            let value = simd.splat(self.x[i * self.cols + start + first + at]);
                            *sums = [simd.fma(*left, value, sums[0]), simd.fma(*right, value, sums[1])];
                        }
                    }
                }
                for windows in &mut windows {
                    for row in 0..S::LANES {
                        windows.of(row).copy_within(LINE.., 0);
                    }
                }
                let end = start + piece;
                if end.is_multiple_of(SEGMENT) || end == self.cols {
                    for (sums, of_segment) in sums.iter_mut().zip(&mut of_segment) {
                        for p in 0..PAIR {
                            sums[p] = simd.add(sums[p], of_segment[p]);
                            of_segment[p] = zero;
                        }
                    }
                }
            }
            self.panels.write(simd, index, &sums, self.out);
        }
    }
}

/// Two lines of each row of a panel.
#[repr(align(64))]
struct Windows([u8; 2 * LINE * LANES_MAX]);

impl Windows {
    #[inline(always)]
    fn of(&mut self, row: usize) -> &mut [u8] {
        &mut self.0[2 * LINE * row..][..2 * LINE]
    }
}
