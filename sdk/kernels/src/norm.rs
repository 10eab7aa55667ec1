//! Normalization of rows.

use super::pool::Pool;
use super::simd::{Kernel, Simd};

/// Elements per task: less work is not worth another thread.
const PIECE: usize = 1 << 14;

/// Divides each row of `x[n, width]` by its root mean square and multiplies it by `weight`.
pub fn rms_norm(pool: &Pool, x: &[f32], n: usize, width: usize, weight: &[f32], eps: f32) -> Vec<f32> {
    norm(pool, x, n, width, Norm { weight, bias: None, centred: false, eps })
}

/// Normalizes each row of `x[n, width]` to zero mean and unit variance, multiplies it by `weight` and adds `bias`.
pub fn layer_norm(
    pool: &Pool,
    x: &[f32],
    n: usize,
    width: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) -> Vec<f32> {
    norm(pool, x, n, width, Norm { weight, bias, centred: true, eps })
}

#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    centred: bool,
    eps: f32,
}

fn norm(pool: &Pool, x: &[f32], n: usize, width: usize, norm: Norm<'_>) -> Vec<f32> {
    assert!(x.len() == n * width, "{} values for {n} rows of {width}", x.len());
    assert_eq!(norm.weight.len(), width, "weights");
    assert!(norm.bias.is_none_or(|bias| bias.len() == width), "biases for rows of {width}");
    let rows = PIECE.div_ceil(width.max(1));
    pool.computed(x.len(), (rows * width).max(1), |index, out| {
        for (x, out) in x[index * rows * width..].chunks_exact(width).zip(out.rows(width)) {
            pool.level().run(Row { norm, out: out.copy(x) });
        }
    })
}

struct Row<'a> {
    norm: Norm<'a>,
    /// The row, which is normalized in place.
    out: &'a mut [f32],
}

impl<S: Simd> Kernel<S> for Row<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { norm: Norm { weight, bias, centred, eps }, out } = self;
        let width = out.len() as f32;
        let mean = if centred { sum(simd, out, 0.0, |x| x) / width } else { 0.0 };
        let squares = sum(simd, out, mean, |x| {
            let centred = simd.sub(x, simd.splat(mean));
            simd.mul(centred, centred)
        });
        let scale = 1.0 / (squares / width + eps).sqrt();
        for (out, weight) in out.iter_mut().zip(weight) {
            *out = (*out - mean) * scale * weight;
        }
        if let Some(bias) = bias {
            for (out, bias) in out.iter_mut().zip(bias) {
                *out += bias;
            }
        }
    }
}

/// Sums `of` over all values; the last vector is padded with `pad`, for which `of` must return 0.
#[inline(always)]
fn sum<S: Simd>(simd: S, x: &[f32], pad: f32, of: impl Fn(S::F) -> S::F) -> f32 {
    let chunks = x.chunks_exact(S::LANES);
    let rest = chunks.remainder();
    let mut lanes = [pad; 64];
    lanes[..rest.len()].copy_from_slice(rest);
    let mut sum = of(simd.load(&lanes));
    for chunk in chunks {
        sum = simd.add(sum, of(simd.load(chunk)));
    }
    simd.sum(sum)
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn check(centred: bool) {
        let (n, width, eps) = (37, 1003, 1e-5);
        let x: Vec<f32> = (0..n * width).map(|i| 3.0 + (i as f32 * 0.37).sin() * (i % 91) as f32).collect();
        let weight: Vec<f32> = (0..width).map(|i| 0.5 + (i as f32 * 0.11).cos()).collect();
        let bias: Vec<f32> = (0..width).map(|i| i as f32 * 0.001).collect();
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            let run = |x: &[f32], n| match centred {
                true => layer_norm(&pool, x, n, width, &weight, Some(&bias), eps),
                false => rms_norm(&pool, x, n, width, &weight, eps),
            };
            let out = run(&x, n);
            for (x, out) in x.chunks(width).zip(out.chunks(width)) {
                assert_eq!(run(x, 1), out, "{}: a row alone and in a batch", level.name());
                let values: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let mean = if centred { values.iter().sum::<f64>() / width as f64 } else { 0.0 };
                let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                for i in 0..width {
                    let shift = if centred { f64::from(bias[i]) } else { 0.0 };
                    let expected = (values[i] - mean) / (variance + 1e-5).sqrt() * f64::from(weight[i]) + shift;
                    assert!((expected - f64::from(out[i])).abs() < 1e-5, "{}: {expected} {}", level.name(), out[i]);
                }
            }
        }
    }

    #[test]
    fn rows_are_divided_by_their_root_mean_square() {
        check(false);
    }

    #[test]
    fn rows_are_centred_and_divided_by_their_deviation() {
        check(true);
    }
}
