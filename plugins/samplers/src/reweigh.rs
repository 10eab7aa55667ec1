//! The stages that change logits by a formula: of all tokens (`temperature`), of repeated tokens (`penalties`) or of
//! named tokens (`bias`).
//!
//! The penalties are one stage, as all three read the same counts, and clients send them together. They differ in what
//! they count: the repetition penalty considers whether a token occurred anywhere, including the prompt, as Hugging
//! Face defines it; presence and frequency are OpenAI's and count only generated tokens. `window` limits both to the
//! last tokens.

use std::collections::HashMap;

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage};

use crate::Sequence;
use crate::parameters::Parameters;
use crate::tally::{Tally, reweigh};

/// Below this temperature only the best candidate is kept: dividing by it would overflow.
const TEMPERATURE_MIN: f64 = 1e-5;

/// `temperature`: divides the logits by it; 0 keeps only the best candidate (Ackley et al. 1985).
pub(crate) fn temperature(parameters: &mut Parameters, _: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Temperature { temperature: parameters.number("temperature", 1.0, 0.0..=100.0)? }))
}

/// `penalties`: `repetition` divides the positive logits of tokens that occurred and multiplies the negative ones
/// (Keskar et al. 2019); `presence` is subtracted once and `frequency` per occurrence (OpenAI's API reference).
pub(crate) fn penalties(parameters: &mut Parameters, _: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Penalties {
        repetition: parameters.number("repetition", 1.0, 0.01..=100.0)? as f32,
        presence: parameters.number("presence", 0.0, -2.0..=2.0)? as f32,
        frequency: parameters.number("frequency", 0.0, -2.0..=2.0)? as f32,
        window: window(parameters, "window")?,
        seen: Tally::default(),
        generated: Tally::default(),
    }))
}

/// `bias`: adds to the logits of the tokens in `biases`, an object of numbers by token id (OpenAI's `logit_bias`).
pub(crate) fn bias(parameters: &mut Parameters, sequence: &Sequence) -> Result<Box<dyn Stage>> {
    Ok(Box::new(Bias { biases: parameters.biases("biases", sequence.vocabulary, -100.0..=100.0)? }))
}

/// Reads a number of last tokens; −1, the default, means all of them.
pub(crate) fn window(parameters: &mut Parameters, key: &'static str) -> Result<usize> {
    let window = parameters.integer(key, -1, -1..=u32::MAX.into())?;
    Ok(usize::try_from(window).unwrap_or(usize::MAX))
}

struct Temperature {
    temperature: f64,
}

impl Stage for Temperature {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        if self.temperature < TEMPERATURE_MIN {
            candidates.keep_best(1);
        } else if self.temperature != 1.0 {
            let sorted = candidates.is_sorted();
            let temperature = self.temperature as f32;
            for logit in candidates.parts_mut().1 {
                *logit /= temperature;
            }
            // Rounding may have made two logits equal whose ids are not in order.
            if sorted {
                candidates.sort();
            }
        }
        Ok(None)
    }
}

struct Bias {
    biases: HashMap<u32, f32>,
}

impl Stage for Bias {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        reweigh(candidates, &self.biases, |logit, &bias| logit + bias);
        Ok(None)
    }
}

struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    window: usize,
    seen: Tally,
    generated: Tally,
}

impl Stage for Penalties {
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> Result<Option<u32>> {
        let start = history.tokens.len().saturating_sub(self.window);
        if self.repetition != 1.0 {
            let counts = self.seen.update(history.tokens, start);
            let penalty = self.repetition;
            reweigh(candidates, counts, |logit, _| if logit > 0.0 { logit / penalty } else { logit * penalty });
        }
        if self.presence != 0.0 || self.frequency != 0.0 {
            let counts = self.generated.update(history.tokens, start.max(history.prompt));
            let (presence, frequency) = (self.presence, self.frequency);
            reweigh(candidates, counts, |logit, &count| logit - presence - frequency * count as f32);
        }
        Ok(None)
    }
}
