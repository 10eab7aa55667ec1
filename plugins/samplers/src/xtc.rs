//! `xtc`, Exclude Top Choices: occasionally removes the obvious continuations.
//!
//! With chance `probability`, all candidates at least as probable as `threshold` are removed except the least probable
//! of them, so that the top remains a sensible choice (p-e-w, pull request 6335 of text-generation-webui, 2024). If
//! only one reaches the threshold nothing changes, so a threshold above 0.5 disables the stage. The coin is tossed for
//! every token, needed or not, so that later tokens do not depend on it.

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage, rank, unrank};

use crate::Sequence;
use crate::parameters::Parameters;
use crate::random::Random;
use crate::softmax::Softmax;

/// Creates the stage from `threshold` and `probability`.
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
            let (least, lowest) = unrank(least);
            candidates.retain(|id, logit| !((logit > lowest) | ((logit == lowest) & (id < least))));
        }
        Ok(None)
    }
}
