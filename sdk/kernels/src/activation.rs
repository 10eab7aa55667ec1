//! The activations of feed-forward layers, alone or multiplied by a gate.

use super::pool::Pool;
use super::simd::{Kernel, Simd, exp, tanh};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x), also called swish.
    Silu,
    /// x · Φ(x), with the error function accurate to 1.5e-7.
    GeluErf,
    /// GELU's tanh approximation.
    GeluTanh,
    /// 1 / (1 + exp(−x)), the gate of many layers.
    Sigmoid,
    /// ln(1 + exp(x)), which keeps time steps positive.
    Softplus,
}

/// Elements per task: less work is not worth another thread.
const PIECE: usize = 1 << 14;

/// The activation of each x.
pub fn activate(pool: &Pool, activation: Activation, x: &[f32]) -> Vec<f32> {
    pool.computed(x.len(), PIECE, |index, out| {
        let len = out.len();
        let x = out.copy(&x[index * PIECE..][..len]);
        pool.level().run(Activate { activation, x, factor: None });
    })
}

/// `activation(gate) · up`.
pub fn activate_mul(pool: &Pool, activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    assert!(gate.len() == up.len(), "{} gates, {} values", gate.len(), up.len());
    pool.computed(gate.len(), PIECE, |index, out| {
        let range = index * PIECE..index * PIECE + out.len();
        let x = out.copy(&gate[range.clone()]);
        pool.level().run(Activate { activation, x, factor: Some(&up[range]) });
    })
}

/// Applies the activation in place, then multiplies by `factor` if given.
pub(super) fn activate_in_place(pool: &Pool, activation: Activation, values: &mut [f32], factor: Option<&[f32]>) {
    assert!(factor.is_none_or(|factor| factor.len() == values.len()), "a factor for each value");
    pool.run_pieces(values, PIECE, |index, x| {
        let factor = factor.map(|factor| &factor[index * PIECE..][..x.len()]);
        pool.level().run(Activate { activation, x, factor });
    });
}

struct Activate<'a> {
    activation: Activation,
    x: &'a mut [f32],
    factor: Option<&'a [f32]>,
}

impl<S: Simd> Kernel<S> for Activate<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { activation, x, factor } = self;
        apply(simd, activation, x);
        if let Some(factor) = factor {
            for (x, factor) in x.iter_mut().zip(factor) {
                *x *= factor;
            }
        }
    }
}

#[inline(always)]
pub(super) fn apply<S: Simd>(simd: S, activation: Activation, x: &mut [f32]) {
    match activation {
        Activation::Silu => map::<S, Silu>(simd, x),
        Activation::GeluErf => map::<S, GeluErf>(simd, x),
        Activation::GeluTanh => map::<S, GeluTanh>(simd, x),
        Activation::Sigmoid => map::<S, Sigmoid>(simd, x),
        Activation::Softplus => map::<S, Softplus>(simd, x),
    }
}

/// A function on vectors. A trait, because a closure or function pointer would be compiled as a separate function,
/// without the instruction set that the caller enables.
trait Lanes {
    fn of<S: Simd>(simd: S, x: S::F) -> S::F;
}

#[inline(always)]
fn map<S: Simd, L: Lanes>(simd: S, x: &mut [f32]) {
    let mut chunks = x.chunks_exact_mut(S::LANES);
    for chunk in &mut chunks {
        simd.store(L::of(simd, simd.load(chunk)), chunk);
    }
    let rest = chunks.into_remainder();
    if rest.is_empty() {
        return;
    }
    let mut lanes = [0.0; 64];
    lanes[..rest.len()].copy_from_slice(rest);
    simd.store(L::of(simd, simd.load(&lanes)), &mut lanes);
    rest.copy_from_slice(&lanes[..rest.len()]);
}

struct Silu;

impl Lanes for Silu {
    #[inline(always)]
    fn of<S: Simd>(simd: S, x: S::F) -> S::F {
        let negative = simd.sub(simd.splat(0.0), x);
        simd.div(x, simd.add(simd.splat(1.0), exp(simd, negative)))
    }
}

struct Sigmoid;

impl Lanes for Sigmoid {
    #[inline(always)]
    fn of<S: Simd>(simd: S, x: S::F) -> S::F {
        let negative = simd.sub(simd.splat(0.0), x);
        simd.div(simd.splat(1.0), simd.add(simd.splat(1.0), exp(simd, negative)))
    }
}

struct Softplus;

