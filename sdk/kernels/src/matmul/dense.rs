//! Products with weights in `f32`, `f16`, `bf16` and FP8.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::float::{BF16, Dense, F16, F32, Fp8};
use super::super::pool::{Disjoint, Pool};
use super::super::simd::{Kernel, Simd};
use super::super::tile::{PAIR, TILE, in_tiles, tile};
use super::Matrix;
use super::panels::Panels;
use pensieve_weights::Dtype;

/// Columns per step: a pair of panels of this width leaves room in the L1 cache.
const SEGMENT: usize = 128;

pub(super) fn multiply(pool: &Pool, w: &Matrix<'_>, x: &[f32], out: &mut [f32]) {
    match w.dtype {
        Dtype::F16 => pool.level().run(Multiply::<F16> { pool, w, x, out, format: PhantomData }),
        Dtype::BF16 => pool.level().run(Multiply::<BF16> { pool, w, x, out, format: PhantomData }),
        Dtype::Fp8 => pool.level().run(Multiply::<Fp8> { pool, w, x, out, format: PhantomData }),
        _ => pool.level().run(Multiply::<F32> { pool, w, x, out, format: PhantomData }),
    }
}

struct Multiply<'a, F> {
    pool: &'a Pool,
    w: &'a Matrix<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<S: Simd, F: Dense> Kernel<S> for Multiply<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let panels = Panels::new(self.w, S::LANES);
        let out = Disjoint::new(self.out);
        let (x, cols) = (self.x, self.w.cols);
        panels.share(self.pool, |pairs| {
            simd.enter(Stretch::<F> { panels: &panels, pairs, cols, x, out: &out, format: PhantomData });
        });
    }
}

/// Some pairs of panels times the whole batch.
struct Stretch<'a, F> {
    panels: &'a Panels<'a>,
    pairs: Range<usize>,
    cols: usize,
    x: &'a [f32],
    out: &'a Disjoint<'a, f32>,
    format: PhantomData<F>,
}

impl<S: Simd, F: Dense> Kernel<S> for Stretch<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let (n, zero) = (self.x.len() / self.cols, simd.splat(0.0));
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
                    self.panels.prefetch(index, start / SEGMENT, F::bytes(SEGMENT), part);
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
