//! Applying a [`Recurrence`] to a step.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{
        Step,
        spec::{Inputs, Recurrence},
    },
};

impl Recurrence {
    /// The gated delta rule: `S ← exp(decay) · S`, then `S ← S + kᵀ · beta · (v − k · S)`; the output is `q · S`, `[tokens, heads ·
    /// value_dim]`. `q` and `k` are `[tokens, key_heads · key_dim]`, `v` is `[tokens, heads · value_dim]`, `decay` (at most 0) and
    /// `beta` (0 to 1) are `[tokens, heads]`.
    pub fn delta(&self, [q, k, v]: [&Tensor; 3], decay: &Tensor, beta: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.forward(Inputs { q, k, v, decay, beta, corrects: true, skip: None }, step)
    }

    /// State space duality (Mamba-2): `S ← exp(decay) · S + kᵀ · beta · v`, and the output is `q · S + skip · v`, with
    /// one `skip` per head; shapes as in [`Self::delta`].
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
        let state = step.pass.kv.states(self.layer, self.part)?.dim(2)?;
        if state != self.values() {
            return Err(Error::invalid(format!("a state of {state} values for matrices of {}", self.values())));
        }
        step.ops().recurrence(self, x, &step.pass)
    }
}
