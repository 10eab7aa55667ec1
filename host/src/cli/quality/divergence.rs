//! Divergence of a model's predictions from a reference's, over many positions.

/// Accumulates over the positions of a text.
#[derive(Debug, Default)]
pub(super) struct Divergence {
    /// Kullback-Leibler divergence at each position, in nats.
    each: Vec<f64>,
    equal: u64,
    /// Negative log-likelihood of the actual next tokens under the model, summed.
    nll: f64,
    /// The same under the reference.
    reference_nll: f64,
}

impl Divergence {
    /// Adds one position: both rows of logits, and the token that actually follows.
    pub(super) fn add(&mut self, exact: &[f32], model: &[f32], next: u32) -> Result<(), String> {
        let wrong = |whose: &str| format!("{whose} computed NaN or infinite logits");
        let exact = Row::of(exact).ok_or_else(|| wrong("the reference"))?;
        let model = Row::of(model).ok_or_else(|| wrong("the model"))?;
        let next = next as usize;
        if next >= exact.logits.len().min(model.logits.len()) {
            return Err(format!("token {next} is beyond the vocabulary"));
        }
        let is_ruled_out = |(exact_logit, model_logit): (&f32, &f32)| {
            *model_logit == f32::NEG_INFINITY && exact.log_probability(*exact_logit).exp() > 0.0
        };
        if model.logits[next] == f32::NEG_INFINITY || exact.logits.iter().zip(model.logits).any(is_ruled_out) {
            return Err("the model gives no probability to a token that the text or the reference has".into());
        }
        let pairs = exact.logits.iter().zip(model.logits);
        let divergence: f64 = pairs
            .map(|(exact_logit, model_logit)| {
                let (exact, model) = (exact.log_probability(*exact_logit), model.log_probability(*model_logit));
                // Tokens without probability in the reference contribute nothing.
                if exact.exp() > 0.0 { exact.exp() * (exact - model) } else { 0.0 }
            })
            .sum();
        // Rounding can make it slightly negative.
        self.each.push(divergence.max(0.0));
        self.equal += u64::from(exact.best == model.best);
        self.nll -= model.log_probability(model.logits[next]);
        self.reference_nll -= exact.log_probability(exact.logits[next]);
        Ok(())
    }

    pub(super) fn positions(&self) -> u64 {
        self.each.len() as u64
    }

    pub(super) fn perplexity(&self) -> f64 {
        (self.nll / self.count()).exp()
    }

    pub(super) fn reference_perplexity(&self) -> f64 {
        (self.reference_nll / self.count()).exp()
    }

    pub(super) fn mean(&self) -> f64 {
        self.each.iter().sum::<f64>() / self.count()
    }

    /// Nearest-rank quantile of the divergence over positions.
    pub(super) fn quantile(&self, fraction: f64) -> f64 {
        let mut sorted = self.each.clone();
        sorted.sort_by(f64::total_cmp);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a length is an index"
        )]
        let index = (sorted.len().saturating_sub(1) as f64 * fraction).round() as usize;
        sorted.get(index).copied().unwrap_or(0.0)
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

/// The logits of one position.
struct Row<'a> {
    logits: &'a [f32],
    best: usize,
    log_sum_exp: f64,
}

impl<'a> Row<'a> {
    /// `None` for logits that are NaN, +∞, or all -∞.
    fn of(logits: &'a [f32]) -> Option<Self> {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return None;
        }
        let mut best = 0;
        for (index, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = index;
            }
        }
        let top = f64::from(*logits.get(best)?);
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - top).exp()).sum();
        top.is_finite().then_some(Self { logits, best, log_sum_exp: top + sum.ln() })
    }

    fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit) - self.log_sum_exp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_divergence_and_perplexity() {
        // Probabilities of 1/2, 1/4, 1/4 and of 1/4, 1/2, 1/4.
        let (exact, model) = ([4.0_f32, 2.0, 2.0].map(f32::ln), [2.0_f32, 4.0, 2.0].map(f32::ln));
        let mut divergence = Divergence::default();
        divergence.add(&exact, &model, 0).unwrap();
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
    fn impossible_tokens_add_nothing_and_nan_is_an_error() {
        let mut divergence = Divergence::default();
        divergence.add(&[0.0, f32::NEG_INFINITY], &[0.0, -5.0], 0).unwrap();
        assert!(divergence.mean() < 0.01 && divergence.mean().is_finite());
        assert!(divergence.add(&[0.0, 1.0], &[0.0, f32::NAN], 0).unwrap_err().contains("the model computed"));
        assert!(divergence.add(&[f32::NEG_INFINITY; 2], &[0.0, 1.0], 0).is_err());
        assert!(divergence.add(&[0.0, 1.0], &[0.0, 1.0], 2).unwrap_err().contains("token 2"));
        assert_eq!(divergence.positions(), 1);
    }
}
