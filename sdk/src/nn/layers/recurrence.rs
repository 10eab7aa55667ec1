//! Recurrences as layers of a model.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{
        Step,
        spec::{Inputs, Recurrence},
    },
};

impl Recurrence {
    /// The gated delta rule: what each token of `q` (`[tokens, key_heads · key_dim]`) reads once `v` (`[tokens, heads · value_dim]`)
    /// has corrected what `k` means, by a `beta` between 0 and 1, in matrices that fade by `exp(decay)` (`[tokens, heads]` each):
    /// `[tokens, heads · value_dim]`.
    pub fn delta(&self, [q, k, v]: [&Tensor; 3], decay: &Tensor, beta: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.forward(Inputs { q, k, v, decay, beta, corrects: true, skip: None }, step)
    }

    /// State space duality: the same where `beta · v` is added to what `k` means, whatever that is, and a token also reads `skip`
    /// (`[heads]`) of its own value.
    pub fn sum(
        &self,
        [q, k, v]: [&Tensor; 3],
        decay: &Tensor,
        beta: &Tensor,
        skip: &Tensor,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        self.forward(Inputs { q, k, v, decay, beta, corrects: false, skip: Some(skip) }, step)
    }

    fn forward(&self, x: Inputs<'_>, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(x, step.pass.input().tokens.len())?;
        let kept = step.pass.kv.states(self.layer, self.part)?.dim(2)?;
        if kept != self.values() {
            return Err(Error::invalid(format!("a state of {kept} values for matrices of {}", self.values())));
        }
        step.ops().recurrence(self, x, &step.pass)
    }
}
