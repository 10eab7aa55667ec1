//! The stages that end a chain with a token: `greedy`, `seeded`, `mirostat`.
//!
//! Only they can fail: without a candidate above −inf there is no token to pick, and picking one anyway would hide
//! broken logits or a grammar at a dead end. Draws walk the candidates in order, so sorting and non-sorting chains draw
//! different tokens; both are reproducible.

use std::f64::consts::LN_2;

use pensieve_sdk::sampler::{Candidates, History, Stage};
use pensieve_sdk::{Error, Result};

use crate::Sequence;
use crate::parameters::Parameters;
use crate::random::Random;
use crate::softmax::Softmax;

/// `greedy`: picks the best candidate.
pub(crate) fn greedy(_: &mut Parameters, _: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Greedy))
}

/// `seeded`: draws from the softmax of the remaining candidates.
pub(crate) fn seeded(_: &mut Parameters, sequence: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Seeded { random: Random::new("seeded", sequence.seed) }))
}

/// `mirostat`: draws so that the surprise −log₂ p of the picks stays near `tau` bits, by a limit that adapts with the
/// rate `eta` (version 2 of Basu et al. 2020).
pub(crate) fn mirostat(parameters: &mut Parameters, sequence: &Sequence) -> Result<Box<dyn Stage>> {
    let tau = parameters.number("tau", 5.0, 0.0..=100.0)?;
    let eta = parameters.number("eta", 0.1, 0.0..=10.0)?;
    Ok(Box::new(Mirostat { tau, eta, mu: 2.0 * tau, random: Random::new("mirostat", sequence.seed) }))
}

struct Greedy;

impl Stage for Greedy {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        let best = candidates.best().ok_or_else(|| nothing_to_pick("greedy", candidates))?;
        Ok(Some(candidates.ids()[best]))
    }
}

struct Seeded {
    random: Random,
}

impl Stage for Seeded {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        let softmax = Softmax::of(candidates).ok_or_else(|| nothing_to_pick("seeded", candidates))?;
        let drawn = softmax.at(candidates.logits(), self.random.fraction());
        Ok(drawn.map(|index| candidates.ids()[index]))
    }
}

struct Mirostat {
    tau: f64,
    eta: f64,
    /// Maximum surprise of a candidate, in bits.
    mu: f64,
    random: Random,
}

impl Stage for Mirostat {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        let all = Softmax::of(candidates).ok_or_else(|| nothing_to_pick("mirostat", candidates))?;
        // The best candidate stays, however low the limit.
        candidates.keep_from(all.logit_of((-self.mu * LN_2).exp()).min(all.max));
        let left = Softmax::of(candidates).ok_or_else(|| nothing_to_pick("mirostat", candidates))?;
        let Some(drawn) = left.at(candidates.logits(), self.random.fraction()) else { return Ok(None) };
        // As in the paper, a pick's surprise is measured by its probability before the limit.
        let surprise = all.surprise(candidates.logits()[drawn]) / LN_2;
        self.mu -= self.eta * (surprise - self.tau);
        Ok(Some(candidates.ids()[drawn]))
    }
}

fn nothing_to_pick(stage: &str, candidates: &Candidates<'_>) -> Error {
    if candidates.is_empty() {
        return Error::invalid(format!("{stage}: no candidate is left"))
            .help("loosen the stages before it, or what constrains the output");
    }
    Error::invalid(format!("{stage}: every candidate has logit -inf or nan, of {}", candidates.len()))
        .help("check the model's weights, and what constrains the output")
}
