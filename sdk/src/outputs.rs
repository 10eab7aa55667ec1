//! The output buffers of a step: logits, candidates or hidden rows, as requested by its spans.

use crate::{Batch, Error, Output, Result, Span, VACANT};

/// The rows that a step must fill; those of each kind are in the order of the spans that want them.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// Rows of logits.
    pub logits: &'a mut [f32],
    /// Rows of candidates.
    pub candidates: CandidateRows<'a>,
    /// Hidden rows.
    pub hidden: &'a mut [f32],
    /// Logits in a row.
    pub(crate) vocabulary: usize,
}

/// Rows of candidates, [`Batch::top`] in each.
#[derive(Debug)]
pub struct CandidateRows<'a> {
    /// Their ids, highest logit first, ties by lower id; [`VACANT`] if there are too few.
    pub ids: &'a mut [u32],
    /// Their logits; −∞ if there are too few.
    pub scores: &'a mut [f32],
    /// For each row the log-sum-exp over all tokens, and over those that its mask allows.
    pub totals: &'a mut [f32],
}

impl<'a> Outputs<'a> {
    /// Buffers for rows of `vocabulary` logits, candidates and hidden rows, each as long as its rows need.
    pub fn new(logits: &'a mut [f32], candidates: CandidateRows<'a>, hidden: &'a mut [f32], vocabulary: usize) -> Self {
        Self { logits, candidates, hidden, vocabulary }
    }

    /// Logits in a row.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Fills the rows from the logits that `forward` computes for every wanted row.
    pub fn fill_from_logits(
        &mut self,
        batch: &Batch<'_>,
        forward: impl FnOnce(&Batch<'_>, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        if batch.spans.iter().all(|span| span.output == Output::Logits) {
            return forward(batch, self.logits);
        }
        if batch.spans.iter().any(|span| span.output == Output::Hidden && span.rows() > 0) {
            return Err(Error::unsupported("this model gives no hidden rows"));
        }
        let rows: usize = batch.spans.iter().map(Span::rows).sum();
        let mut logits = vec![f32::NAN; rows * self.vocabulary];
        forward(batch, &mut logits)?;
        self.take_logits(batch, &logits)
    }

    /// Takes the best candidate of each wanted row: its id, its logit, and the row's log-sum-exp.
    #[cfg(feature = "nn")]
    pub(crate) fn take_best(&mut self, best: &[[f32; 3]]) -> Result<()> {
        let CandidateRows { ids, scores, totals } = &mut self.candidates;
        if (ids.len(), totals.len()) != (best.len(), 2 * best.len()) {
            return Err(Error::invalid(format!(
                "{} rows of one candidate do not fill {} places",
                best.len(),
                ids.len()
            )));
        }
        for (row, [id, score, total]) in best.iter().enumerate() {
            ids[row] = if *id < self.vocabulary as f32 { *id as u32 } else { VACANT };
            scores[row] = *score;
            totals[2 * row..2 * row + 2].fill(*total);
        }
        Ok(())
    }

    /// Copies rows of logits, one for each wanted row other than hidden ones, to their outputs.
    pub fn take_logits(&mut self, batch: &Batch<'_>, logits: &[f32]) -> Result<()> {
        let (mut rows, mut plain, mut chosen) = (logits.chunks_exact(self.vocabulary), 0, 0);
        for span in batch.spans.iter().filter(|span| span.output != Output::Hidden) {
            let words = self.vocabulary.div_ceil(32);
            for place in 0..span.rows() {
                let row = rows.next().ok_or_else(|| Error::invalid("the model made too few rows of logits"))?;
                if span.output == Output::Logits {
                    self.logits[plain * self.vocabulary..][..self.vocabulary].copy_from_slice(row);
                    plain += 1;
                } else {
                    let mask = if span.mask.is_empty() { &[][..] } else { &span.mask[place * words..][..words] };
                    self.candidates.choose(chosen, batch.top, row, mask);
                    chosen += 1;
                }
            }
        }
        Ok(())
    }
}

impl CandidateRows<'_> {
    /// Fills all rows from words as a kernel writes them: ids, the bits of scores, and those of totals.
    #[cfg(any(all(test, feature = "nn"), all(target_os = "macos", feature = "nn")))]
    pub(crate) fn take(&mut self, words: &[u32]) -> Result<()> {
        let (ids, scores, totals) = (self.ids.len(), self.scores.len(), self.totals.len());
        if words.len() != ids + scores + totals {
            let message = format!("{} words do not fill {ids} ids, {scores} scores and {totals} totals", words.len());
            return Err(Error::invalid(message));
        }
        self.ids.copy_from_slice(&words[..ids]);
        let values = self.scores.iter_mut().chain(self.totals.iter_mut());
        values.zip(&words[ids..]).for_each(|(value, word)| *value = f32::from_bits(*word));
        Ok(())
    }

    /// Fills a row with the best candidates of a row of logits.
    pub(crate) fn choose(&mut self, row: usize, top: usize, logits: &[f32], mask: &[u32]) {
        let allowed = |token: usize| mask.is_empty() || mask[token / 32] >> (token % 32) & 1 == 1;
        let best_first = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let tokens = (0..logits.len()).filter(|&token| allowed(token)).map(|token| token as u32);
        let highest = highest(logits);
        let total = log_sum_exp(logits, highest);
        let masked = if mask.is_empty() {
            total
        } else {
            let allowed: Vec<f32> = tokens.clone().map(|token| logits[token as usize]).collect();
            log_sum_exp(&allowed, self::highest(&allowed))
        };
        let best: Vec<u32> = if top == 1 && mask.is_empty() && !total.is_nan() {
            // Greedy decoding does this in every step. A NaN would be the best in the order that all others have.
            logits.iter().position(|logit| *logit == highest).into_iter().map(|token| token as u32).collect()
        } else if top == 1 {
            tokens.min_by(best_first).into_iter().collect()
        } else {
            let mut best: Vec<u32> = tokens.collect();
            if best.len() > top {
                best.select_nth_unstable_by(top, best_first);
                best.truncate(top);
            }
            best.sort_unstable_by(best_first);
            best
        };
        let (ids, scores) = (&mut self.ids[row * top..][..top], &mut self.scores[row * top..][..top]);
        for (place, (id, score)) in ids.iter_mut().zip(scores).enumerate() {
            *id = best.get(place).copied().unwrap_or(VACANT);
            *score = best.get(place).map_or(f32::NEG_INFINITY, |&token| logits[token as usize]);
        }
        self.totals[2 * row] = total;
        self.totals[2 * row + 1] = masked;
    }
}

