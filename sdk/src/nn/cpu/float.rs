//! The formats of numbers that are no blocks: `f32`, `f16`, `bf16`.

use super::simd::{Rows, Simd, half};

pub(super) trait Float: Send + Sync + 'static {
    const BYTES: usize;
    fn widen(bytes: &[u8]) -> f32;
    /// The values of 16 bytes, given as four columns, in order.
    fn unpack<S: Simd>(simd: S, columns: [S::U; 4], out: &mut [S::F]);
    /// The first `LANES` values of some bytes.
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, columns: [S::U; 4], out: &mut [S::F]) {
        for i in 0..4 {
            out[i] = simd.bits_to_f32(columns[i]);
        }
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::F {
        simd.bits_to_f32(simd.load_bits(bytes))
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        half(bytes, 0)
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, columns: [S::U; 4], out: &mut [S::F]) {
        for i in 0..4 {
            out[2 * i] = simd.low_half(columns[i]);
            out[2 * i + 1] = simd.high_half(columns[i]);
        }
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::F {
        simd.load_halves(bytes)
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(bytes[0]) << 16 | u32::from(bytes[1]) << 24)
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, columns: [S::U; 4], out: &mut [S::F]) {
        for i in 0..4 {
            out[2 * i] = simd.bits_to_f32(simd.shl(columns[i], 16));
            out[2 * i + 1] = simd.bits_to_f32(simd.and(columns[i], simd.splat_bits(0xffff_0000)));
        }
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::F {
        simd.bits_to_f32(simd.shl(simd.load_words(bytes), 16))
    }
}

/// The values of `LANES` rows, a row to a lane; `out` says how many.
#[inline(always)]
pub(super) fn fill<S: Simd, F: Float>(simd: S, rows: Rows<'_>, out: &mut [S::F]) {
    let mut chunks = out.chunks_exact_mut(16 / F::BYTES);
    let mut done = 0;
    for out in &mut chunks {
        F::unpack(simd, simd.columns(rows, done * F::BYTES), out);
        done += out.len();
    }
    for (i, out) in chunks.into_remainder().iter_mut().enumerate() {
        let mut lanes = [0.0; 64];
        for (row, lane) in lanes[..S::LANES].iter_mut().enumerate() {
            *lane = F::widen(&rows.bytes[row * rows.stride + (done + i) * F::BYTES..]);
        }
        *out = simd.load(&lanes);
    }
}
