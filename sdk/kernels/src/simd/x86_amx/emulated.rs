//! Products of tiles by AVX-512 with `bf16`, so that what is built on tiles is tested on processors without the matrix unit, too
//! (AMD's since Zen 4). Sums may differ from the unit's in their last digits.

use std::arch::x86_64::*;

use super::{Factors, Line, Parts, Sums, TILE_ROWS, TILE_SUMS};

/// The parts of left and right factors whose products are summed, in the order of the instructions.
fn pairs_of(parts: Parts) -> &'static [(usize, usize)] {
    match parts {
        Parts::OneByOne => &[(0, 0)],
        Parts::TwoByTwo => &[(1, 0), (0, 0), (0, 1)],
        Parts::ThreeByOne => &[(2, 0), (1, 0), (0, 0)],
        Parts::ThreeByTwo => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 0)],
        Parts::ThreeByThree => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 0), (0, 2)],
    }
}

fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of any content.
    unsafe { std::mem::transmute(bits) }
}

/// As [`Tiles::two_by_two`](super::Tiles::two_by_two), with one tile of left factors or two.
///
/// # Safety
/// As for that. The processor has AVX-512 with `bf16`.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn products(
    tiles: usize,
    parts: Parts,
    left: Factors,
    right: Factors,
    steps: usize,
    from: Sums,
    to: Sums,
) {
    let line = |factors: Factors, tile: usize, step: usize, part: usize, at: usize| -> &Line {
        // SAFETY: each step of the caller's factors has 16 lines for each part.
        unsafe { &*factors.at[tile].add(step * factors.stride + part * TILE_ROWS + at) }
    };
    for row in 0..tiles * TILE_ROWS {
        let mut sums = [_mm512_setzero_ps(); 2];
        if !from.at.is_null() {
            // SAFETY: the caller's sums have as many rows of 32 elements.
            sums = [0, TILE_SUMS].map(|column| unsafe { _mm512_loadu_ps(from.at.add(row * from.stride + column)) });
        }
        for step in 0..steps {
            for &(of_left, of_right) in pairs_of(parts) {
                let lefts = line(left, row / TILE_ROWS, step, of_left, row % TILE_ROWS);
                for (pair, two) in lefts.0.as_chunks::<2>().0.iter().enumerate() {
                    let two = _mm512_set1_epi32((u32::from(two[0]) | u32::from(two[1]) << 16).cast_signed());
                    for (tile, sum) in sums.iter_mut().enumerate() {
                        let rights = line(right, tile, step, of_right, pair);
                        // SAFETY: a line has 64 bytes and their alignment.
                        let rights = unsafe { _mm512_load_si512((&raw const *rights).cast()) };
                        *sum = _mm512_dpbf16_ps(*sum, as_pairs(two), as_pairs(rights));
                    }
                }
            }
        }
        for (column, sum) in [0, TILE_SUMS].into_iter().zip(sums) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to.at.add(row * to.stride + column), sum) };
        }
    }
}
