//! The softmax over candidates, without materializing it.
//!
//! Stages need a few facts about the distribution (its mass, the logit of a probability, one draw), not 128k
//! probabilities, so logits are read in blocks of 64 and only sums are kept. The exponential is our own for two
//! reasons: it is plain arithmetic on lanes, which vectorizes where a call into the platform's library would not, and
//! it is the same on every platform, which reproducible seeds require. Blocks are summed in f32, the blocks' sums in
//! f64.

use pensieve_sdk::sampler::Candidates;

use crate::wide::widest;

/// Logits processed at a time.
pub(crate) const BLOCK: usize = 64;

/// Sums that run in parallel: a few vector registers.
const LANES: usize = BLOCK / 4;

/// Logits that a draw skips at a time.
const STRIDE: usize = 1024;

/// Weights below exp(−87) count as zero: in f32 they would be subnormal, and too small to change a sum.
const DISTANCE_MIN: f32 = -87.0;

/// A distribution: the weight of a candidate is exp(logit − max), and its probability is the weight over the total.
pub(crate) struct Softmax {
    pub(crate) max: f32,
    pub(crate) total: f64,
    /// Expected distance from the highest logit; equals ln total minus the entropy.
    pub(crate) mean_distance: f32,
}

impl Softmax {
    /// Computes the candidates' softmax; `None` if no logit is above −inf. Logits of +inf share the whole mass.
    pub(crate) fn of(candidates: &Candidates<'_>) -> Option<Self> {
        let max = candidates.maximum();
        if max == f32::NEG_INFINITY {
            return None;
        }
        let (total, product) = widest(
            #[inline(always)]
            || weigh_all(candidates.logits(), max),
        );
        Some(Self { max, total, mean_distance: (product / total) as f32 })
    }

    /// A logit minus the highest; never above 0, unless it is NaN.
    pub(crate) fn distance(&self, logit: f32) -> f32 {
        distance(logit, self.max)
    }

    /// The logit with this probability; above −inf, so that it excludes candidates at −inf.
    pub(crate) fn logit_of(&self, probability: f64) -> f32 {
        let distance = (probability * self.total).ln() as f32;
        (self.max + distance).max(f32::MIN)
    }

    /// The information in a candidate with this logit, −ln p.
    pub(crate) fn surprise(&self, logit: f32) -> f64 {
        self.total.ln() - f64::from(self.distance(logit))
    }

    /// The index at which the mass, summed in order, exceeds this fraction (below 1) of the total; never one of weight
    /// zero.
    pub(crate) fn at(&self, logits: &[f32], fraction: f64) -> Option<usize> {
        widest(
            #[inline(always)]
            || self.position(logits, fraction * self.total),
        )
    }

    #[inline(always)]
    fn position(&self, logits: &[f32], target: f64) -> Option<usize> {
        let mut reached = 0.0;
        let mut last = None;
        for (stride, start) in logits.chunks(STRIDE).zip((0..).step_by(STRIDE)) {
            let (mass, _) = weigh_all(stride, self.max);
            if reached + mass > target {
                let mut within = reached;
                for (index, &logit) in stride.iter().enumerate() {
                    let weight = weigh(logit, self.max);
                    if weight > 0.0 {
                        within += f64::from(weight);
                        last = Some(start + index);
                    }
                    if within > target {
                        return last;
                    }
                }
            }
            reached += mass;
        }
        // Rounding may leave the target slightly above the total sum.
        last.or_else(|| logits.iter().rposition(|&logit| self.distance(logit) == 0.0))
    }
}

/// Splits logits into blocks, padding the last one with −inf.
#[inline(always)]
pub(crate) fn blocks(logits: &[f32]) -> impl Iterator<Item = [f32; BLOCK]> {
    let (blocks, rest) = logits.as_chunks();
    let mut last = [f32::NEG_INFINITY; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    blocks.iter().copied().chain((!rest.is_empty()).then_some(last))
}

/// Returns the sum of the weights, and the sum of every weight times its distance.
#[inline(always)]
pub(crate) fn weigh_all(logits: &[f32], max: f32) -> (f64, f64) {
    let (mut totals, mut products) = ([0.0; LANES], [0.0; LANES]);
    for block in blocks(logits) {
        let (mut weights, mut block_products) = ([0.0; BLOCK], [0.0; BLOCK]);
        for index in 0..BLOCK {
            let distance = distance(block[index], max);
            weights[index] = exp(distance);
            block_products[index] = weights[index] * distance.max(DISTANCE_MIN);
        }
        for lane in 0..LANES {
            let sum =
                |values: &[f32; BLOCK]| (values[lane] + values[lane + 16]) + (values[lane + 32] + values[lane + 48]);
            totals[lane] += f64::from(sum(&weights));
            products[lane] += f64::from(sum(&block_products));
        }
    }
    (totals.iter().sum(), products.iter().sum())
}

/// The weight of a logit; 0 for NaN.
#[inline(always)]
pub(crate) fn weigh(logit: f32, max: f32) -> f32 {
    exp(distance(logit, max))
}

#[inline(always)]
fn distance(logit: f32, max: f32) -> f32 {
    // The first case handles +inf, whose difference from itself is NaN.
    if logit == max { 0.0 } else { logit - max }
}

/// exp(x) for x ≤ 0 to within 2 ULP, and 0 below [`DISTANCE_MIN`]: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a minimax
/// polynomial for exp(r), and n added to the exponent.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5·2²³ rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few enough bits that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > DISTANCE_MIN { x } else { DISTANCE_MIN };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let square = r * r;
    let high = (0.041_668_39 + 0.008_368_745 * r) + 0.001_381_454 * square;
    let power = (1.0 + r) + square * ((0.499_999_94 + 0.166_665_21 * r) + square * high);
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
