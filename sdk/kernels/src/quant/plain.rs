//! Integers with single-precision scales, which the SDK assembles from packed safetensors weights; no file uses these
//! formats.

use super::{Expanded, Format, Shape, Unpacked};
use crate::simd::{Rows, Simd};

/// scale (single precision), zero point, qs[16] as in `Q4_0`.
pub(crate) struct Int4;
/// scale (single precision), 32 signed bytes.
pub(crate) struct Int8;

fn single(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

impl Format for Int4 {
    type Shape = Shape<32, 32, 15, true>;
    const BYTES: usize = 21;
    const OFFSET: u8 = 0;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = single(block);
        out.minimums[0] = single(block) * f32::from(block[4]);
        for (i, byte) in block[5..21].iter().enumerate() {
            out.codes[i] = byte & 15;
            out.codes[i + 16] = byte >> 4;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let head = simd.columns(rows, 0);
        let scale = simd.bits_to_f32(head[0]);
        let zero = simd.integers_to_f32(simd.and(head[1], simd.splat_bits(0xff)));
        out.scales[0] = scale;
        out.minimums[0] = simd.mul(scale, zero);
        super::blocks32::unpack_nibbles(simd, simd.columns(rows, 5), out.codes);
    }
}

impl Format for Int8 {
    type Shape = Shape<32, 32, 255, false>;
    const BYTES: usize = 36;
    const OFFSET: u8 = 128;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = single(block);
        for (code, byte) in out.codes.iter_mut().zip(&block[4..36]) {
            *code = byte ^ 0x80;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        out.scales[0] = simd.bits_to_f32(simd.columns(rows, 0)[0]);
        let sign = simd.splat_bits(0x8080_8080);
        for half in 0..2 {
            for (i, word) in simd.columns(rows, 4 + 16 * half).into_iter().enumerate() {
                out.codes[4 * half + i] = simd.xor(word, sign);
            }
        }
    }
}
