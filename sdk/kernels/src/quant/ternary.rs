//! Formats with values −1, 0 or 1 and a scale per 256 values, for models trained that way.

use super::{Expanded, Format, Shape, Unpacked};
use crate::simd::{Rows, Simd, half};

/// qs[48], qh[4], scale. A byte holds five values (in `qh` four) as a base-three fraction, the first in the highest
/// digit: multiplying the byte by three moves it above the byte.
pub(crate) struct Tq1;
/// qs[64], scale. Two bits each, as in `Q2_K`.
pub(crate) struct Tq2;

impl Format for Tq1 {
    type Shape = Shape<256, 32, 31, false>;
    const BYTES: usize = 54;
    const OFFSET: u8 = 1;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[..8].fill(half(block, 52));
        // Byte ranges, the index of their first value, and values per byte.
        for (bytes, start, digits) in [(0..32, 0, 5), (32..48, 160, 5), (48..52, 240, 4)] {
            let width = bytes.len();
            for (i, byte) in block[bytes].iter().enumerate() {
                let mut rest = u32::from(*byte);
                for digit in 0..digits {
                    out.codes[start + digit * width + i] = ((rest * 3) >> 8) as u8;
                    rest = (rest * 3) & 0xff;
                }
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let tail = simd.columns(rows, 38);
        out.scales.fill(simd.high_half(tail[3]));
        for part in 0..3 {
            for (i, word) in simd.columns(rows, 16 * part).into_iter().enumerate() {
                let (start, width) = if part < 2 { (4 * part, 8) } else { (40, 4) };
                digits(simd, word, 5, width, &mut out.codes[start + i..]);
            }
        }
        let last = simd.or(simd.shr(tail[2], 16), simd.shl(tail[3], 16));
        digits(simd, last, 4, 1, &mut out.codes[60..]);
    }
}

/// Unpacks the values of four bytes; each digit's word lies `width` words after the previous one's.
#[inline(always)]
fn digits<S: Simd>(simd: S, word: S::U, count: usize, width: usize, codes: &mut [S::U]) {
    let bytes = simd.splat_bits(0x00ff_00ff);
    // Take every second byte, so that there is room to grow.
    let mut even = simd.and(word, bytes);
    let mut odd = simd.and(simd.shr(word, 8), bytes);
    for digit in 0..count {
        even = simd.add_bits(even, simd.shl(even, 1));
        odd = simd.add_bits(odd, simd.shl(odd, 1));
        let low = simd.and(simd.shr(even, 8), simd.splat_bits(0x0003_0003));
        codes[digit * width] = simd.or(low, simd.and(odd, simd.splat_bits(0x0300_0300)));
        even = simd.and(even, bytes);
        odd = simd.and(odd, bytes);
    }
}

impl Format for Tq2 {
    type Shape = Shape<256, 32, 31, false>;
    const BYTES: usize = 66;
    const OFFSET: u8 = 1;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[..8].fill(half(block, 64));
        for (i, code) in out.codes.iter_mut().enumerate() {
            *code = block[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        out.scales.fill(simd.high_half(simd.columns(rows, 50)[3]));
        super::blocks256::unpack_pairs(simd, rows, out.codes);
    }
}
