//! Weights unpacked to right factors.
//!
//! A line has two columns of 16 rows of weights, in pairs. Quantized weights are first unpacked to codes and scales as for vectors, a
//! segment of a panel at a time, then scaled and rounded to `bf16`; dense ones are split into parts.

use std::marker::PhantomData;

use super::super::super::float::{BF16, Dense, F16, F32, Fp8};
use super::super::super::quant::{Format, Layout, SEGMENT, with_format};
use super::super::super::simd::{Amx, Avx512, Line, Rows, Simd, Split, TILE_COLS, TILE_ROWS, TileKernel};
use super::super::quantized::Panel;
use pensieve_weights::Dtype;

/// Unpacks `cols` columns of 16 rows of weights.
pub(super) type Filler = fn(Amx, Rows<'_>, usize, &mut Panel<Avx512>, &mut [Line]);

/// Where a segment of a format's rows begins, and how it is unpacked.
pub(super) fn filler(dtype: Dtype) -> (fn(usize) -> usize, Filler) {
    with_format!(
        dtype,
        F => (|cols| cols / F::BLOCK * F::BYTES, fill_quantized::<F>),
        match dtype {
            Dtype::F16 => (F16::bytes, fill_dense::<F16, 2>),
            Dtype::BF16 => (BF16::bytes, fill_dense::<BF16, 1>),
            Dtype::Fp8 => (Fp8::bytes, fill_dense::<Fp8, 2>),
            _ => (F32::bytes, fill_dense::<F32, 3>),
        }
    )
}

fn fill_quantized<F: Format>(amx: Amx, rows: Rows<'_>, cols: usize, panel: &mut Panel<Avx512>, lines: &mut [Line]) {
    amx.enter(FillQuantized::<F> { rows, cols, panel, lines, format: PhantomData });
}

struct FillQuantized<'a, F> {
    rows: Rows<'a>,
    cols: usize,
    panel: &'a mut Panel<Avx512>,
    lines: &'a mut [Line],
    format: PhantomData<F>,
}

impl<F: Format> TileKernel for FillQuantized<'_, F> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let simd = amx.avx512();
        let panel = self.panel;
        panel.fill::<F>(simd, self.rows, self.cols / F::BLOCK);
        let (byte, zero) = (simd.splat_bits(0xff), simd.splat(0.0));
        for group in 0..self.cols / F::GROUP {
            let scale = panel.scales[group];
            let mut least = simd.fnma(scale, simd.splat(f32::from(F::OFFSET)), zero);
            if <F::Shape as Layout>::MINIMUMS {
                least = simd.sub(least, panel.minimums[group]);
            }
            for word in group * F::GROUP / 4..(group + 1) * F::GROUP / 4 {
                let codes = panel.codes[word];
                let columns = [
                    simd.and(codes, byte),
                    simd.and(simd.shr(codes, 8), byte),
                    simd.and(simd.shr(codes, 16), byte),
                    simd.shr(codes, 24),
                ];
                for half in 0..2 {
                    let first = simd.fma(simd.integers_to_f32(columns[2 * half]), scale, least);
                    let second = simd.fma(simd.integers_to_f32(columns[2 * half + 1]), scale, least);
                    amx.store(amx.pairs([first, second]), &mut self.lines[2 * word + half]);
                }
            }
        }
    }
}

fn fill_dense<F: Dense, const PARTS: usize>(
    amx: Amx,
    rows: Rows<'_>,
    cols: usize,
    _panel: &mut Panel<Avx512>,
    lines: &mut [Line],
) {
    amx.enter(FillDense::<F, PARTS> { rows, cols, lines, format: PhantomData });
}

struct FillDense<'a, F, const PARTS: usize> {
    rows: Rows<'a>,
    cols: usize,
    lines: &'a mut [Line],
    format: PhantomData<F>,
}

impl<F: Dense, const PARTS: usize> TileKernel for FillDense<'_, F, PARTS> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let simd = amx.avx512();
        let mut columns = [simd.splat(0.0); SEGMENT];
        F::fill(simd, self.rows, &mut columns[..self.cols]);
        for line in 0..self.cols.div_ceil(TILE_COLS) * TILE_ROWS {
            Split(PARTS).store_pairs(amx, [columns[2 * line], columns[2 * line + 1]], line, self.lines);
        }
    }
}
