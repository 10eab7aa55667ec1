//! Products with weights in `f32`, `f16`, `bf16` and FP8.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::float::{BF16, Dense, F16, F32, Fp8};
use super::super::simd::{Kernel, Simd};
use super::super::tile::{PAIR, TILE, in_tiles, tile};
use super::panels::Panels;
use super::{Output, PanelTask};
use pensieve_weights::Dtype;

/// Columns per step: a pair of panels of this width leaves room in the L1 cache.
const SEGMENT: usize = 128;

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