/// Values folded at once, so that the compiler can use vectors.
const LANES: usize = 16;

fn highest(logits: &[f32]) -> f32 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max)
}

/// Logarithm of the sum of all exponentials, of which `highest` is the largest; NaN if a logit is.
fn log_sum_exp(logits: &[f32], highest: f32) -> f32 {
    let base = if highest == f32::NEG_INFINITY { 0.0 } else { highest };
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane += exp(logit - base);
        }
    }
    base + lanes.into_iter().chain(rest.iter().map(|logit| exp(logit - base))).sum::<f32>().ln()
}

/// `exp(x)` for x up to 0, to a relative error of 2e-7, and 0 below −87. Unlike the library's, it can be computed for several values
/// at once.
fn exp(x: f32) -> f32 {
    // Adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let twos = x * std::f32::consts::LOG2_E + ROUND;
    // ln 2 in two parts, the first with few enough bits for an exact product.
    let whole = twos - ROUND;
    let rest = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let coefficients = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = coefficients.into_iter().fold(1.0 / 5040.0, |power, coefficient| power * rest + coefficient);
    let scale = f32::from_bits(twos.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { power * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best token of a row, its logit and the row's total.
    fn best(logits: &[f32]) -> (u32, f32, f32) {
        let (mut ids, mut scores, mut totals) = ([7], [7.0], [7.0; 2]);
        let mut rows = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
        rows.choose(0, 1, logits, &[]);
        assert_eq!(totals[0].to_bits(), totals[1].to_bits());
        (ids[0], scores[0], totals[0])
    }

    #[test]
    fn greedy_rows_have_the_first_of_the_highest_and_their_total() {
        for width in [1, 15, 16, 33, 1000] {
            let mut row: Vec<f32> = (0..width).map(|at| (at as f32 * 0.37).sin() * 30.0).collect();
            for place in [0, width / 2] {
                row[place] = 31.0;
                row[width - 1] = 31.0;
                let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - 31.0).exp()).sum();
                let (id, score, total) = best(&row);
                assert_eq!((id, score), (row.iter().position(|logit| *logit == 31.0).unwrap() as u32, 31.0));
                assert!((f64::from(total) - 31.0 - sum.ln()).abs() < 4e-6, "{total} for {width}");
            }
        }
    }

    #[test]
    fn greedy_rows_of_what_is_no_number_show_it() {
        let infinity = f32::INFINITY;
        assert_eq!(best(&[-infinity; 20]), (0, -infinity, -infinity));
        assert_eq!(best(&[-infinity, -300.0, -infinity]), (1, -300.0, -300.0));
        for row in [[1.0, f32::NAN, 2.0], [f32::NAN; 3], [0.0, infinity, 0.0]] {
            assert!(best(&row).2.is_nan(), "{row:?}");
        }
    }

    #[test]
    fn a_mask_has_a_total_of_its_own() {
        let row: Vec<f32> = (0..70).map(|at| (at as f32 * 0.37).sin() * 5.0).collect();
        let (mut ids, mut scores, mut totals) = ([7; 2], [7.0; 2], [7.0; 4]);
        let mut rows = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
        rows.choose(0, 1, &row, &[1 << 3 | 1 << 9, 0, 1 << 1]);
        rows.choose(1, 1, &row, &[0, 0, 0]);
        let sum: f64 = [3, 9, 65].map(|token: usize| f64::from(row[token]).exp()).iter().sum();
        assert!((f64::from(totals[1]) - sum.ln()).abs() < 2e-6 && totals[0] > totals[1], "{totals:?}");
        assert_eq!((ids, scores[0], totals[3]), ([3, VACANT], row[3], f32::NEG_INFINITY));
    }

    #[test]
    fn exponentials_are_those_of_the_library() {
        for x in (0..=8700).map(|at| -0.01 * at as f32) {
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) - expected).abs() <= 3e-7 * expected, "{x}");
        }
        assert_eq!([exp(0.0), exp(-88.0), exp(-f32::INFINITY)], [1.0, 0.0, 0.0]);
    }
}
