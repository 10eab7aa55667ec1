//! 1- to 3-bit formats in blocks of 256, whose codes select grid points: four or eight values at once.
//!
//! In the 2- and 3-bit formats a coordinate is a magnitude, and signs are stored separately: eight bits for eight
//! values, or seven bits with even parity of minus signs. In the 1-bit formats a coordinate is −1, 0 or 1, and all
//! coordinates of a group are shifted up or down by an eighth.
//!
//! A word of four codes is one gather with an index per lane, which most processors perform one lane at a time: a
//! product with one row is bound by these loads rather than by memory, and runs at about a quarter of the speed of
//! `Q4_0`. With more rows the loads are shared.

use super::{Expanded, Format, Shape, Unpacked, grids};
use crate::simd::{Rows, Simd, half};

/// scale, then 8 times: qs[4], each an index into a grid of 256, and a word with four times 7 sign bits and a 4-bit
/// scale.
pub(crate) struct Iq2Xxs;
/// scale, qs[32] (9 bits index and 7 bits signs each), scales[8] (4 bits each).
pub(crate) struct Iq2Xs;
/// scale, qs[32], signs[32], qh[8] (2 bits each), scales[8] (4 bits each).
pub(crate) struct Iq2S;
/// scale, qs[64], and 8 words with four times 7 sign bits and a 4-bit scale.
pub(crate) struct Iq3Xxs;
/// scale, qs[64], qh[8] (1 bit each), signs[32], scales[4] (4 bits each).
pub(crate) struct Iq3S;
/// scale, qs[32], qh[8] of 16 bits: 3 bits for each of four indices, 3 bits scale, the direction of the shift.
pub(crate) struct Iq1S;
/// qs[32], qh[16] (3 bits of an index and the direction of its shift, twice per byte), scales[4] of 16 bits: 3 bits for
/// each of four groups, and a quarter of the block's scale.
pub(crate) struct Iq1M;

/// A group's 4-bit scale plus one half.
fn and_a_half(scale: u32) -> f32 {
    scale as f32 + 0.5
}

/// Completes seven signs with the eighth.
fn with_parity(signs: u32) -> u32 {
    signs & 127 | ((signs & 127).count_ones() % 2) << 7
}

