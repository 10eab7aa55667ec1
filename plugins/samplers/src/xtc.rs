//! `xtc`, Exclude Top Choices: now and then takes the obvious continuations away.
//!
//! With the chance `probability`, all candidates at least as probable as `threshold` are removed except the least
//! probable of them, so that what remains on top is still a sensible choice (p-e-w, pull request 6335 of
//! text-generation-webui, 2024). Where only one reaches the threshold nothing changes, hence a threshold above 0.5 turns
//! the stage off. The coin is tossed for every token, needed or not, so that later tokens do not depend on it.

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage, rank};

use crate::Sequence;
use crate::parameters::Parameters;
use crate::random::Random;
use crate::softmax::Softmax;

/// Makes the stage from `threshold` and `probability`.
pub(crate) fn xtc(parameters: &mut Parameters, sequence: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Xtc {
        threshold: parameters.number("threshold", 0.1, 0.0..=1.0)?,
        probability: parameters.number("probability", 0.5, 0.0..=1.0)?,
        random: Random::new("xtc", sequence.seed),
    }))
}

struct Xtc {
    threshold: f64,
    probability: f64,
    random: Random,
}

impl Stage for Xtc {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        if self.random.fraction() >= self.probability {
            return Ok(None);
        }
        let Some(softmax) = Softmax::of(candidates) else { return Ok(None) };
        let floor = softmax.logit_of(self.threshold);
        let likely = candidates.ids().iter().zip(candidates.logits()).filter(|&(_, &logit)| logit >= floor);
        if let Some(least) = likely.map(|(&id, &logit)| rank(id, logit)).min() {
            candidates.retain(|id, logit| rank(id, logit) <= least);
        }
        Ok(None)
    }
}
