//! Linear layers and embeddings, dense or quantized, with adapters on top where a sequence asks for one.
//!
//! A model file names its layers and applies them; that a checkpoint stores one in 4 bits, or that a sequence of the batch
//! runs with a fine-tune, is settled here.

use candle_core::Tensor;
use std::sync::Arc;

use super::{Loader, Step, backend::Matrix, loader::LayerId};
use crate::{Result, weights::RawTensor};

/// `x · Wᵀ + b`, plus the low-rank changes of the sequences that use an adapter.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Arc<Matrix>,
    bias: Option<Tensor>,
    id: LayerId,
}

impl Linear {
    pub(super) fn new(weight: Arc<Matrix>, bias: Option<Tensor>, id: LayerId) -> Self {
        Self { weight, bias, id }
    }

    pub(super) fn id(&self) -> LayerId {
        self.id
    }

    /// Applies the layer to each row of `x`, of shape `[rows, inputs]`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let out = step.ops().linear(x, &self.weight, self.bias.as_ref())?;
        step.adapt(self.id, x, out)
    }
}

/// A table of vectors, one for each token.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Arc<Matrix>,
    /// As it lies in the checkpoint, without what was merged into it.
    raw: RawTensor,
    id: LayerId,
}

impl Embedding {
    pub(super) fn new(weight: Arc<Matrix>, raw: RawTensor, id: LayerId) -> Self {
        Self { weight, raw, id }
    }

    /// The vectors of the step's tokens, of shape `[tokens, width]`.
    pub fn forward(&self, step: &Step<'_>) -> Result<Tensor> {
        step.adapt_table(self.id, step.ops().embed(&self.weight, step.tokens())?)
    }

    /// The output layer `name` that shares this table, as in models with tied embeddings. An adapter for `name` changes the
    /// output alone.
    pub fn tied(&self, loader: &Loader<'_>, name: &str) -> Linear {
        loader.at(name).tied(self.id, &self.raw, &self.weight)
    }
}
