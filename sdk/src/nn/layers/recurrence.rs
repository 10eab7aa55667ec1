//! Applying a [`Recurrence`] to a step.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{
        Step,
        spec::{Decay, Inputs, Recurrence, Update},
    },
};

impl Recurrence {
    /// The gated delta rule: `S ← exp(decay) · S`, then `S ← S + kᵀ · beta · (v − k · S)`. The output, `q · S`, and `v` are
    /// `[tokens, heads · value_dim]`, `q` and `k` are `[tokens, key_heads · key_dim]`; `beta` (0 to 1) is `[tokens, heads]`, or
    /// as wide as `v`.
    pub fn delta(
        &self,
        qkv: [&Tensor; 3],
        decay: impl Into<Decay>,
        beta: &Tensor,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        self.forward(qkv, decay.into(), Update::Delta, (Some(beta), None), step)
    }

    /// State space duality (Mamba-2), gated linear attention: `S ← exp(decay) · S + kᵀ · beta · v`, and the output is
    /// `q · S + skip · v`, with one `skip` per head or per value channel; other shapes as in [`Self::delta`].
    pub fn sum<'t>(
        &self,
        qkv: [&Tensor; 3],
        decay: impl Into<Decay>,
        beta: impl Into<Option<&'t Tensor>>,
        skip: impl Into<Option<&'t Tensor>>,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        self.forward(qkv, decay.into(), Update::Sum, (beta.into(), skip.into()), step)
    }

    /// The generalized delta rule (RWKV-7): `S ← exp(decay) · S + intoᵀ · (from · S) + kᵀ · v`, and the output is `q · S`.
    /// `from` and `into` are shaped like `k`, and `from` multiplies the state as it was before it faded.
    pub fn rank_one(
        &self,
        qkv: [&Tensor; 3],
        decay: impl Into<Decay>,
        [from, into]: [&Tensor; 2],
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        let update = Update::RankOne { from: from.clone(), into: into.clone() };
        self.forward(qkv, decay.into(), update, (None, None), step)
    }

    fn forward(
        &self,
        [q, k, v]: [&Tensor; 3],
        decay: Decay,
        update: Update,
        (beta, skip): (Option<&Tensor>, Option<&Tensor>),
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        let (q, k, v) = (q.clone(), k.clone(), v.clone());
        let x = Inputs { q, k, v, decay, beta: beta.cloned(), update, skip: skip.cloned() };
        self.check(&x, step.pass.input().tokens.len())?;
        let state = step.pass.kv.states(self.layer, self.part)?.dim(2)?;
        if state != self.values() {
            return Err(Error::invalid(format!("a state of {state} values for matrices of {}", self.values())));
        }
        step.ops().recurrence(self, &x, &step.pass)
    }
}
