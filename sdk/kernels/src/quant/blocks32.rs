//! Formats with a half-precision scale for every 32 values: `_0` formats are symmetric, `_1` formats have a minimum.
//!
//! In the 4- and 5-bit formats, byte i of `qs` holds the low bits of value i (low nibble) and of value i + 16 (high
//! nibble), and bit i of the 32-bit word `qh` is bit 4 of value i.

use super::{Expanded, Format, Shape, Unpacked};
use crate::simd::{Rows, Simd, half};

/// scale, qs[16]; offset 8.
pub(crate) struct Q4_0;
/// scale, minimum, qs[16].
pub(crate) struct Q4_1;
/// scale, qh, qs[16]; offset 16.
pub(crate) struct Q5_0;
/// scale, minimum, qh, qs[16].
pub(crate) struct Q5_1;
/// scale, 32 signed bytes.
pub(crate) struct Q8_0;

const NIBBLES: u32 = 0x0f0f_0f0f;

fn expand_nibbles(qs: &[u8], qh: u32, out: &mut Expanded) {
    for (i, byte) in qs.iter().enumerate() {
        let (low, high) = (qh >> i & 1, qh >> (i + 16) & 1);
        out.codes[i] = byte & 15 | (low as u8) << 4;
        out.codes[i + 16] = byte >> 4 | (high as u8) << 4;
    }
}

#[inline(always)]
pub(super) fn unpack_nibbles<S: Simd>(simd: S, qs: [S::U; 4], codes: &mut [S::U]) {
    let mask = simd.splat_bits(NIBBLES);
    for (i, word) in qs.into_iter().enumerate() {
        codes[i] = simd.and(word, mask);
        codes[i + 4] = simd.and(simd.shr(word, 4), mask);
    }
}

/// Adds bit 4 of each code, spreading four bits of `qh` over the four bytes of a word.
#[inline(always)]
fn unpack_fifth_bits<S: Simd>(simd: S, qh: S::U, codes: &mut [S::U]) {
    let mask = simd.splat_bits(0x1010_1010);
    for (i, word) in codes.iter_mut().enumerate().take(8) {
        let four = simd.and(simd.shr(qh, 4 * i as u32), simd.splat_bits(15));
        let pair = simd.or(simd.shl(four, 4), simd.shl(four, 11));
        let spread = simd.or(pair, simd.shl(pair, 14));
        *word = simd.or(*word, simd.and(spread, mask));
    }
}

impl Format for Q4_0 {
    type Shape = Shape<32, 32, 15, false>;
    const BYTES: usize = 18;
    const OFFSET: u8 = 8;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = half(block, 0);
        expand_nibbles(&block[2..18], 0, out);
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        out.scales[0] = simd.low_half(simd.columns(rows, 0)[0]);
        unpack_nibbles(simd, simd.columns(rows, 2), out.codes);
    }
}

impl Format for Q4_1 {
    type Shape = Shape<32, 32, 15, true>;
    const BYTES: usize = 20;
    const OFFSET: u8 = 0;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = half(block, 0);
        out.minimums[0] = -half(block, 2);
        expand_nibbles(&block[4..20], 0, out);
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let head = simd.columns(rows, 0)[0];
        out.scales[0] = simd.low_half(head);
        out.minimums[0] = simd.sub(simd.splat(0.0), simd.high_half(head));
        unpack_nibbles(simd, simd.columns(rows, 4), out.codes);
    }
}

impl Format for Q5_0 {
    type Shape = Shape<32, 32, 31, false>;
    const BYTES: usize = 22;
    const OFFSET: u8 = 16;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = half(block, 0);
        expand_nibbles(&block[6..22], u32::from_le_bytes([block[2], block[3], block[4], block[5]]), out);
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let head = simd.columns(rows, 0);
        out.scales[0] = simd.low_half(head[0]);
        unpack_nibbles(simd, simd.columns(rows, 6), out.codes);
        let qh = simd.or(simd.shr(head[0], 16), simd.shl(head[1], 16));
        unpack_fifth_bits(simd, qh, out.codes);
    }
}

impl Format for Q5_1 {
    type Shape = Shape<32, 32, 31, true>;
    const BYTES: usize = 24;
    const OFFSET: u8 = 0;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = half(block, 0);
        out.minimums[0] = -half(block, 2);
        expand_nibbles(&block[8..24], u32::from_le_bytes([block[4], block[5], block[6], block[7]]), out);
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let head = simd.columns(rows, 0);
        out.scales[0] = simd.low_half(head[0]);
        out.minimums[0] = simd.sub(simd.splat(0.0), simd.high_half(head[0]));
        unpack_nibbles(simd, simd.columns(rows, 8), out.codes);
        unpack_fifth_bits(simd, head[1], out.codes);
    }
}

impl Format for Q8_0 {
    type Shape = Shape<32, 32, 255, false>;
    const BYTES: usize = 34;
    const OFFSET: u8 = 128;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = half(block, 0);
        for (code, byte) in out.codes.iter_mut().zip(&block[2..34]) {
            *code = byte ^ 0x80;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        out.scales[0] = simd.low_half(simd.columns(rows, 0)[0]);
        let sign = simd.splat_bits(0x8080_8080);
        for half in 0..2 {
            for (i, word) in simd.columns(rows, 2 + 16 * half).into_iter().enumerate() {
                out.codes[4 * half + i] = simd.xor(word, sign);
            }
        }
    }
}
