//! A linear layer of its own for each head, such as the up-projections of latent attention.

use candle_core::Tensor;
use std::sync::Arc;

use crate::{
    Result,
    nn::{Loader, Step, backend::Matrix},
    weights::RawTensor,
};

/// Linear layers of heads, `[outputs, inputs]` each. Adapters do not find them.
#[derive(Clone, Debug)]
pub struct HeadLinear {
    weight: Arc<Matrix>,
    heads: usize,
}

impl HeadLinear {
    /// Loads `name.weight`, of shape `[heads, outputs, inputs]`.
    pub fn load(loader: &Loader<'_>, name: &str, [heads, outputs, inputs]: [usize; 3]) -> Result<Self> {
        Self::of(loader, &loader.at(name).raw("weight", &[heads, outputs, inputs])?)
    }

    /// Creates the layers from a weight `[heads, outputs, inputs]` built by the model file.
    pub fn of(loader: &Loader<'_>, weight: &RawTensor) -> Result<Self> {
        let heads = weight.shape.first().copied().unwrap_or_default();
        Ok(Self { weight: Arc::new(loader.head_matrix(weight)?), heads })
    }

    /// Applies each head's layer to its part of `x`: `[tokens, heads · inputs]` becomes `[tokens, heads · outputs]`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().head_linear(x, &self.weight, self.heads)
    }
}
