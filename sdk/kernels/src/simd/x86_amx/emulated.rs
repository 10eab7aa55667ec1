//! Products of tiles without the matrix unit, so that all that is built on it is tested on other processors, too.

use super::{Factors, Parts, Split, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS};

/// The parts of left and right factors whose products are summed, in the order of the instructions.
fn of_parts(parts: Parts) -> &'static [(usize, usize)] {
    match parts {
        Parts::OneByOne => &[(0, 0)],
        Parts::TwoByTwo => &[(1, 0), (0, 0), (0, 1)],
        Parts::ThreeByOne => &[(2, 0), (1, 0), (0, 0)],
        Parts::ThreeByTwo => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 0)],
        Parts::ThreeByThree => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 0), (0, 2)],
    }
}

/// As [`Tiles::two_by_two`](super::Tiles::two_by_two), with one tile of left factors or two.
///
/// # Safety
/// As for that.
pub(super) unsafe fn products(
    tiles: usize,
    parts: Parts,
    left: Factors,
    right: Factors,
    steps: usize,
    from: Sums,
    to: Sums,
) {
    let number = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    for row in 0..tiles * TILE_ROWS {
        for column in 0..2 * TILE_SUMS {
            // SAFETY: the caller's sums have as many rows of 32 elements.
            let mut sum = if from.at.is_null() { 0.0 } else { unsafe { *from.at.add(row * from.stride + column) } };
            for step in 0..steps {
                for (of_left, of_right) in of_parts(parts) {
                    let line = |factors: Factors, tile: usize, part: &usize, line: usize| {
                        let line = step * factors.stride + Split(*part).lines(1) + line;
                        // SAFETY: each step of the caller's factors has 16 lines for each part.
                        unsafe { &(*factors.at[tile].add(line)).0 }
                    };
                    let left = line(left, row / TILE_ROWS, of_left, row % TILE_ROWS);
                    for pair in 0..TILE_COLS / 2 {
                        let right = line(right, column / TILE_SUMS, of_right, pair);
                        for half in [0, 1] {
                            let at = 2 * (column % TILE_SUMS) + half;
                            sum = number(left[2 * pair + half]).mul_add(number(right[at]), sum);
                        }
                    }
                }
            }
            // SAFETY: as above.
            unsafe { *to.at.add(row * to.stride + column) = sum };
        }
    }
}
