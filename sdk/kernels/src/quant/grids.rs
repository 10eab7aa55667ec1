//! The points that formats of 1 to 3 bits choose from: an index in the file stands for four or eight values at once.
//!
//! The points follow from no formula, so they come as a file, written by `tests/reference/quantized.py`: 16 bits for each
//! point, a few of them for each coordinate, which name a level. The compiler spreads them into words of four bytes, one for
//! each value, so that a kernel finds four codes by one load.

/// 256 points of 8, 512 of 8, 1024 of 8, 256 of 4, 512 of 4, 2048 of 8 coordinates.
const PACKED: &[u8; 9216] = include_bytes!("grids.bin");

const TWO_BITS: [u8; 4] = [8, 25, 43, 0];
const THREE_BITS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const THREE_BITS_ODD: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Eight times −1, 0 and 1, moved up so that they are unsigned.
const TERNARY: [u8; 4] = [0, 8, 16, 0];

pub(super) static IQ2_XXS: [u32; 512] = spread(0, &TWO_BITS);
pub(super) static IQ2_XS: [u32; 1024] = spread(256, &TWO_BITS);
pub(super) static IQ2_S: [u32; 2048] = spread(768, &TWO_BITS);
pub(super) static IQ3_XXS: [u32; 256] = spread(1792, &THREE_BITS);
pub(super) static IQ3_S: [u32; 512] = spread(2048, &THREE_BITS_ODD);
pub(super) static IQ1: [u32; 4096] = spread(2560, &TERNARY);

/// The words of the points from `first` on: one for each point where levels take three bits, two where they take two.
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
