//! Formats with blocks of 256 values, whose groups have small integer scales under a half-precision scale for the
//! block.
//!
//! In the 4- and 5-bit formats, 32 bytes hold 32 values in their low nibbles and the next 32 in their high nibbles. In
//! the 2- and 3-bit formats, 32 bytes hold four times 32 values, two bits each. High bits that are stored separately
//! belong to the value at the same position in a run of 32.

use super::{Codes, Dots, Expanded, Format, Shape, Unpacked, dot_each, eight, starts, words};
use crate::simd::{Rows, Simd, half};

/// scales[16] (4 bits scale, 4 bits minimum), qs[64], scale, minimum.
pub(crate) struct Q2K;
/// hmask[32], qs[64], scales[12] (6 bits each), scale; offset 4, which a set bit in `hmask` cancels.
pub(crate) struct Q3K;
/// scale, minimum, scales[12] (6 bits each scale and minimum), qs[128].
pub(crate) struct Q4K;
/// scale, minimum, scales[12], qh[32], qs[128].
pub(crate) struct Q5K;
/// ql[128], qh[64], scales[16] (signed bytes), scale; offset 32.
pub(crate) struct Q6K;

const NIBBLES: u32 = 0x0f0f_0f0f;
const PAIRS: u32 = 0x0303_0303;

impl Format for Q2K {
    type Shape = Shape<256, 16, 31, true>;
    const BYTES: usize = 84;
    const OFFSET: u8 = 0;

