//! The stages that keep likely candidates: `top_k`, `top_p`, `min_p`, `typical`.
//!
//! Each may come first in a chain and see 128k candidates, so none sorts them: each finds the rank of the last
//! candidate to keep, and drops everything below. All but `top_k` preserve the order, and if no candidate is above
//! −inf, all leave the error to the stage that picks.

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage, unrank};

use crate::Sequence;
use crate::nucleus::lowest_of_mass;
use crate::parameters::Parameters;
use crate::softmax::Softmax;
use crate::wide::widest;

/// `top_k`: keeps the `k` best and sorts them (Fan et al. 2018). Disabled if `k` is 0 or covers the vocabulary.
pub(crate) fn top_k(parameters: &mut Parameters, sequence: &Sequence) -> Result<Box<dyn Stage>> {
    let k = parameters.integer("k", 40, 0..=u32::MAX.into())?;
    let off = k == 0 || k >= sequence.vocabulary.into();
    Ok(Box::new(TopK { k: if off { None } else { usize::try_from(k).ok() } }))
}

/// `top_p`: keeps the smallest set of best candidates whose probabilities sum to `p` or more (Holtzman et al. 2019).
pub(crate) fn top_p(parameters: &mut Parameters, _: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(TopP { p: parameters.number("p", 0.95, 0.0..=1.0)? }))
}

/// `min_p`: keeps the candidates at least `p` times as probable as the best one (Nguyen et al. 2024).
pub(crate) fn min_p(parameters: &mut Parameters, _: &Sequence) -> Result<Box<dyn Stage>> {
    let p = parameters.number("p", 0.05, 0.0..=1.0)?;
    Ok(Box::new(MinP { distance: p.ln() as f32 }))
}

/// `typical`: keeps the candidates whose information −ln p is closest to the entropy, until their probabilities sum to
/// `p` or more (Meister et al. 2022).
pub(crate) fn typical(parameters: &mut Parameters, _: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Typical { p: parameters.number("p", 0.95, 0.0..=1.0)? }))
}

struct TopK {
    k: Option<usize>,
}

impl Stage for TopK {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        if let Some(k) = self.k {
            candidates.keep_best(k);
        }
        Ok(None)
    }
}

struct TopP {
    p: f64,
}

impl Stage for TopP {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        if self.p >= 1.0 {
            return Ok(None);
        }
        let max = candidates.maximum();
        let lowest = lowest_of_mass(candidates, max, self.p, max, |logit| logit);
        if let Some(lowest) = lowest {
            keep_ranked(candidates, lowest, |logit| logit);
        }
        Ok(None)
    }
}

struct MinP {
    /// Lower bound of a logit relative to the best, ln p; −inf disables the stage.
    distance: f32,
}

impl Stage for MinP {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        let max = candidates.maximum();
        if self.distance > f32::NEG_INFINITY && max > f32::NEG_INFINITY {
            candidates.keep_from((max + self.distance).max(f32::MIN));
        }
        Ok(None)
    }
}

struct Typical {
    p: f64,
}

impl Stage for Typical {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        if self.p >= 1.0 {
            return Ok(None);
        }
        let Some(softmax) = Softmax::of(candidates) else { return Ok(None) };
        // With m the expected distance from the best, −ln p of a candidate differs from the entropy by |distance − m|.
        let typicality = |logit| -(softmax.distance(logit) - softmax.mean_distance).abs();
        if let Some(lowest) = lowest_of_mass(candidates, softmax.max, self.p, 0.0, typicality) {
            keep_ranked(candidates, lowest, typicality);
        }
        Ok(None)
    }
}

/// Keeps the candidates whose rank, by this key and the id, is at least `lowest`, the rank of a non-NaN key.
fn keep_ranked(candidates: &mut Candidates<'_>, lowest: u64, key: impl Fn(f32) -> f32) {
    let (last, lowest) = unrank(lowest);
    let keeps = |id, key| (key > lowest) | ((key == lowest) & (id <= last));
    widest(
        #[inline(always)]
        || candidates.retain(|id, logit| keeps(id, key(logit))),
    );
}
