//! The grid points of 1- to 3-bit formats: one index in the file stands for four or eight values.
//!
//! The points follow no formula, so they come as a file, written by `tests/reference/quantized.py`: 16 bits per point,
//! a few bits per coordinate that select a level. They are expanded at compile time into words of four bytes, one byte
//! per value, so that a kernel loads four codes at once.

/// 256 points with 8 coordinates, 512 with 8, 1024 with 8, 256 with 4, 512 with 4, 2048 with 8.
const PACKED: &[u8; 9216] = include_bytes!("grids.bin");

const TWO_BITS: [u8; 4] = [8, 25, 43, 0];
const THREE_BITS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const THREE_BITS_ODD: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Eight times −1, 0 and 1, shifted to be unsigned.
const TERNARY: [u8; 4] = [0, 8, 16, 0];

pub(super) static IQ2_XXS: [u32; 512] = spread(0, &TWO_BITS);
pub(super) static IQ2_XS: [u32; 1024] = spread(256, &TWO_BITS);
pub(super) static IQ2_S: [u32; 2048] = spread(768, &TWO_BITS);
pub(super) static IQ3_XXS: [u32; 256] = spread(1792, &THREE_BITS);
pub(super) static IQ3_S: [u32; 512] = spread(2048, &THREE_BITS_ODD);
pub(super) static IQ1: [u32; 4096] = spread(2560, &TERNARY);

/// Expands the points from `first` on: one word per point for three-bit levels, two for two-bit levels.
const fn spread<const WORDS: usize>(first: usize, levels: &[u8]) -> [u32; WORDS] {
    let bits = levels.len().trailing_zeros() as usize;
    let words_per_point = if bits == 2 { 2 } else { 1 };
    let mut words = [0; WORDS];
    let mut at = 0;
    while at < WORDS {
        let point = first + at / words_per_point;
        let packed = PACKED[2 * point] as usize | (PACKED[2 * point + 1] as usize) << 8;
        let packed = packed >> (at % words_per_point * 4 * bits);
        let mut i = 0;
        while i < 4 {
            words[at] |= (levels[packed >> (bits * i) & (levels.len() - 1)] as u32) << (8 * i);
            i += 1;
        }
        at += 1;
    }
    words
}
