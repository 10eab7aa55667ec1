//! `dry`, Don't Repeat Yourself: penalizes tokens that would continue a repetition.
//!
//! If the last n tokens also occur earlier in the history, the token that followed them there would extend the
//! repetition, and loses multiplier · base^(n − allowed_length) of its logit if n ≥ allowed_length (p-e-w, pull request
//! 5677 of text-generation-webui, 2024). A repetition does not extend across a sequence breaker, such as a newline or a
//! quote. All match lengths together are the Z-function of the reversed history, so a step costs one pass over the
//! range even if the text is a single repeated token.

use std::collections::HashMap;

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage};

use crate::Sequence;
use crate::parameters::Parameters;
use crate::reweigh::window;
use crate::tally::reweigh;

/// Maximum penalty: excludes a token as well as infinity would, but leaves a choice to a chain that has nothing else.
const PENALTY_MAX: f64 = 1e6;

/// Creates the stage from `multiplier`, `base`, `allowed_length`, `sequence_breakers` (token ids) and `range` (number
/// of last tokens, −1 for all).
pub(crate) fn dry(parameters: &mut Parameters, sequence: &Sequence) -> Result<Box<dyn Stage>> {
    let mut breakers = parameters.tokens("sequence_breakers", sequence.vocabulary)?;
    breakers.sort_unstable();
    Ok(Box::new(Dry {
        multiplier: parameters.number("multiplier", 0.8, 0.0..=100.0)?,
        base: parameters.number("base", 1.75, 1.0..=100.0)?,
        allowed_length: parameters.integer("allowed_length", 2, 1..=1_000_000)? as usize,
        range: window(parameters, "range")?,
        breakers,
    }))
}

struct Dry {
    multiplier: f64,
    base: f64,
    allowed_length: usize,
    range: usize,
    /// In ascending order.
    breakers: Vec<u32>,
}

impl Stage for Dry {
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> Result<Option<u32>> {
        if self.multiplier > 0.0 {
            let start = history.tokens.len().saturating_sub(self.range);
            let lengths = self.continued_lengths(&history.tokens[start..]);
            reweigh(candidates, &lengths, |logit, &length| logit - self.penalty(length));
        }
        Ok(None)
    }
}

impl Dry {
    /// By token: length of the longest repetition that it would continue, if that is penalized.
    fn continued_lengths(&self, tokens: &[u32]) -> HashMap<u32, usize> {
        let breaks = |token: &u32| self.breakers.binary_search(token).is_ok();
        let mut longest = HashMap::new();
        let unbroken = tokens.iter().rev().take_while(|token| !breaks(token)).count();
        if unbroken < self.allowed_length {
            return longest;
        }
        let reversed: Vec<u32> = tokens.iter().rev().copied().collect();
        for (offset, length) in prefix_matches(&reversed).into_iter().enumerate().skip(1) {
            let length = length.min(unbroken);
            let next = reversed[offset - 1];
            if length >= self.allowed_length && !breaks(&next) {
                let entry = longest.entry(next).or_default();
                *entry = length.max(*entry);
            }
        }
        longest
    }

    fn penalty(&self, length: usize) -> f32 {
        let excess = (length - self.allowed_length).min(i32::MAX as usize) as i32;
        (self.multiplier * self.base.powi(excess)).min(PENALTY_MAX) as f32
    }
}

/// The Z-function: for every offset, how many tokens from there on match the beginning.
fn prefix_matches(tokens: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; tokens.len()];
    // The match that reaches furthest, `left..right`, mirrors the beginning and provides the answers for positions
    // inside it.
    let (mut left, mut right) = (0, 0);
    for offset in 1..tokens.len() {
        let mut length = if offset < right { lengths[offset - left].min(right - offset) } else { 0 };
        while offset + length < tokens.len() && tokens[length] == tokens[offset + length] {
            length += 1;
        }
        if offset + length > right {
            (left, right) = (offset, offset + length);
        }
        lengths[offset] = length;
    }
    lengths
}
