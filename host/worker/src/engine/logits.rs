//! Raw logits: checks a row for NaN, finds its best token, and computes log-probabilities. One pass serves all three,
//! as a vocabulary has 128k entries and a step has many rows.

use std::{ops::Range, sync::Arc};

use pensieve_protocol::job::TokenLogprobs;

/// The model's output for one token to pick.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    Logits(LogitsRow<'a>),
    /// The first token with the highest logit, found by the model; `None` if a logit is NaN.
    Best(Option<u32>),
}

/// A row of the logits of a step.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRow<'a> {
    step: &'a Arc<Vec<f32>>,
    start: usize,
    width: usize,
}

/// A row for another thread, which copies the values it changes.
#[derive(Debug)]
pub struct SharedRow {
    step: Arc<Vec<f32>>,
    range: Range<usize>,
}

impl<'a> LogitsRow<'a> {
    /// Splits a step's logits into rows.
    pub fn all(step: &'a Arc<Vec<f32>>, width: usize) -> impl Iterator<Item = Self> {
        (0..step.len() / width).map(move |row| Self { step, start: row * width, width })
    }

    pub fn values(self) -> &'a [f32] {
        &self.step[self.start..self.start + self.width]
    }

    /// Shares the row with another thread.
    pub fn share(self) -> SharedRow {
        SharedRow { step: self.step.clone(), range: self.start..self.start + self.width }
    }
}

impl SharedRow {
    pub fn values(&self) -> &[f32] {
        &self.step[self.range.clone()]
    }
}

/// Values folded at once: a few vector registers.
const LANES: usize = 16;

/// Returns the highest logit of a row. `None` if the row has NaN or positive infinity, or nothing above negative
/// infinity: the model has failed then, and any pick would be noise.
pub(super) fn highest(row: &[f32]) -> Option<f32> {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut sum = [0.0_f32; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            best[lane] = best[lane].max(chunk[lane]);
            // Zero times a finite value is zero, otherwise NaN, so one test at the end catches them all.
            sum[lane] += if chunk[lane] == f32::NEG_INFINITY { 0.0 } else { chunk[lane] * 0.0 };
        }
    }
    for value in rest {
        best[0] = best[0].max(*value);
        sum[0] += if *value == f32::NEG_INFINITY { 0.0 } else { *value * 0.0 };
    }
    let top = best.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let sound = sum.iter().all(|sum| *sum == 0.0);
    (sound && top > f32::NEG_INFINITY).then_some(top)
}

/// Returns the first token with the highest logit.
pub(super) fn leader(row: &[f32], top: f32) -> u32 {
    row.iter().position(|logit| *logit == top).unwrap_or(0) as u32
}

/// Returns the log-probability of a token, and those of the `count` most likely ones.
pub(super) fn logprobs(row: &[f32], top: f32, token: u32, count: usize) -> TokenLogprobs {
    let sum: f64 = row.iter().map(|logit| f64::from(*logit - top).exp()).sum();
    let total = f64::from(top) + sum.ln();
    let of = |logit: f32| (f64::from(logit) - total) as f32;
    let likeliest = likeliest(row, count).into_iter().map(|(token, logit)| (token, of(logit))).collect();
    TokenLogprobs { logprob: row.get(token as usize).map_or(f32::NEG_INFINITY, |logit| of(*logit)), top: likeliest }
}

/// Returns the highest logits; lower ids first among equals.
fn likeliest(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (token, &logit) in (0..).zip(row) {
        if best.len() == count && best.last().is_none_or(|(_, lowest)| logit <= *lowest) {
            continue;
        }
        let index = best.partition_point(|(_, other)| *other >= logit);
        best.insert(index, (token, logit));
        best.truncate(count);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_row(random: &mut fastrand::Rng, length: usize) -> Vec<f32> {
        std::iter::repeat_with(|| random.f32() * 20.0 - 10.0).take(length).collect()
    }

    #[test]
    fn finds_the_highest_logit_wherever_it_stands() {
        let mut random = fastrand::Rng::with_seed(1);
        for length in 1..70 {
            let mut row = random_row(&mut random, length);
            let index = random.usize(..length);
            row[index] = 11.0;
            assert_eq!(highest(&row), Some(11.0));
            assert_eq!(leader(&row, 11.0), index as u32);
        }
    }

    #[test]
    fn a_row_with_anything_but_numbers_has_no_highest_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY] {
            for index in 0..40 {
                let mut row = vec![1.0; 40];
                row[index] = bad;
                assert_eq!(highest(&row), None, "{bad} at {index}");
            }
        }
        assert_eq!(highest(&[f32::NEG_INFINITY; 20]), None);
        assert_eq!(highest(&[]), None);
    }

    #[test]
    fn forbidden_tokens_are_sound() {
        let mut row = vec![f32::NEG_INFINITY; 40];
        row[33] = -1e30;
        assert_eq!(highest(&row), Some(-1e30));
    }

    #[test]
    fn of_equal_logits_the_first_leads() {
        assert_eq!(leader(&[0.0, 2.0, 2.0], 2.0), 1);
        assert_eq!(likeliest(&[1.0, 2.0, 2.0, 1.0], 3), [(1, 2.0), (2, 2.0), (0, 1.0)]);
    }

    #[test]
    fn logprobs_are_those_of_the_softmax() {
        let mut random = fastrand::Rng::with_seed(2);
        let row = random_row(&mut random, 300);
        let exact: Vec<f64> = {
            let total: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            row.iter().map(|logit| (f64::from(*logit).exp() / total).ln()).collect()
        };
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let found = logprobs(&row, highest(&row).unwrap(), 17, 5);
        assert!((f64::from(found.logprob) - exact[17]).abs() < 1e-5);
        assert_eq!(found.top.len(), 5);
        for ((token, logprob), index) in found.top.iter().zip(order) {
            assert_eq!(*token as usize, index);
            assert!((f64::from(*logprob) - exact[index]).abs() < 1e-5);
        }
        assert!(logprobs(&row, 10.0, 17, 0).top.is_empty());
    }
}
