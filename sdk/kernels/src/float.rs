//! Unquantized formats (`f32`, `f16`, `bf16`), and FP8 with a scale per block.

use super::simd::{Rows, Simd, half};

pub(super) trait Float: Send + Sync + 'static {
    const BYTES: usize;
    fn widen(bytes: &[u8]) -> f32;
    /// Unpacks the values of 16 bytes, given as four columns, in order.
    fn unpack<S: Simd>(simd: S, columns: [S::U; 4], out: &mut [S::F]);
    /// Loads the first `LANES` values of some bytes.
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

/// A format's operations for dense products.
pub(super) trait Dense: Send + Sync + 'static {
    /// Bytes of each value, if they have no scales.
    const VALUE_BYTES: Option<usize>;
    /// Bytes of this many values of a row, which form whole blocks.
    fn bytes(values: usize) -> usize;
    /// Loads values of `LANES` rows, one row per lane, until `out` is full.
    fn fill<S: Simd>(simd: S, rows: Rows<'_>, out: &mut [S::F]);
    /// Widens one row.
    fn widen_row(bytes: &[u8], out: &mut [f32]);
}

impl<F: Float> Dense for F {
    const VALUE_BYTES: Option<usize> = Some(F::BYTES);

    fn bytes(values: usize) -> usize {
        values * F::BYTES
    }

    #[inline(always)]
    fn fill<S: Simd>(simd: S, rows: Rows<'_>, out: &mut [S::F]) {
        fill::<S, F>(simd, rows, out);
    }

    fn widen_row(bytes: &[u8], out: &mut [f32]) {
        for (bytes, out) in bytes.chunks_exact(F::BYTES).zip(out) {
            *out = F::widen(bytes);
        }
    }
}

/// An `f32` scale and 32 numbers of 1 sign bit, 4 exponent bits and 3 mantissa bits (E4M3). There are no infinities,
/// and loading a checkpoint rejects NaNs.
pub(super) struct Fp8;

/// Converts the exponent from eight bits to `f32`'s bias, subnormals included.
const REBIAS: f32 = f32::from_bits((120 + 127) << 23);

impl Fp8 {
    const BLOCK: usize = 32;
    const BYTES: usize = 36;
}

impl Dense for Fp8 {
    const VALUE_BYTES: Option<usize> = None;

    fn bytes(values: usize) -> usize {
        values / Self::BLOCK * Self::BYTES
    }

    #[inline(always)]
    fn fill<S: Simd>(simd: S, rows: Rows<'_>, out: &mut [S::F]) {
        let (sign, magnitude) = (simd.splat_bits(0x8000_0000), simd.splat_bits(0x07f0_0000));
        for (block, out) in out.chunks_exact_mut(Self::BLOCK).enumerate() {
            let rows = rows.skip(block * Self::BYTES);
            let scale = simd.bits_to_f32(simd.columns(rows, 0)[0]);
            for half in 0..2 {
                for (i, word) in simd.columns(rows, 4 + 16 * half).into_iter().enumerate() {
                    for byte in 0..4 {
                        // Byte at the top, sign in place, the rest four bits further down.
                        let top = simd.shl(word, 24 - 8 * byte as u32);
                        let bits = simd.or(simd.and(top, sign), simd.and(simd.shr(top, 4), magnitude));
                        let number = simd.mul(simd.bits_to_f32(bits), simd.splat(REBIAS));
                        out[16 * half + 4 * i + byte] = simd.mul(number, scale);
                    }
                }
            }
        }
    }

    fn widen_row(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(Self::BLOCK)) {
            let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            for (code, out) in block[4..].iter().zip(out) {
                let bits = u32::from(code & 0x80) << 24 | u32::from(code & 0x7f) << 20;
                *out = f32::from_bits(bits) * REBIAS * scale;
            }
        }
    }
}

/// Loads values of `LANES` rows, one row per lane, until `out` is full.
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
