//! The softmax over candidates, without writing it down.
//!
//! Stages want a few facts about the distribution (its mass, the logit of a probability, one draw), not 128k
//! probabilities, so logits are read in blocks of 64 and only sums are kept. The exponential is our own for two reasons:
//! it is plain arithmetic on lanes, which vectorises where a call into the platform's library would not, and it is the
//! same on every platform, which a seed's promise needs. Blocks are summed in f32, the blocks' sums in f64.

use pensieve_sdk::sampler::Candidates;

/// How many logits are weighed at a time.
const BLOCK: usize = 64;

/// Weights below exp(−87) count as zero: f32 would go subnormal, and no sum would feel them.
const DISTANCE_MIN: f32 = -87.0;

/// A distribution: the weight of a candidate is exp(logit − max), and its probability that over the total.
pub(crate) struct Softmax {
    pub(crate) max: f32,
    pub(crate) total: f64,
}

impl Softmax {
    /// The softmax of what is left; none if no logit is above −inf. Where logits are +inf, they share the whole mass.
    pub(crate) fn of(candidates: &Candidates<'_>) -> Option<Self> {
        Self::measure(candidates, |_| {})
    }

    /// The softmax of what is left, and everyone's weight in place of what `weights` held.
    pub(crate) fn with_weights(candidates: &Candidates<'_>, weights: &mut Vec<f32>) -> Option<Self> {
        weights.clear();
        weights.reserve(candidates.len() + BLOCK);
        let softmax = Self::measure(candidates, |block| weights.extend_from_slice(block));
        weights.truncate(candidates.len());
        softmax
    }

    fn measure(candidates: &Candidates<'_>, mut visit: impl FnMut(&[f32; BLOCK])) -> Option<Self> {
        let max = candidates.maximum();
        if max == f32::NEG_INFINITY {
            return None;
        }
        let mut total = 0.0;
        for block in candidates.logits().chunks(BLOCK) {
            let weights = weights(block, max);
            total += sum(&weights);
            visit(&weights);
        }
        Some(Self { max, total })
    }

    /// How far a logit is below the highest; never above 0, and −inf for NaN.
    pub(crate) fn distance(&self, logit: f32) -> f32 {
        distance(logit, self.max)
    }

    /// The logit that has this probability; above −inf, so that it excludes what is there.
    pub(crate) fn logit_of(&self, probability: f64) -> f32 {
        let distance = (probability * self.total).ln() as f32;
        (self.max + distance).max(f32::MIN)
    }

    /// The information in a candidate of this logit, −ln p.
    pub(crate) fn surprise(&self, logit: f32) -> f64 {
        self.total.ln() - f64::from(self.distance(logit))
    }

    /// The expected distance, which is ln total minus the entropy.
    pub(crate) fn mean_distance(&self, logits: &[f32], weights: &[f32]) -> f32 {
        let mut product = 0.0;
        for (logits, block) in logits.chunks(BLOCK).zip(weights.chunks(BLOCK)) {
            let mut products = [0.0; BLOCK];
            products[..block.len()].copy_from_slice(block);
            for (product, &logit) in products.iter_mut().zip(logits) {
                *product *= self.distance(logit).max(DISTANCE_MIN);
            }
            product += sum(&products);
        }
        (product / self.total) as f32
    }

    /// The position at which the mass, summed in order, passes this fraction (below 1) of the total; never one of weight
    /// zero.
    pub(crate) fn at(&self, logits: &[f32], fraction: f64) -> Option<usize> {
        let target = fraction * self.total;
        let mut reached = 0.0;
        let mut last = None;
        for (block, start) in logits.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
            let weights = weights(block, self.max);
            let mass = sum(&weights);
            if reached + mass > target {
                let mut within = reached;
                for (index, &weight) in weights.iter().enumerate().filter(|&(_, &weight)| weight > 0.0) {
                    within += f64::from(weight);
                    last = Some(start + index);
                    if within > target {
                        return last;
                    }
                }
            }
            reached += mass;
        }
        // Rounding may leave the target a hair above all that was summed.
        last.or_else(|| logits.iter().rposition(|&logit| self.distance(logit) == 0.0))
    }
}

fn distance(logit: f32, max: f32) -> f32 {
    // The first case is for +inf, whose difference from itself is NaN; the comparison below takes NaN for −inf.
    let distance = if logit == max { 0.0 } else { logit - max };
    if distance <= 0.0 { distance } else { f32::NEG_INFINITY }
}

/// The weights of at most a block of logits, and zeros behind them.
#[inline(always)]
fn weights(logits: &[f32], max: f32) -> [f32; BLOCK] {
    let mut weights = [0.0; BLOCK];
    if max == f32::INFINITY {
        weights.iter_mut().zip(logits).for_each(|(weight, &logit)| *weight = exp(distance(logit, max)));
    } else if let Some(logits) = logits.as_array::<BLOCK>() {
        // The same as below, but a known length vectorises.
        weights.iter_mut().zip(logits).for_each(|(weight, &logit)| *weight = exp(logit - max));
    } else {
        weights.iter_mut().zip(logits).for_each(|(weight, &logit)| *weight = exp(logit - max));
    }
    weights
}

#[inline(always)]
fn sum(block: &[f32; BLOCK]) -> f64 {
    let mut lanes = [0.0f32; 16];
    let (chunks, _) = block.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    f64::from(lanes.iter().sum::<f32>())
}

/// exp(x) for x ≤ 0 to within 2 units in the last place, and 0 below [`DISTANCE_MIN`]: x = n·ln 2 + r with |r| ≤ ln 2 / 2,
/// a Taylor polynomial for exp(r), and n added to the exponent.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5·2²³ rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, of which the first has so few bits that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > DISTANCE_MIN { x } else { DISTANCE_MIN };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let mut power = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * r + coefficient;
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let result = power * f32::from_bits(exponent << 23);
    if x > DISTANCE_MIN { result } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        for step in 0..2_000_000 {
            let x = -step as f32 * 4.3e-5;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        for x in [-87.5, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp(x), 0.0);
        }
    }

    #[test]
    fn every_fraction_falls_on_a_candidate_with_weight() {
        let mut ids: Vec<u32> = (0..200).collect();
        let mut logits = vec![f32::NEG_INFINITY; 200];
        (logits[3], logits[70], logits[199]) = (1.0, 1.0, f32::NAN);
        let Ok(candidates) = Candidates::new(&mut ids, &mut logits, false) else { panic!("lengths agree") };
        let Some(softmax) = Softmax::of(&candidates) else { panic!("two candidates have weight") };
        let at = |fraction| softmax.at(candidates.logits(), fraction);
        assert_eq!([at(0.0), at(0.499), at(0.501), at(1.0), at(2.0)], [3, 3, 70, 70, 70].map(Some));
    }
}
