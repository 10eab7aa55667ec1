//! How far a model's predictions lie from those of a reference, over many positions.

/// Sums over positions of a text.
#[derive(Debug, Default)]
pub(super) struct Divergence {
    /// The Kullback-Leibler divergence of each position, in nats.
    each: Vec<f64>,
    equal: u64,
    /// Sums of the logarithms that the model and the reference give the tokens which follow, negated.
    surprise: f64,
    reference_surprise: f64,
}

impl Divergence {
    /// Takes in what both make of one position, and the token that follows it.
    pub(super) fn add(&mut self, exact: &[f32], found: &[f32], next: u32) -> Result<(), String> {
        let wrong = |whose: &str| format!("{whose} computed what is not a number");
        let exact = Row::of(exact).ok_or_else(|| wrong("the reference"))?;
        let found = Row::of(found).ok_or_else(|| wrong("the model"))?;
        let next = next as usize;
        if next >= exact.logits.len().min(found.logits.len()) {
            return Err(format!("token {next} is beyond the vocabulary"));
        }
        let is_ruled_out = |(exact_logit, found_logit): (&f32, &f32)| {
            *found_logit == f32::NEG_INFINITY && exact.logarithm(*exact_logit).exp() > 0.0
        };
        if found.logits[next] == f32::NEG_INFINITY || exact.logits.iter().zip(found.logits).any(is_ruled_out) {
            return Err("the model rules out what the text has, or its reference".into());
        }
        let pairs = exact.logits.iter().zip(found.logits);
        let divergence: f64 = pairs
            .map(|(exact_logit, found_logit)| {
                let (exact, found) = (exact.logarithm(*exact_logit), found.logarithm(*found_logit));
                // What the reference rules out adds nothing.
                if exact.exp() > 0.0 { exact.exp() * (exact - found) } else { 0.0 }
            })
            .sum();
        // Rounding may bring it just below zero.
        self.each.push(divergence.max(0.0));
        self.equal += u64::from(exact.best == found.best);
        self.surprise -= found.logarithm(found.logits[next]);
        self.reference_surprise -= exact.logarithm(exact.logits[next]);
        Ok(())
    }

    pub(super) fn positions(&self) -> u64 {
        self.each.len() as u64
    }

    pub(super) fn perplexity(&self) -> f64 {
        (self.surprise / self.count()).exp()
    }

    pub(super) fn reference_perplexity(&self) -> f64 {
        (self.reference_surprise / self.count()).exp()
    }

    pub(super) fn mean(&self) -> f64 {
        self.each.iter().sum::<f64>() / self.count()
    }

    /// The divergence that this part of the positions does not exceed.
    pub(super) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.each.clone();
        sorted.sort_by(f64::total_cmp);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length is a place")]
        let place = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
        sorted.get(place).copied().unwrap_or(0.0)
    }

    #[allow(clippy::cast_precision_loss, reason = "positions stay far below 2^52")]
    pub(super) fn first_choices_equal(&self) -> f64 {
        self.equal as f64 / self.count()
    }

    #[allow(clippy::cast_precision_loss, reason = "positions stay far below 2^52")]
    fn count(&self) -> f64 {
        self.each.len().max(1) as f64
    }
}

/// One prediction.
struct Row<'a> {
    logits: &'a [f32],
    best: usize,
    /// The logarithm of the sum of their exponentials.
    total: f64,
}

impl<'a> Row<'a> {
    /// None where it is no prediction.
    fn of(logits: &'a [f32]) -> Option<Self> {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return None;
        }
        let mut best = 0;
        for (place, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = place;
            }
        }
        let top = f64::from(*logits.get(best)?);
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - top).exp()).sum();
        top.is_finite().then_some(Self { logits, best, total: top + sum.ln() })
    }

    fn logarithm(&self, logit: f32) -> f64 {
        f64::from(logit) - self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_distributions() {
        // Probabilities of 1/2, 1/4, 1/4 and of 1/4, 1/2, 1/4.
        let (exact, found) = ([4.0_f32, 2.0, 2.0].map(f32::ln), [2.0_f32, 4.0, 2.0].map(f32::ln));
        let mut divergence = Divergence::default();
        divergence.add(&exact, &found, 0).unwrap();
        assert!((divergence.mean() - 0.25 * 2.0_f64.ln()).abs() < 1e-6, "{}", divergence.mean());
        assert!((divergence.perplexity() - 4.0).abs() < 1e-5);
        assert!((divergence.reference_perplexity() - 2.0).abs() < 1e-5);
        assert!(divergence.first_choices_equal() < 1e-9);
        divergence.add(&exact, &exact.map(|logit| logit + 3.0), 2).unwrap();
        assert!((divergence.mean() - 0.125 * 2.0_f64.ln()).abs() < 1e-6);
        assert!((divergence.first_choices_equal() - 0.5).abs() < 1e-9);
        assert!(divergence.quantile(0.0) < 1e-6 && divergence.quantile(1.0) > 0.1);
    }

    #[test]
    fn what_is_ruled_out_adds_nothing_and_what_is_no_number_is_an_error() {
        let mut divergence = Divergence::default();
        divergence.add(&[0.0, f32::NEG_INFINITY], &[0.0, -5.0], 0).unwrap();
        assert!(divergence.mean() < 0.01 && divergence.mean().is_finite());
        assert!(divergence.add(&[0.0, 1.0], &[0.0, f32::NAN], 0).unwrap_err().contains("the model computed"));
        assert!(divergence.add(&[f32::NEG_INFINITY; 2], &[0.0, 1.0], 0).is_err());
        assert!(divergence.add(&[0.0, 1.0], &[0.0, 1.0], 2).unwrap_err().contains("token 2"));
        assert_eq!(divergence.positions(), 1);
    }
}