    fn expand(block: &[u8], out: &mut Expanded) {
        let (scale, minimum) = (half(block, 80), half(block, 82));
        for (group, packed) in block[..16].iter().enumerate() {
            out.scales[group] = scale * f32::from(packed & 15);
            out.minimums[group] = minimum * f32::from(packed >> 4);
        }
        for (i, code) in out.codes.iter_mut().enumerate() {
            *code = block[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let head = simd.columns(rows, 68)[3];
        let (scale, minimum) = (simd.low_half(head), simd.high_half(head));
        for (i, word) in simd.columns(rows, 0).into_iter().enumerate() {
            for byte in 0..4 {
                let both = simd.shr(word, 8 * byte as u32);
                let group = 4 * i + byte;
                out.scales[group] = scaled(simd, scale, simd.and(both, simd.splat_bits(15)));
                out.minimums[group] = scaled(simd, minimum, simd.and(simd.shr(both, 4), simd.splat_bits(15)));
            }
        }
        unpack_pairs(simd, rows.skip(16), out.codes);
    }
}

impl Format for Q3K {
    type Shape = Shape<256, 16, 31, false>;
    const BYTES: usize = 110;
    const OFFSET: u8 = 4;

    fn expand(block: &[u8], out: &mut Expanded) {
        let scale = half(block, 108);
        let scales = &block[96..108];
        for group in 0..16 {
            let low = scales[group % 8] >> (group / 8 * 4) & 15;
            let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            out.scales[group] = scale * (f32::from(low | high << 4) - 32.0);
        }
        for (i, code) in out.codes.iter_mut().enumerate() {
            let low = block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            *code = low | (block[i % 32] >> (i / 32) & 1) << 2;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        // The last 16 bytes: two of qs, the scales, the block's scale.
        let tail = simd.columns(rows, 94);
        let scale = simd.high_half(tail[3]);
        let straddling = |i: usize| simd.or(simd.shr(tail[i], 16), simd.shl(tail[i + 1], 16));
        let (lows, highs) = ([straddling(0), straddling(1)], straddling(2));
        for group in 0..16 {
            let low =
                simd.and(simd.shr(lows[group / 4 % 2], (group % 4 * 8 + group / 8 * 4) as u32), simd.splat_bits(15));
            let high = simd.and(simd.shr(highs, (group % 4 * 8 + group / 4 * 2) as u32), simd.splat_bits(3));
            let six = simd.integers_to_f32(simd.or(low, simd.shl(high, 4)));
            out.scales[group] = simd.mul(scale, simd.sub(six, simd.splat(32.0)));
        }
        unpack_pairs(simd, rows.skip(32), out.codes);
        let mask = simd.splat_bits(0x0404_0404);
        for i in 0..8 {
            let high = simd.columns(rows, 16 * (i / 4))[i % 4];
            for run in 0..8 {
                let word = &mut out.codes[8 * run + i];
                let bit = if run < 2 { simd.shl(high, 2 - run as u32) } else { simd.shr(high, run as u32 - 2) };
                *word = simd.or(*word, simd.and(bit, mask));
            }
        }
    }
}

impl Format for Q4K {
    type Shape = Shape<256, 32, 15, true>;
    const BYTES: usize = 144;
    const OFFSET: u8 = 0;

    fn expand(block: &[u8], out: &mut Expanded) {
        expand_six_bit_scales(block, out);
        for (i, code) in out.codes.iter_mut().enumerate() {
            *code = block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        unpack_six_bit_scales(simd, rows, out.scales, out.minimums);
        unpack_nibbles(simd, rows.skip(16), out.codes);
    }

    const HAS_DOTS: bool = true;

    #[inline(always)]
    fn dots<S: Simd, const N: usize>(simd: S, rows: Rows<'_>, x: [Codes<'_>; N], out: &mut Dots<'_, S, N>) {
        unpack_six_bit_scales(simd, rows, out.scales, out.minimums);
        let x = words(&x);
        nibble_dots::<S, 0, N>(simd, rows, x, out.dots);
        nibble_dots::<S, 1, N>(simd, rows, x, out.dots);
        nibble_dots::<S, 2, N>(simd, rows, x, out.dots);
        nibble_dots::<S, 3, N>(simd, rows, x, out.dots);
    }
}

impl Format for Q5K {
    type Shape = Shape<256, 32, 31, true>;
    const BYTES: usize = 176;
    const OFFSET: u8 = 0;

    fn expand(block: &[u8], out: &mut Expanded) {
        expand_six_bit_scales(block, out);
        for (i, code) in out.codes.iter_mut().enumerate() {
            let low = block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
            *code = low | (block[16 + i % 32] >> (i / 32) & 1) << 4;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        unpack_six_bit_scales(simd, rows, out.scales, out.minimums);
        unpack_nibbles(simd, rows.skip(48), out.codes);
        let mask = simd.splat_bits(0x1010_1010);
        for i in 0..8 {
            let high = simd.columns(rows, 16 + 16 * (i / 4))[i % 4];
            for run in 0..8 {
                let word = &mut out.codes[8 * run + i];
                let bit = if run < 4 { simd.shl(high, 4 - run as u32) } else { simd.shr(high, run as u32 - 4) };
                *word = simd.or(*word, simd.and(bit, mask));
            }
        }
    }

    const HAS_DOTS: bool = true;

    #[inline(always)]
    fn dots<S: Simd, const N: usize>(simd: S, rows: Rows<'_>, x: [Codes<'_>; N], out: &mut Dots<'_, S, N>) {
        unpack_six_bit_scales(simd, rows, out.scales, out.minimums);
        let (x, starts) = (words(&x), [simd.splat_bits(S::ORIGIN); N]);
        let (nibbles, fifth) = (simd.splat_bits(NIBBLES), simd.splat_bits(0x1010_1010));
        // The next two groups' bits are the lowest of each byte.
        let mut bits = eight(simd, rows, 16);
        for pair in 0..4 {
            let packed = eight(simd, rows, 48 + 32 * pair);
            let (mut low, mut high) = (packed, packed);
            for i in 0..8 {
                low[i] = simd.or(simd.and(packed[i], nibbles), simd.and(simd.shl(bits[i], 4), fifth));
                high[i] = simd.or(simd.and(simd.shr(packed[i], 4), nibbles), simd.and(simd.shl(bits[i], 3), fifth));
                bits[i] = simd.shr(bits[i], 2);
            }
            out.dots[2 * pair] = dot_each::<S, Self::Shape, 8, 64, N>(simd, low, x, 16 * pair, starts);
            out.dots[2 * pair + 1] = dot_each::<S, Self::Shape, 8, 64, N>(simd, high, x, 16 * pair + 8, starts);
        }
    }
}

impl Format for Q6K {
    type Shape = Shape<256, 16, 63, false>;
    const BYTES: usize = 210;
    const OFFSET: u8 = 32;

    fn expand(block: &[u8], out: &mut Expanded) {
        let scale = half(block, 208);
        for group in 0..16 {
            out.scales[group] = scale * f32::from(block[192 + group].cast_signed());
        }
        for (i, code) in out.codes.iter_mut().enumerate() {
            let low = block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
            let high = block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            *code = low | high << 4;
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        unpack_signed_scales(simd, rows, out.scales);
        let (nibbles, high_bits) = (simd.splat_bits(NIBBLES), simd.splat_bits(PAIRS << 4));
        for side in 0..2 {
            for part in 0..2 {
                let first = simd.columns(rows, 64 * side + 16 * part);
                let second = simd.columns(rows, 64 * side + 32 + 16 * part);
                let high = simd.columns(rows, 128 + 32 * side + 16 * part);
                for i in 0..4 {
                    let codes = &mut out.codes[32 * side + 4 * part + i..];
                    let join = |low, high| simd.or(simd.and(low, nibbles), simd.and(high, high_bits));
                    codes[0] = join(first[i], simd.shl(high[i], 4));
                    codes[8] = join(second[i], simd.shl(high[i], 2));
                    codes[16] = join(simd.shr(first[i], 4), high[i]);
                    codes[24] = join(simd.shr(second[i], 4), simd.shr(high[i], 2));
                }
            }
        }
    }

    const HAS_DOTS: bool = true;

    #[inline(always)]
    fn dots<S: Simd, const N: usize>(simd: S, rows: Rows<'_>, x: [Codes<'_>; N], out: &mut Dots<'_, S, N>) {
        unpack_signed_scales(simd, rows, out.scales);
        let (nibbles, high_bits) = (simd.splat_bits(NIBBLES), simd.splat_bits(PAIRS << 4));
        for side in 0..2 {
            for part in 0..2 {
                let first = simd.columns(rows, 64 * side + 16 * part);
                let second = simd.columns(rows, 64 * side + 32 + 16 * part);
                let high = simd.columns(rows, 128 + 32 * side + 16 * part);
                let mut codes = [first; 4];
                for i in 0..4 {
                    let join = |low, high| simd.or(simd.and(low, nibbles), simd.and(high, high_bits));
                    codes[0][i] = join(first[i], simd.shl(high[i], 4));
                    codes[1][i] = join(second[i], simd.shl(high[i], 2));
                    codes[2][i] = join(simd.shr(first[i], 4), high[i]);
                    codes[3][i] = join(simd.shr(second[i], 4), simd.shr(high[i], 2));
                }
                let group = 8 * side + part;
                let [first, second, third, fourth] = codes;
                out.dots[group] = sixteen(simd, first, &x, group);
                out.dots[group + 2] = sixteen(simd, second, &x, group + 2);
                out.dots[group + 4] = sixteen(simd, third, &x, group + 4);
                out.dots[group + 6] = sixteen(simd, fourth, &x, group + 6);
            }
        }
    }
}

/// The dot products of one of Q6_K's groups.
#[inline(always)]
fn sixteen<S: Simd, const N: usize>(simd: S, codes: [S::U; 4], x: &[Codes<'_>; N], group: usize) -> [S::U; N] {
    let starts = starts::<S, <Q6K as Format>::Shape, N>(simd, x, group);
    dot_each::<S, <Q6K as Format>::Shape, 4, 64, N>(simd, codes, words(x), 4 * group, starts)
}

/// Unpacks the sixteen scales of Q6_K.
#[inline(always)]
fn unpack_signed_scales<S: Simd>(simd: S, rows: Rows<'_>, scales: &mut [S::F]) {
    let scale = simd.high_half(simd.columns(rows, 194)[3]);
    for (i, word) in simd.columns(rows, 192).into_iter().enumerate() {
        for byte in 0..4 {
            // Shift to the top and back down to sign-extend.
            let signed = simd.shr_signed(simd.shl(word, 24 - 8 * byte as u32), 24);
            scales[4 * i + byte] = scaled(simd, scale, signed);
        }
    }
}

/// Multiplies a group's scale or minimum by the block's.
#[inline(always)]
fn scaled<S: Simd>(simd: S, of_block: S::F, of_group: S::U) -> S::F {
    simd.mul(of_block, simd.integers_to_f32(of_group))
}

/// Unpacks eight 6-bit scales and eight 6-bit minimums from 12 bytes: those of the first four groups in the low bits of
/// bytes 0 to 3 and 4 to 7; those of the last four in the nibbles of bytes 8 to 11, with their high bits on top of the
/// first four's.
fn expand_six_bit_scales(block: &[u8], out: &mut Expanded) {
    let (scale, minimum, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    for i in 0..4 {
        out.scales[i] = scale * f32::from(packed[i] & 63);
        out.minimums[i] = minimum * f32::from(packed[i + 4] & 63);
        out.scales[i + 4] = scale * f32::from(packed[i + 8] & 15 | packed[i] >> 6 << 4);
        out.minimums[i + 4] = minimum * f32::from(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
}

#[inline(always)]
fn unpack_six_bit_scales<S: Simd>(simd: S, rows: Rows<'_>, to_scales: &mut [S::F], to_minimums: &mut [S::F]) {
    let [head, scales, minimums, lows] = simd.columns(rows, 0);
    let (scale, minimum) = (simd.low_half(head), simd.high_half(head));
    let (nibbles, sixes) = (simd.splat_bits(NIBBLES), simd.splat_bits(0x3f3f_3f3f));
    let high_bits = |word| simd.and(simd.shr(word, 2), simd.splat_bits(PAIRS << 4));
    let last_scales = simd.or(simd.and(lows, nibbles), high_bits(scales));
    let last_minimums = simd.or(simd.and(simd.shr(lows, 4), nibbles), high_bits(minimums));
    let (first_scales, first_minimums) = (simd.and(scales, sixes), simd.and(minimums, sixes));
    let byte = |word, i: usize| simd.and(simd.shr(word, 8 * i as u32), simd.splat_bits(0xff));
    for i in 0..4 {
        to_scales[i] = scaled(simd, scale, byte(first_scales, i));
        to_scales[i + 4] = scaled(simd, scale, byte(last_scales, i));
        to_minimums[i] = scaled(simd, minimum, byte(first_minimums, i));
        to_minimums[i + 4] = scaled(simd, minimum, byte(last_minimums, i));
    }
}

/// Unpacks 128 bytes of nibbles.
#[inline(always)]
fn unpack_nibbles<S: Simd>(simd: S, rows: Rows<'_>, codes: &mut [S::U]) {
    let mask = simd.splat_bits(NIBBLES);
    for part in 0..8 {
        for (i, word) in simd.columns(rows, 16 * part).into_iter().enumerate() {
            let at = part / 2 * 16 + part % 2 * 4 + i;
            codes[at] = simd.and(word, mask);
            codes[at + 8] = simd.and(simd.shr(word, 4), mask);
        }
    }
}

/// The dot products of one of Q4_K's pairs of groups, by constant offsets.
#[inline(always)]
fn nibble_dots<S: Simd, const PAIR: usize, const N: usize>(
    simd: S,
    rows: Rows<'_>,
    x: [&[[i8; 4]; 64]; N],
    dots: &mut [[S::U; N]],
) {
    let (mask, starts) = (simd.splat_bits(NIBBLES), [simd.splat_bits(S::ORIGIN); N]);
    let packed = eight(simd, rows, 16 + 32 * PAIR);
    let (mut low, mut high) = (packed, packed);
    for i in 0..8 {
        low[i] = simd.and(packed[i], mask);
        high[i] = simd.and(simd.shr(packed[i], 4), mask);
    }
    dots[2 * PAIR] = dot_each::<S, <Q4K as Format>::Shape, 8, 64, N>(simd, low, x, 16 * PAIR, starts);
    dots[2 * PAIR + 1] = dot_each::<S, <Q4K as Format>::Shape, 8, 64, N>(simd, high, x, 16 * PAIR + 8, starts);
}

/// Unpacks 64 bytes of two-bit codes.
#[inline(always)]
pub(super) fn unpack_pairs<S: Simd>(simd: S, rows: Rows<'_>, codes: &mut [S::U]) {
    let mask = simd.splat_bits(PAIRS);
    for part in 0..4 {
        for (i, word) in simd.columns(rows, 16 * part).into_iter().enumerate() {
            for run in 0..4 {
                let at = part / 2 * 32 + run * 8 + part % 2 * 4 + i;
                codes[at] = simd.and(simd.shr(word, 2 * run as u32), mask);
            }
        }
    }
}
