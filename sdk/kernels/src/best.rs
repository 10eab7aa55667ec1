//! The best token of each row of logits, as greedy decoding takes it.

use super::pool::Pool;
use super::simd::{Kernel, Simd, exp};

/// Logits per task. Rows are summed in pieces of so many with any number of threads.
const PIECE: usize = 1 << 13;

/// For each row of `width` logits: the index of the first of the highest ones, that logit, and the log-sum-exp of the row, which is NaN
/// if any logit is. If all are, the index is `width`.
pub fn best(pool: &Pool, logits: &[f32], width: usize) -> Vec<[f32; 3]> {
    assert!(width > 0 && logits.len().is_multiple_of(width), "{} logits in rows of {width}", logits.len());
    let pieces = width.div_ceil(PIECE);
    let mut parts = vec![Part::default(); logits.len() / width * pieces];
    pool.run_pieces(&mut parts, 1, |index, part| {
        let (row, start) = (index / pieces * width, index % pieces * PIECE);
        let logits = &logits[row + start..row + width.min(start + PIECE)];
        pool.level().run(Best { logits, part: &mut part[0] });
        let highest = part[0].highest;
        part[0].first = first(logits, highest).map_or(width, |first| start + first);
    });
    parts.chunks_exact(pieces).map(|parts| together(parts, width)).collect()
}

/// Of a piece.
#[derive(Clone, Copy, Default)]
struct Part {
    highest: f32,
    first: usize,
    /// Of `exp(logit − highest)`.
    sum: f32,
}

fn together(parts: &[Part], width: usize) -> [f32; 3] {
    let highest = parts.iter().map(|part| part.highest).fold(f32::NEG_INFINITY, f32::max);
    let first = parts.iter().find(|part| part.highest == highest).map_or(width, |part| part.first);
    let base = base(highest);
    let sum: f32 = parts.iter().map(|part| part.sum * (part.highest - base).exp()).sum();
    [first as f32, highest, base + sum.ln()]
}

/// What is subtracted from logits before their exponentials are summed: the highest, unless all are −∞.
fn base(highest: f32) -> f32 {
    if highest == f32::NEG_INFINITY { 0.0 } else { highest }
}

/// Where `wanted` is first. A whole chunk is compared at once, which takes a vector instruction for several logits.
fn first(logits: &[f32], wanted: f32) -> Option<usize> {
    const CHUNK: usize = 64;
    let equals = |logits: &[f32]| logits.iter().filter(|logit| **logit == wanted).count();
    let chunk = logits.chunks(CHUNK).position(|logits| equals(logits) > 0)? * CHUNK;
    logits[chunk..].iter().position(|logit| *logit == wanted).map(|place| chunk + place)
}

struct Best<'a> {
    logits: &'a [f32],
    part: &'a mut Part,
}

impl<S: Simd> Kernel<S> for Best<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let (mut padded, whole) = ([f32::NEG_INFINITY; 64], self.logits.len() / S::LANES * S::LANES);
        let (logits, rest) = self.logits.split_at(whole);
        padded[..rest.len()].copy_from_slice(rest);
        let rest = simd.load(&padded);
        // In this order a NaN is ignored.
        let mut highest = simd.max(rest, simd.splat(f32::NEG_INFINITY));
        for logits in logits.chunks_exact(S::LANES) {
            highest = simd.max(simd.load(logits), highest);
        }
        self.part.highest = simd.top(highest);
        let base = simd.splat(base(self.part.highest));
        let mut sum = exp(simd, simd.sub(rest, base));
        for logits in logits.chunks_exact(S::LANES) {
            sum = simd.add(sum, exp(simd, simd.sub(simd.load(logits), base)));
        }
        self.part.sum = simd.sum(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn check(row: &[f32], expected: [f64; 3]) {
        for level in Level::available() {
            let rows = [row, &vec![0.5; row.len()], row].concat();
            let best = best(&Pool::with_level(3, level), &rows, row.len());
            assert_eq!(best.len(), 3);
            assert_eq!(best[0].map(f32::to_bits), best[2].map(f32::to_bits), "{}", level.name());
            let is_like = |got: f32, wanted: f64| {
                let got = f64::from(got);
                got == wanted || got.is_nan() && wanted.is_nan() || (got - wanted).abs() < 2e-6 * wanted.abs().max(1.0)
            };
            let same = best[0].into_iter().zip(expected).all(|(got, wanted)| is_like(got, wanted));
            assert!(same, "{}: {:?}, not {expected:?}", level.name(), best[0]);
            assert!(best[1][0] == 0.0 && is_like(best[1][2], 0.5 + (row.len() as f64).ln()), "{:?}", best[1]);
        }
    }

    #[test]
    fn the_first_of_the_highest_is_found() {
        for width in [1, 3, 64, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 77] {
            for place in [0, width / 2, width - 1] {
                let mut row: Vec<f32> = (0..width).map(|at| (at as f32 * 0.37).sin() * 8.0).collect();
                row[place] = 9.5;
                row[width - 1] = 9.5;
                let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - 9.5).exp()).sum();
                check(&row, [place as f64, 9.5, 9.5 + sum.ln()]);
            }
        }
    }

    #[test]
    fn what_is_no_number_shows_in_the_sum() {
        const WIDTH: usize = 2 * PIECE + 5;
        let mut row = vec![f32::NEG_INFINITY; WIDTH];
        check(&row, [0.0, f64::NEG_INFINITY, f64::NEG_INFINITY]);
        row[PIECE + 3] = -200.0;
        check(&row, [(PIECE + 3) as f64, -200.0, -200.0]);
        for place in [0, PIECE + 4, WIDTH - 1] {
            row[place] = f32::NAN;
            check(&row, [(PIECE + 3) as f64, -200.0, f64::NAN]);
            row[place] = f32::NEG_INFINITY;
        }
        check(&[f32::NAN; WIDTH], [WIDTH as f64, f64::NEG_INFINITY, f64::NAN]);
    }
}
