//! The stages that keep the likely candidates: `top_k`, `top_p`, `min_p`, `typical`.
//!
//! Each may be the first of a chain and see 128k candidates, so none sorts them: each finds the rank of the last candidate
//! to keep, and drops what is below. All but `top_k` leave the order as it is, and where no candidate is above −inf all
//! leave the refusal to the stage that picks.

use std::cell::Cell;

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage, rank};

use crate::Sequence;
use crate::mass::lowest_of_mass;
use crate::parameters::Parameters;
use crate::softmax::Softmax;

/// `top_k`: keeps the `k` best and sorts them (Fan et al. 2018). 0, or a `k` of the whole vocabulary, turns it off.
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

/// `typical`: keeps the candidates whose information −ln p is closest to the entropy, as many as sum to `p` or more
/// (Meister et al. 2022).
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
        let mut scratch = SCRATCH.take();
        if let Some(softmax) = Softmax::with_weights(candidates, &mut scratch.weights) {
            let mass = self.p * softmax.total;
            let floor = softmax.logit_of(negligible(self.p, candidates.len()));
            let (ids, logits) = (candidates.ids(), candidates.logits());
            candidates.keep_ranked(lowest_of_mass(ids, logits, &scratch.weights, mass, floor..=softmax.max));
        }
        SCRATCH.set(scratch);
        Ok(None)
    }
}

struct MinP {
    /// How far below the best a logit may be, ln p; −inf turns the stage off.
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
        let mut scratch = SCRATCH.take();
        if let Some(softmax) = Softmax::with_weights(candidates, &mut scratch.weights) {
            let Scratch { weights, typicalities } = &mut scratch;
            // With m the expected distance from the best, −ln p of a candidate differs from the entropy by |distance − m|.
            let logits = candidates.logits();
            let mean = softmax.mean_distance(logits, weights);
            let typicality = |logit| -(softmax.distance(logit) - mean).abs();
            typicalities.clear();
            typicalities.extend(logits.iter().map(|&logit| typicality(logit)));
            // The best differs by −m, so a floor below 2m excludes only what differs more than all above it.
            let negligible = softmax.distance(softmax.logit_of(negligible(self.p, logits.len())));
            let floor = negligible.min(2.0 * mean) - SLACK - mean;
            let mass = self.p * softmax.total;
            let lowest = lowest_of_mass(candidates.ids(), typicalities, weights, mass, floor..=0.0);
            candidates.retain(|id, logit| rank(id, typicality(logit)) >= lowest);
        }
        SCRATCH.set(scratch);
        Ok(None)
    }
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { weights: Vec::new(), typicalities: Vec::new() }) };
}

/// Room for a number per candidate. The page faults of fresh memory for a vocabulary cost as much as the arithmetic, and
/// room in every stage of every sequence would be megabytes, so each thread has one.
#[derive(Default)]
struct Scratch {
    weights: Vec<f32>,
    typicalities: Vec<f32>,
}

/// Room for the rounding of a logit that was computed from a probability.
const SLACK: f32 = 1e-3;

/// A probability so small that all `count` candidates below it together weigh less than 1 − p.
fn negligible(p: f64, count: usize) -> f64 {
    (1.0 - p) / count as f64 * 0.999
}
