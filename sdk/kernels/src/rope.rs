//! Rotary position embedding: pairs of values are rotated by angles proportional to the position.

use super::pool::Pool;
use super::simd::{Kernel, Simd};
use pensieve_weights::RopeStyle;

/// Rotates the first `rotary_dim` values of each head of `x[n, heads, head_dim]` in place. `cos` and `sin` are `[n,
/// rotary_dim / 2]`, one row per row of `x`.
#[allow(clippy::too_many_arguments)]
pub fn rope(
    pool: &Pool,
    x: &mut [f32],
    n: usize,
    heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    style: RopeStyle,
    cos: &[f32],
    sin: &[f32],
) {
    let (row, half) = (heads * head_dim, rotary_dim / 2);
    assert!(rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim, "{rotary_dim} rotary of {head_dim} values");
    assert_eq!(x.len(), n * row, "values for {n} rows of {heads} heads of {head_dim}");
    assert!(cos.len() == n * half && sin.len() == n * half, "{} and {} angles for {n} rows", cos.len(), sin.len());
    if x.is_empty() || half == 0 {
        return;
    }
    // Below a few thousand values, another thread costs more than it gains.
    let rows = (1_usize << 14).div_ceil(row);
    pool.run_pieces(x, rows * row, |index, x| {
        let angles = index * rows * half..;
        let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
        pool.level().run(Rope { x, row, head_dim, style, cos, sin, half });
    });
}

struct Rope<'a> {
    x: &'a mut [f32],
    row: usize,
    head_dim: usize,
    half: usize,
    style: RopeStyle,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl<S: Simd> Kernel<S> for Rope<'_> {
    #[inline(always)]
    fn run(self, _simd: S) {
        let angles = self.cos.chunks_exact(self.half).zip(self.sin.chunks_exact(self.half));
        for (row, (cos, sin)) in self.x.chunks_exact_mut(self.row).zip(angles) {
            for head in row.chunks_exact_mut(self.head_dim) {
                let head = &mut head[..2 * self.half];
                match self.style {
                    RopeStyle::NeoX => {
                        let (first, second) = head.split_at_mut(self.half);
                        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                        }
                    }
                    RopeStyle::Interleaved => {
                        for (([a, b], cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn check(style: RopeStyle, pair: impl Fn(usize) -> (usize, usize)) {
        let (n, heads, head_dim, rotary_dim) = (401, 3, 22, 12);
        let half = rotary_dim / 2;
        let x: Vec<f32> = (0..n * heads * head_dim).map(|i| (i as f32 * 0.37).sin()).collect();
        let angles: Vec<f32> = (0..n * half).map(|i| i as f32 * 0.11).collect();
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles.iter().map(|angle| angle.sin_cos()).unzip();
        for level in Level::available() {
            let mut turned = x.clone();
            rope(&Pool::with_level(2, level), &mut turned, n, heads, head_dim, rotary_dim, style, &cos, &sin);
            for (at, (x, turned)) in x.chunks(head_dim).zip(turned.chunks(head_dim)).enumerate() {
                assert_eq!(x[rotary_dim..], turned[rotary_dim..]);
                for i in 0..half {
                    let ((a, b), angle) = (pair(i), at / heads * half + i);
                    let (cos, sin) = (cos[angle], sin[angle]);
                    assert!((turned[a] - (x[a] * cos - x[b] * sin)).abs() < 1e-6, "{}", level.name());
                    assert!((turned[b] - (x[b] * cos + x[a] * sin)).abs() < 1e-6, "{}", level.name());
                }
            }
        }
    }

    #[test]
    fn turns_halves_against_each_other() {
        check(RopeStyle::NeoX, |i| (i, i + 6));
    }

    #[test]
    fn turns_neighbours_against_each_other() {
        check(RopeStyle::Interleaved, |i| (2 * i, 2 * i + 1));
    }
}
