//! Recurrences as layers of a model.

use candle_core::Tensor;

use super::{Inputs, Recurrence};
use crate::{Result, nn::Step};

impl Recurrence {
    /// The gated delta rule: what each token of `q` (`[tokens, key_heads · key_dim]`) reads once `v` (`[tokens, heads · value_dim]`)
    /// has corrected what `k` means, by a rate between 0 and 1, in matrices that fade by `exp(decay)` (`[tokens, heads]` each):
    /// `[tokens, heads · value_dim]`.
    pub fn delta(&self, [q, k, v]: [&Tensor; 3], decay: &Tensor, rate: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.forward(Inputs { q, k, v, decay, rate: Some(rate) }, step)
    }

    /// State space duality: the same where `v` is added to what `k` means.
    pub fn sum(&self, [q, k, v]: [&Tensor; 3], decay: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.forward(Inputs { q, k, v, decay, rate: None }, step)
    }

    fn forward(&self, x: Inputs<'_>, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(x, step.tokens().len())?;
        step.ops().recurrence(self, x, &step.pass)
    }
}
