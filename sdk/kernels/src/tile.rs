//! The innermost product: a few rows of numbers times two panels.
//!
//! A panel is a transposed block of a matrix: one vector per column, with one lane per row. So the product of a row
//! with it is one vector multiply-add per column, in column order, and lanes never interact. Two panels are processed
//! side by side so that each loaded number is used twice; several rows are processed together so that each loaded
//! vector is used several times, and to hide the latency of the additions. How many are processed together does not
//! affect the result of any.

use super::simd::{Kernel, Simd};

/// Panels side by side.
pub(super) const PAIR: usize = 2;

/// Fewest rows that the matrix unit computes. Fewer are as fast by vectors, or faster: weights are unpacked in two to four
/// times as many instructions for tiles. The texts of the laws are shorter, so the laws hold to the last bit.
pub(super) const MANY: usize = 64;

/// Maximum number of rows processed together: with a pair of panels, their sums fill the vector registers.
pub(super) const TILE: usize = 6;

/// Adds to each of 1 to [`TILE`] sums the product of its row of `x` with a pair of panels. Rows of `x` are `stride`
/// apart and at least as long as the panels.
#[inline(always)]
pub(super) fn tile<S: Simd>(simd: S, pair: [&[S::F]; PAIR], x: &[f32], stride: usize, sums: &mut [[S::F; PAIR]]) {
    macro_rules! of {
        ($n:literal) => {
            if let Ok(sums) = sums.try_into() {
                simd.enter(Tile::<S, $n> { pair, x, stride, sums });
            }
        };
    }
    match sums.len() {
        1 => of!(1),
        2 => of!(2),
        3 => of!(3),
        4 => of!(4),
        5 => of!(5),
        TILE => of!(6),
        _ => unreachable!("tiles have 1 to {TILE} rows"),
    }
}

struct Tile<'a, S: Simd, const N: usize> {
    pair: [&'a [S::F]; PAIR],
    x: &'a [f32],
    stride: usize,
    sums: &'a mut [[S::F; PAIR]; N],
}

impl<S: Simd, const N: usize> Kernel<S> for Tile<'_, S, N> {
    #[inline(always)]
    fn run(self, simd: S) {
        let values = self.pair[0].len();
        let pair = [self.pair[0], &self.pair[1][..values]];
        let mut x = [&self.x[..values]; N];
        for (i, x) in x.iter_mut().enumerate() {
            *x = &self.x[i * self.stride..][..values];
        }
        let mut sums = [[simd.splat(0.0); PAIR]; N];
        for at in 0..values {
            for i in 0..N {
                let value = simd.splat(x[i][at]);
                for p in 0..PAIR {
                    sums[i][p] = simd.fma(pair[p][at], value, sums[i][p]);
                }
            }
        }
        for (all, sums) in self.sums.iter_mut().zip(sums) {
            for (all, sum) in all.iter_mut().zip(sums) {
                *all = simd.add(*all, sum);
            }
        }
    }
}

/// Evaluates `$body` for ranges of at most `$most` rows, as even as possible, that together cover the batch's `$n`.
macro_rules! in_tiles {
    ($n:expr, $most:expr, |$rows:ident| $body:expr) => {{
        let tiles = usize::div_ceil($n, $most);
        for tile in 0..tiles {
            let $rows = $n * tile / tiles..$n * (tile + 1) / tiles;
            $body;
        }
    }};
}
pub(super) use in_tiles;
