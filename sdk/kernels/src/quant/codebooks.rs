//! 4-bit formats whose codes index a table of 16 levels: `IQ4_NL`, `IQ4_XS` and `MXFP4`.
//!
//! The levels are small integers, so one byte shuffle turns a code into its level, shifted to be unsigned, and the rest
//! is as for any other format.

use pensieve_weights::Dtype;

use super::{Codes, Dots, Expanded, Format, Shape, Unpacked, dot_each, starts, words};
use crate::simd::{Rows, Simd, half};

/// scale, qs[16], as in `Q4_0`.
pub(crate) struct Iq4Nl;
/// scale, scales_h (2 bits for each of 8 groups), scales_l[4] (4 bits each), qs[8][16]; scales have an offset of 32.
pub(crate) struct Iq4Xs;
/// exponent, qs[16], as in `Q4_0`.
pub(crate) struct Mxfp4;

/// −127 to 113 in steps that grow with the distance from 0, plus 128.
const UNEVEN: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// Twice the numbers of 1 sign bit, 2 exponent bits and 1 mantissa bit (0, ½, 1, 1½, 2, 3, 4, 6), plus 12.
const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Returns the integer levels of a format that has at most 16, by code.
pub fn levels(dtype: Dtype) -> Option<[i8; 16]> {
    let lowered = |table: &[u8; 16], by: u8| table.map(|level| level.wrapping_sub(by).cast_signed());
    let straight = std::array::from_fn(|place| place as u8);
    match dtype {
        Dtype::Q4_0 => Some(lowered(&straight, 8)),
        Dtype::Q4_1 | Dtype::Int4 => Some(lowered(&straight, 0)),
        Dtype::IQ4NL | Dtype::IQ4XS => Some(lowered(&UNEVEN, 128)),
        Dtype::MXFP4 => Some(lowered(&E2M1, 12)),
        Dtype::TQ1_0 | Dtype::TQ2_0 => Some(lowered(&straight, 1)),
        _ => None,
    }
}

const NIBBLES: u32 = 0x0f0f_0f0f;

fn expand_nibbles(table: &[u8; 16], qs: &[u8], codes: &mut [u8]) {
    for (i, byte) in qs.iter().enumerate() {
        codes[i] = table[usize::from(byte & 15)];
        codes[i + 16] = table[usize::from(byte >> 4)];
    }
}

#[inline(always)]
fn unpack_nibbles<S: Simd>(simd: S, table: &[u8; 16], qs: [S::U; 4], codes: &mut [S::U]) {
    let mask = simd.splat_bits(NIBBLES);
    for (i, word) in qs.into_iter().enumerate() {
        codes[i] = simd.lookup(table, simd.and(word, mask));
        codes[i + 4] = simd.lookup(table, simd.and(simd.shr(word, 4), mask));
    }
}

impl Format for Iq4Nl {
    type Shape = Shape<32, 32, 255, false>;
    const BYTES: usize = 18;
    const OFFSET: u8 = 128;

    fn expand(block: &[u8], out: &mut Expanded) {
        out.scales[0] = half(block, 0);
        expand_nibbles(&UNEVEN, &block[2..18], &mut out.codes);
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        out.scales[0] = simd.low_half(simd.columns(rows, 0)[0]);
        unpack_nibbles(simd, &UNEVEN, simd.columns(rows, 2), out.codes);
    }
}

impl Format for Iq4Xs {
    type Shape = Shape<256, 32, 255, false>;
    const BYTES: usize = 136;
    const OFFSET: u8 = 128;

    fn expand(block: &[u8], out: &mut Expanded) {
        let (scale, high) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
        for group in 0..8 {
            let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
            let six = u16::from(low) | (high >> (2 * group) & 3) << 4;
            out.scales[group] = scale * (f32::from(six) - 32.0);
            expand_nibbles(&UNEVEN, &block[8 + 16 * group..][..16], &mut out.codes[32 * group..]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        unpack_scales(simd, rows, out.scales);
        for group in 0..8 {
            let qs = simd.columns(rows, 8 + 16 * group);
            unpack_nibbles(simd, &UNEVEN, qs, &mut out.codes[8 * group..][..8]);
        }
    }

    const HAS_DOTS: bool = true;

    #[inline(always)]
    fn dots<S: Simd, const N: usize>(simd: S, rows: Rows<'_>, x: [Codes<'_>; N], out: &mut Dots<'_, S, N>) {
        let (x, mut codes) = (&x, [simd.splat_bits(0); 8]);
        unpack_scales(simd, rows, out.scales);
        for group in 0..8 {
            unpack_nibbles(simd, &UNEVEN, simd.columns(rows, 8 + 16 * group), &mut codes);
            let starts = starts::<S, Self::Shape, N>(simd, x, group);
            out.dots[group] = dot_each::<S, Self::Shape, 8, 64, N>(simd, codes, words(x), 8 * group, starts);
        }
    }
}

/// Unpacks the eight scales of `IQ4_XS`.
#[inline(always)]
fn unpack_scales<S: Simd>(simd: S, rows: Rows<'_>, scales: &mut [S::F]) {
    let [head, lows, ..] = simd.columns(rows, 0);
    let scale = simd.low_half(head);
    for (group, of_group) in scales.iter_mut().enumerate().take(8) {
        let low = simd.and(simd.shr(lows, 4 * group as u32), simd.splat_bits(15));
        let high = simd.and(simd.shr(head, 16 + 2 * group as u32), simd.splat_bits(3));
        let six = simd.integers_to_f32(simd.or(low, simd.shl(high, 4)));
        *of_group = simd.mul(scale, simd.sub(six, simd.splat(32.0)));
    }
}

impl Format for Mxfp4 {
    type Shape = Shape<32, 32, 31, false>;
    const BYTES: usize = 17;
    const OFFSET: u8 = 12;

    fn expand(block: &[u8], out: &mut Expanded) {
        // Half of 2^(e − 127), as the levels are doubled; the smallest two are subnormal.
        let exponent = u32::from(block[0]);
        let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
        out.scales[0] = f32::from_bits(bits);
        expand_nibbles(&E2M1, &block[1..17], &mut out.codes);
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let exponent = simd.shl(simd.columns(rows, 0)[0], 23);
        let power = simd.bits_to_f32(simd.and(exponent, simd.splat_bits(0x7f80_0000)));
        let smallest = simd.splat(f32::from_bits(0x0040_0000));
        out.scales[0] = simd.mul(simd.max(power, smallest), simd.splat(0.5));
        unpack_nibbles(simd, &E2M1, simd.columns(rows, 1), out.codes);
    }
}
