//! Dense feed-forward blocks, gated and plain.

use candle_core::Tensor;

use crate::{
    Result,
    nn::{Activation, ExpertNames, Linear, Loader, Step},
};

/// `down(act(gate(x)) · up(x))` (arXiv 2002.05202).
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act: Activation,
}

impl GatedMlp {
    /// Loads `gate_proj`, `up_proj` (or both stacked as `gate_up_proj`) and `down_proj`, with biases if the checkpoint
    /// has them.
    pub fn load(loader: &Loader<'_>, width: usize, inner: usize, act: Activation) -> Result<Self> {
        Self::load_named(loader, ExpertNames::default(), width, inner, act)
    }

    /// [`Self::load`] for checkpoints with other layer names.
    pub fn load_named(
        loader: &Loader<'_>,
        names: ExpertNames,
        width: usize,
        inner: usize,
        act: Activation,
    ) -> Result<Self> {
        let parts = [(names.gate, inner), (names.up, inner)];
        let [gate_proj, up_proj] = loader.stacked(names.gate_up, width, parts)?;
        Ok(Self { gate_proj, up_proj, down_proj: loader.linear(names.down, inner, width)?, act })
    }

    /// Applies the block to each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.down_proj.forward(&self.inner(x, step)?, step)
    }

    /// `residual + block(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.down_proj.add_to(residual, &self.inner(x, step)?, step)
    }

    fn inner(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        if step.is_adapted() {
            let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], x, step)?;
            return step.ops().gate(&gate, &up, self.act);
        }
        step.ops().gated(x, [self.gate_proj.parts(), self.up_proj.parts()], self.act)
    }
}

/// `fc2(act(fc1(x)))`.
#[derive(Clone, Debug)]
pub struct Mlp {
    fc1: Linear,
    fc2: Linear,
    act: Activation,
}

impl Mlp {
    /// Loads `fc1` and `fc2`, with biases if the checkpoint has them.
    pub fn load(loader: &Loader<'_>, width: usize, inner: usize, act: Activation) -> Result<Self> {
        Ok(Self { fc1: loader.linear("fc1", width, inner)?, fc2: loader.linear("fc2", inner, width)?, act })
    }

    /// Applies the block to each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.fc2.forward(&self.inner(x, step)?, step)
    }

    /// `residual + block(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.fc2.add_to(residual, &self.inner(x, step)?, step)
    }

    fn inner(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().activate(&self.fc1.forward(x, step)?, self.act)
    }
}