/// Codes of four values, `offset` too high: magnitudes from `grid`, minus signs in the low bits of `signs`.
fn signed(grid: u32, signs: u32, offset: u8, codes: &mut [u8]) {
    for (i, (code, size)) in codes.iter_mut().zip(grid.to_le_bytes()).enumerate() {
        *code = if signs >> i & 1 == 1 { offset - size } else { offset + size };
    }
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Spreads bit `i` of four to the lowest bit of byte `i`.
#[inline(always)]
fn spread<S: Simd>(simd: S, four: S::U) -> S::U {
    let four = simd.and(four, simd.splat_bits(15));
    let pairs = simd.or(four, simd.shl(four, 7));
    simd.and(simd.or(pairs, simd.shl(pairs, 14)), simd.splat_bits(0x0101_0101))
}

/// [`signed`] for an offset of `BITS` one bits: where the sign is minus, magnitude and offset are replaced by their
/// complements.
#[inline(always)]
fn unpack_signed<S: Simd, const BITS: u32>(simd: S, grid: S::U, signs: S::U) -> S::U {
    let offset = simd.splat_bits(((1 << BITS) - 1) * 0x0101_0101);
    let minus = spread(simd, signs);
    // All bits of the offset, in the bytes with a minus sign.
    let minus = (1..BITS).fold(minus, |bits, shift| simd.or(bits, simd.shl(minus, shift)));
    simd.add_bits(simd.xor(grid, minus), simd.xor(offset, minus))
}

/// [`with_parity`] of the lowest seven bits; the bits above are undefined.
#[inline(always)]
fn unpack_parity<S: Simd>(simd: S, signs: S::U) -> S::U {
    let seven = simd.and(signs, simd.splat_bits(127));
    let folded = simd.xor(seven, simd.shr(seven, 4));
    let folded = simd.xor(folded, simd.shr(folded, 2));
    let folded = simd.xor(folded, simd.shr(folded, 1));
    simd.or(seven, simd.and(simd.shl(folded, 7), simd.splat_bits(128)))
}

/// Byte `i` of a word.
#[inline(always)]
fn byte<S: Simd>(simd: S, word: S::U, i: usize) -> S::U {
    simd.and(simd.shr(word, 8 * i as u32), simd.splat_bits(0xff))
}

/// Loads the two words of a point with eight coordinates.
#[inline(always)]
fn gather_two<S: Simd, const N: usize>(simd: S, table: &[u32; N], place: S::U) -> [S::U; 2] {
    let first = simd.shl(place, 1);
    [simd.gather(table, first), simd.gather(table, simd.or(first, simd.splat_bits(1)))]
}

/// A group's small integer scale plus one half, times the block's scale.
#[inline(always)]
fn halfway<S: Simd>(simd: S, of_block: S::F, of_group: S::U) -> S::F {
    simd.mul(of_block, simd.add(simd.integers_to_f32(of_group), simd.splat(0.5)))
}

/// A group's scale in a format with odd scales, `2 · scale + 1`, times the block's.
#[inline(always)]
fn odd<S: Simd>(simd: S, of_block: S::F, of_group: S::U) -> S::F {
    let number = simd.integers_to_f32(simd.or(simd.shl(of_group, 1), simd.splat_bits(1)));
    simd.mul(of_block, number)
}

impl Format for Iq2Xxs {
    type Shape = Shape<256, 32, 127, false>;
    const BYTES: usize = 66;
    const OFFSET: u8 = 63;

    fn expand(block: &[u8], out: &mut Expanded) {
        for group in 0..8 {
            let (places, rest) = (&block[2 + 8 * group..], word(block, 6 + 8 * group));
            out.scales[group] = half(block, 0) * 0.25 * and_a_half(rest >> 28);
            for i in 0..8 {
                let signs = with_parity(rest >> (7 * (i / 2))) >> (4 * (i % 2));
                let grid = grids::IQ2_XXS[2 * usize::from(places[i / 2]) + i % 2];
                signed(grid, signs, Self::OFFSET, &mut out.codes[32 * group + 4 * i..][..4]);
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let scale = simd.mul(simd.low_half(simd.columns(rows, 0)[0]), simd.splat(0.25));
        for pair in 0..4 {
            let words = simd.columns(rows, 2 + 16 * pair);
            for side in 0..2 {
                let (group, places, rest) = (2 * pair + side, words[2 * side], words[2 * side + 1]);
                out.scales[group] = halfway(simd, scale, simd.shr(rest, 28));
                for i in 0..4 {
                    let signs = unpack_parity(simd, simd.shr(rest, 7 * i as u32));
                    let [first, second] = gather_two(simd, &grids::IQ2_XXS, byte(simd, places, i));
                    let codes = &mut out.codes[8 * group + 2 * i..][..2];
                    codes[0] = unpack_signed::<S, 6>(simd, first, signs);
                    codes[1] = unpack_signed::<S, 6>(simd, second, simd.shr(signs, 4));
                }
            }
        }
    }
}

impl Format for Iq2Xs {
    type Shape = Shape<256, 16, 127, false>;
    const BYTES: usize = 74;
    const OFFSET: u8 = 63;

    fn expand(block: &[u8], out: &mut Expanded) {
        for group in 0..16 {
            let scale = u32::from(block[66 + group / 2] >> (group % 2 * 4) & 15);
            out.scales[group] = half(block, 0) * 0.25 * and_a_half(scale);
        }
        for i in 0..64 {
            let q = u16::from_le_bytes([block[2 + i / 2 * 2], block[3 + i / 2 * 2]]);
            let signs = with_parity(u32::from(q >> 9)) >> (4 * (i % 2));
            let grid = grids::IQ2_XS[2 * usize::from(q & 511) + i % 2];
            signed(grid, signs, Self::OFFSET, &mut out.codes[4 * i..][..4]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let scale = simd.mul(simd.low_half(simd.columns(rows, 0)[0]), simd.splat(0.25));
        let scales = simd.columns(rows, 58);
        for group in 0..16 {
            let four = simd.and(simd.shr(scales[2 + group / 8], 4 * (group % 8) as u32), simd.splat_bits(15));
            out.scales[group] = halfway(simd, scale, four);
        }
        for quarter in 0..4 {
            for (i, word) in simd.columns(rows, 2 + 16 * quarter).into_iter().enumerate() {
                for side in 0..2 {
                    let q = simd.shr(word, 16 * side as u32);
                    let signs = unpack_parity(simd, simd.shr(q, 9));
                    let place = simd.and(q, simd.splat_bits(511));
                    let [first, second] = gather_two(simd, &grids::IQ2_XS, place);
                    let codes = &mut out.codes[16 * quarter + 4 * i + 2 * side..][..2];
                    codes[0] = unpack_signed::<S, 6>(simd, first, signs);
                    codes[1] = unpack_signed::<S, 6>(simd, second, simd.shr(signs, 4));
                }
            }
        }
    }
}

impl Format for Iq2S {
    type Shape = Shape<256, 16, 127, false>;
    const BYTES: usize = 82;
    const OFFSET: u8 = 63;

    fn expand(block: &[u8], out: &mut Expanded) {
        for group in 0..16 {
            let scale = u32::from(block[74 + group / 2] >> (group % 2 * 4) & 15);
            out.scales[group] = half(block, 0) * 0.25 * and_a_half(scale);
        }
        for i in 0..64 {
            let point = i / 2;
            let high = usize::from(block[66 + point / 4] >> (point % 4 * 2) & 3);
            let grid = grids::IQ2_S[2 * (usize::from(block[2 + point]) | high << 8) + i % 2];
            let signs = u32::from(block[34 + point]) >> (4 * (i % 2));
            signed(grid, signs, Self::OFFSET, &mut out.codes[4 * i..][..4]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let scale = simd.mul(simd.low_half(simd.columns(rows, 0)[0]), simd.splat(0.25));
        let [highs0, highs1, scales0, scales1] = simd.columns(rows, 66);
        let scales = [scales0, scales1];
        for group in 0..16 {
            let four = simd.and(simd.shr(scales[group / 8], 4 * (group % 8) as u32), simd.splat_bits(15));
            out.scales[group] = halfway(simd, scale, four);
        }
        for (side, highs) in [highs0, highs1].into_iter().enumerate() {
            let (places, signs) = (simd.columns(rows, 2 + 16 * side), simd.columns(rows, 34 + 16 * side));
            for i in 0..16 {
                let high = simd.and(simd.shr(highs, 2 * i as u32), simd.splat_bits(3));
                let place = simd.or(byte(simd, places[i / 4], i % 4), simd.shl(high, 8));
                let [first, second] = gather_two(simd, &grids::IQ2_S, place);
                let signs = simd.shr(signs[i / 4], 8 * (i % 4) as u32);
                let codes = &mut out.codes[32 * side + 2 * i..][..2];
                codes[0] = unpack_signed::<S, 6>(simd, first, signs);
                codes[1] = unpack_signed::<S, 6>(simd, second, simd.shr(signs, 4));
            }
        }
    }
}

impl Format for Iq3Xxs {
    type Shape = Shape<256, 32, 127, false>;
    const BYTES: usize = 98;
    const OFFSET: u8 = 63;

    fn expand(block: &[u8], out: &mut Expanded) {
        for group in 0..8 {
            let rest = word(block, 66 + 4 * group);
            out.scales[group] = half(block, 0) * 0.5 * and_a_half(rest >> 28);
            for i in 0..8 {
                let signs = with_parity(rest >> (7 * (i / 2))) >> (4 * (i % 2));
                let grid = grids::IQ3_XXS[usize::from(block[2 + 8 * group + i])];
                signed(grid, signs, Self::OFFSET, &mut out.codes[32 * group + 4 * i..][..4]);
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let scale = simd.mul(simd.low_half(simd.columns(rows, 0)[0]), simd.splat(0.5));
        for half in 0..2 {
            let rests = simd.columns(rows, 66 + 16 * half);
            for (group, rest) in rests.into_iter().enumerate() {
                out.scales[4 * half + group] = halfway(simd, scale, simd.shr(rest, 28));
            }
            for pair in 0..2 {
                let places = simd.columns(rows, 2 + 32 * half + 16 * pair);
                for i in 0..8 {
                    // Eight values are two points.
                    let signs = unpack_parity(simd, simd.shr(rests[2 * pair + i / 4], 7 * (i % 4) as u32));
                    let point = |i: usize| simd.gather(&grids::IQ3_XXS, byte(simd, places[i / 4], i % 4));
                    let codes = &mut out.codes[32 * half + 16 * pair + 2 * i..][..2];
                    codes[0] = unpack_signed::<S, 6>(simd, point(2 * i), signs);
                    codes[1] = unpack_signed::<S, 6>(simd, point(2 * i + 1), simd.shr(signs, 4));
                }
            }
        }
    }
}

impl Format for Iq3S {
    type Shape = Shape<256, 32, 31, false>;
    const BYTES: usize = 110;
    const OFFSET: u8 = 15;

    fn expand(block: &[u8], out: &mut Expanded) {
        for group in 0..8 {
            let scale = block[106 + group / 2] >> (group % 2 * 4) & 15;
            out.scales[group] = half(block, 0) * f32::from(2 * scale + 1);
        }
        for i in 0..64 {
            let high = usize::from(block[66 + i / 8] >> (i % 8) & 1);
            let grid = grids::IQ3_S[usize::from(block[2 + i]) | high << 8];
            let signs = u32::from(block[74 + i / 2]) >> (4 * (i % 2));
            signed(grid, signs, Self::OFFSET, &mut out.codes[4 * i..][..4]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let scale = simd.low_half(simd.columns(rows, 0)[0]);
        let scales = simd.columns(rows, 94)[3];
        for group in 0..8 {
            let four = simd.and(simd.shr(scales, 4 * group as u32), simd.splat_bits(15));
            out.scales[group] = odd(simd, scale, four);
        }
        let highs = simd.columns(rows, 66);
        for quarter in 0..4 {
            let places = simd.columns(rows, 2 + 16 * quarter);
            let signs = simd.columns(rows, 74 + 16 * (quarter / 2));
            for i in 0..16 {
                let bit = (16 * (quarter % 2) + i) as u32;
                let high = simd.and(simd.shr(highs[quarter / 2], bit), simd.splat_bits(1));
                let place = simd.or(byte(simd, places[i / 4], i % 4), simd.shl(high, 8));
                let signs = simd.shr(signs[2 * (quarter % 2) + i / 8], 4 * (i % 8) as u32);
                out.codes[16 * quarter + i] = unpack_signed::<S, 4>(simd, simd.gather(&grids::IQ3_S, place), signs);
            }
        }
    }
}

/// Added to a coordinate in eighths with an offset of one: shifts it up.
const SHIFT_UP: u32 = 0x0202_0202;

/// Codes of a point that is shifted down where the lowest bit of `down` is set.
#[inline(always)]
fn shifted<S: Simd>(simd: S, place: S::U, down: S::U, codes: &mut [S::U]) {
    // Two in each byte, or zero if shifted down.
    let up = simd.shl(simd.xor(simd.and(down, simd.splat_bits(1)), simd.splat_bits(1)), 1);
    let up = simd.or(up, simd.shl(up, 8));
    let up = simd.or(up, simd.shl(up, 16));
    let [first, second] = gather_two(simd, &grids::IQ1, place);
    codes[0] = simd.or(first, up);
    codes[1] = simd.or(second, up);
}

fn expand_shifted(place: usize, is_down: bool, codes: &mut [u8]) {
    for (i, codes) in codes.chunks_exact_mut(4).enumerate() {
        let up = if is_down { 0 } else { SHIFT_UP };
        codes.copy_from_slice(&(grids::IQ1[2 * place + i] | up).to_le_bytes());
    }
}

impl Format for Iq1S {
    type Shape = Shape<256, 32, 31, false>;
    const BYTES: usize = 50;
    const OFFSET: u8 = 9;

    fn expand(block: &[u8], out: &mut Expanded) {
        for group in 0..8 {
            let high = u16::from_le_bytes([block[34 + 2 * group], block[35 + 2 * group]]);
            out.scales[group] = half(block, 0) * 0.125 * f32::from(2 * (high >> 12 & 7) + 1);
            for i in 0..4 {
                let place = usize::from(block[2 + 4 * group + i]) | usize::from(high >> (3 * i) & 7) << 8;
                expand_shifted(place, high >> 15 == 1, &mut out.codes[32 * group + 8 * i..][..8]);
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let scale = simd.mul(simd.low_half(simd.columns(rows, 0)[0]), simd.splat(0.125));
        let highs = simd.columns(rows, 34);
        for half in 0..2 {
            let places = simd.columns(rows, 2 + 16 * half);
            for (i, places) in places.into_iter().enumerate() {
                let group = 4 * half + i;
                let high = simd.shr(highs[group / 2], 16 * (group % 2) as u32);
                let three = simd.and(simd.shr(high, 12), simd.splat_bits(7));
                out.scales[group] = odd(simd, scale, three);
                for i in 0..4 {
                    let high = simd.and(simd.shr(high, 3 * i as u32), simd.splat_bits(7));
                    let place = simd.or(byte(simd, places, i), simd.shl(high, 8));
                    let down = simd.shr(highs[group / 2], 16 * (group % 2) as u32 + 15);
                    shifted(simd, place, down, &mut out.codes[8 * group + 2 * i..][..2]);
                }
            }
        }
    }
}

impl Format for Iq1M {
    type Shape = Shape<256, 16, 31, false>;
    const BYTES: usize = 56;
    const OFFSET: u8 = 9;

    fn expand(block: &[u8], out: &mut Expanded) {
        let scales: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes([block[48 + 2 * i], block[49 + 2 * i]]));
        let bits = (0..4).fold(0, |bits, i| bits | (scales[i] >> 12) << (4 * i));
        let scale = half(&bits.to_le_bytes(), 0) * 0.125;
        for group in 0..16 {
            out.scales[group] = scale * f32::from(2 * (scales[group / 4] >> (group % 4 * 3) & 7) + 1);
        }
        for i in 0..32 {
            let high = block[32 + i / 2] >> (i % 2 * 4);
            let place = usize::from(block[i]) | usize::from(high & 7) << 8;
            expand_shifted(place, high & 8 != 0, &mut out.codes[8 * i..][..8]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>) {
        let [_, _, first, second] = simd.columns(rows, 40);
        let nibble = |word, from, to: u32| simd.and(simd.shr(word, from), simd.splat_bits(15_u32 << to));
        let bits = simd.or(
            simd.or(nibble(first, 12, 0), nibble(first, 24, 4)),
            simd.or(nibble(second, 4, 8), nibble(second, 16, 12)),
        );
        let scale = simd.mul(simd.low_half(bits), simd.splat(0.125));
        for group in 0..16 {
            let word = if group < 8 { first } else { second };
            let three = simd.shr(word, (group / 4 % 2 * 16 + group % 4 * 3) as u32);
            out.scales[group] = odd(simd, scale, simd.and(three, simd.splat_bits(7)));
        }
        let highs = simd.columns(rows, 32);
        for half in 0..2 {
            let places = simd.columns(rows, 16 * half);
            for i in 0..16 {
                let high = simd.shr(highs[2 * half + i / 8], 4 * (i % 8) as u32);
                let three = simd.and(high, simd.splat_bits(7));
                let place = simd.or(byte(simd, places[i / 4], i % 4), simd.shl(three, 8));
                shifted(simd, place, simd.shr(high, 3), &mut out.codes[32 * half + 2 * i..][..2]);
            }
        }
    }
}
