//! Mixture-of-experts blocks, and the feed-forward block of families in which only some layers have experts.

use candle_core::Tensor;

use crate::{
    Result,
    nn::{Experts, GatedMlp, Linear, Router, Step, weighed},
};

/// Routed experts, plus a shared block for all rows in families that have one.
#[derive(Clone, Debug)]
pub struct SparseMlp {
    gate: Router,
    experts: Experts,
    shared: Option<Shared>,
}

#[derive(Clone, Debug)]
struct Shared {
    mlp: GatedMlp,
    /// Multiplies the block's output by its sigmoid.
    gate: Option<Linear>,
}

impl SparseMlp {
    /// Routes each row through `gate`, without a shared block.
    pub fn new(gate: Router, experts: Experts) -> Self {
        Self { gate, experts, shared: None }
    }

    /// Adds a shared block for all rows (DeepSeek's shared experts are one wide block).
    #[must_use]
    pub fn with_shared(self, mlp: GatedMlp) -> Self {
        Self { shared: Some(Shared { mlp, gate: None }), ..self }
    }

    /// Adds a shared block whose output is multiplied by the sigmoid of `gate`, a layer with one output (Qwen2-MoE).
    #[must_use]
    pub fn with_gated_shared(self, mlp: GatedMlp, gate: Linear) -> Self {
        Self { shared: Some(Shared { mlp, gate: Some(gate) }), ..self }
    }

    /// Applies the block to each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let routed = self.experts.forward(x, &self.gate.forward(x, step)?, step)?;
        match &self.shared {
            None => Ok(routed),
            Some(Shared { mlp, gate: None }) => mlp.add_to(&routed, x, step),
            Some(Shared { mlp, gate: Some(gate) }) => {
                step.ops().add(&routed, &weighed(&mlp.forward(x, step)?, &gate.forward(x, step)?)?)
            }
        }
    }

    /// `residual + block(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().add(residual, &self.forward(x, step)?)
    }
}

/// A feed-forward block in a model where some layers are dense and others have experts.
#[derive(Clone, Debug)]
pub enum FeedForward {
    /// The same weights for all rows.
    Dense(GatedMlp),
    /// Routed experts.
    Sparse(SparseMlp),
}

impl FeedForward {
    /// Applies the block to each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x, step),
            Self::Sparse(mlp) => mlp.forward(x, step),
        }
    }

    /// `residual + block(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.add_to(residual, x, step),
            Self::Sparse(mlp) => mlp.add_to(residual, x, step),
        }
    }
}