impl Lanes for Softplus {
    /// `max(x, 0) + ln(1 + y)` with `y = exp(−|x|)`. The logarithm is `2 · atanh(s)` with `s = y / (2 + y)`, which is at
    /// most 1/3, so that its series is accurate to 1e-9 of its value.
    #[inline(always)]
    fn of<S: Simd>(simd: S, x: S::F) -> S::F {
        let negative = simd.sub(simd.splat(0.0), x);
        let y = exp(simd, simd.min(negative, x));
        let s = simd.div(y, simd.add(simd.splat(2.0), y));
        let squared = simd.mul(s, s);
        let mut series = simd.splat(2.0 / 15.0);
        for coefficient in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
            series = simd.fma(series, squared, simd.splat(coefficient));
        }
        // In this order NaN stays NaN.
        simd.fma(series, s, simd.max(simd.splat(0.0), x))
    }
}

struct GeluTanh;

impl Lanes for GeluTanh {
    #[inline(always)]
    fn of<S: Simd>(simd: S, x: S::F) -> S::F {
        let cubic = simd.mul(simd.mul(x, x), simd.splat(0.044_715));
        let inner = simd.mul(simd.fma(cubic, x, x), simd.splat(0.797_884_6));
        let half = simd.mul(x, simd.splat(0.5));
        simd.fma(half, tanh(simd, inner), half)
    }
}

struct GeluErf;

impl Lanes for GeluErf {
    #[inline(always)]
    fn of<S: Simd>(simd: S, x: S::F) -> S::F {
        let half = simd.mul(x, simd.splat(0.5));
        simd.fma(half, erf(simd, simd.mul(x, simd.splat(std::f32::consts::FRAC_1_SQRT_2))), half)
    }
}

/// Abramowitz and Stegun, 7.1.26: accurate to 1.5e-7 for positive x; the function is odd.
#[inline(always)]
fn erf<S: Simd>(simd: S, x: S::F) -> S::F {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    let size = simd.max(simd.sub(zero, x), x);
    let t = simd.div(one, simd.fma(size, simd.splat(0.327_591_1), one));
    let mut series = simd.splat(1.061_405_4);
    for coefficient in [-1.453_152, 1.421_413_8, -0.284_496_74, 0.254_829_6] {
        series = simd.fma(series, t, simd.splat(coefficient));
    }
    let tail = simd.mul(simd.mul(series, t), exp(simd, simd.sub(zero, simd.mul(x, x))));
    let value = simd.sub(one, tail);
    simd.sub(simd.zero_below(simd.add(value, value), x, 0.0), value)
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    const ALL: [Activation; 5] =
        [Activation::Silu, Activation::GeluErf, Activation::GeluTanh, Activation::Sigmoid, Activation::Softplus];

    fn check(activation: Activation, expected: impl Fn(f64) -> f64) {
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            let x: Vec<f32> = (0..40_003).map(|i| (i as f32 - 20_000.0) * 0.0008).collect();
            let (alone, gated) = (activate(&pool, activation, &x), activate_mul(&pool, activation, &x, &x));
            assert!(alone.len() == x.len() && gated.len() == x.len());
            for ((x, alone), gated) in x.iter().zip(alone).zip(gated) {
                let expected = expected(f64::from(*x));
                let name = level.name();
                assert!(
                    (f64::from(alone) - expected).abs() < 4e-7 * f64::from(1.0 + x.abs()),
                    "{name}: {x} gave {alone}"
                );
                assert_eq!(gated, alone * x, "{name}");
            }
        }
    }

    #[test]
    fn silu_is_close() {
        check(Activation::Silu, |x| x / (1.0 + (-x).exp()));
    }

    #[test]
    fn sigmoid_and_softplus_are_close() {
        check(Activation::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        check(Activation::Softplus, |x| x.exp().ln_1p());
    }

    #[test]
    fn gelu_by_tanh_is_close() {
        check(Activation::GeluTanh, |x| {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh())
        });
    }

    #[test]
    fn gelu_by_the_error_function_is_close() {
        check(Activation::GeluErf, |x| {
            // The integral of the normal density, by Simpson's rule.
            let (steps, density) = (2000, |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt());
            let h = x / f64::from(steps);
            let inner: f64 = (1..steps).map(|i| density(h * f64::from(i)) * f64::from(2 + i % 2 * 2)).sum();
            x * (0.5 + h / 3.0 * (density(0.0) + inner + density(x)))
        });
    }

    #[test]
    fn a_value_that_is_no_number_stays_none() {
        for level in Level::available() {
            for activation in ALL {
                let x = activate(&Pool::with_level(1, level), activation, &[f32::NAN; 19]);
                assert!(x.len() == 19 && x.iter().all(|x| x.is_nan()), "{} {activation:?}", level.name());
            }
        }
    }
}
