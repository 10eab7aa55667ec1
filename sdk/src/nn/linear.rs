//! Linear layers and embeddings, dense or quantized, with adapters for the sequences that use them.
//!
//! A model file names its layers and applies them; quantized weights and per-sequence adapters are handled here.

use candle_core::Tensor;
use std::sync::Arc;

use super::{
    adapters::registry::LayerId,
    backend::Matrix,
    ops::Ops,
    step::{Rows, Step},
};
use crate::{Error, Result, weights::RawTensor};

/// `x · Wᵀ + b`, plus the low-rank terms of sequences that use an adapter.
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

    /// Weight and bias, without adapters.
    pub(super) fn parts(&self) -> (&Matrix, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }

    /// Applies the layer to the step's rows; `x` has the shape `[rows, inputs]`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.adapt(self.id, x, self.plain(x, step)?)
    }

    /// `residual + layer(x)`, the end of each half of a block, in one kernel if the backend has it.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        if step.is_adapted() {
            return step.ops().add(residual, &self.forward(x, step)?);
        }
        step.ops().add_linear(residual, x, self.parts())
    }

    /// Applies layers that share an input, which is faster than one by one. For queries, keys and values use
    /// [`Qkv`](super::Qkv), for gated blocks [`GatedMlp`](super::GatedMlp).
    pub fn forward_all<const N: usize>(layers: [&Self; N], x: &Tensor, step: &Step<'_>) -> Result<[Tensor; N]> {
        let outs = step.ops().linears(x, &layers.map(Self::parts))?;
        let outs = layers.iter().zip(outs).map(|(layer, out)| step.adapt(layer.id, x, out));
        let outs: Vec<Tensor> = outs.collect::<Result<_>>()?;
        outs.try_into().map_err(|_| Error::invalid("a layer has no output"))
    }

    /// Applies the layer to rows gathered from the step's, which `rows` describes: their adapters, and their sequences, whose
    /// rows may be computed otherwise if they are many.
    pub fn forward_rows(&self, x: &Tensor, rows: &Rows, step: &Step<'_>) -> Result<Tensor> {
        self.forward_rows_by(None, x, rows, step)
    }

    /// [`Self::forward_rows`], with the product computed by `host` if given; adapters run on the model's device.
    pub(super) fn forward_rows_by(
        &self,
        host: Option<&Ops>,
        x: &Tensor,
        rows: &Rows,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let (layer, stretches) = (self.parts(), rows.stretches());
        let out = match host {
            Some(host) => host.linear_of(&x.to_device(host.device())?, layer, &stretches)?.to_device(x.device())?,
            None => step.ops().linear_of(x, layer, &stretches)?,
        };
        step.adapt_rows(self.id, x, out, rows)
    }

    /// Replaces the bias; `None` removes it.
    #[must_use]
    pub fn with_bias(self, bias: Option<Tensor>) -> Self {
        Self { bias, ..self }
    }

    /// Index of the weight's device in the model.
    pub(super) fn place(&self) -> usize {
        self.weight.place
    }

    fn plain(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().linear(x, self.parts())
    }
}

/// One vector per token of the vocabulary.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Arc<Matrix>,
    /// As in the checkpoint, without merged adapters.
    raw: RawTensor,
    id: LayerId,
}

impl Embedding {
    pub(super) fn new(weight: Arc<Matrix>, raw: RawTensor, id: LayerId) -> Self {
        Self { weight, raw, id }
    }

    /// Number of vectors.
    pub fn rows(&self) -> usize {
        self.weight.outputs()
    }

    /// Values per vector.
    pub fn width(&self) -> usize {
        self.weight.inputs()
    }

    /// Returns the vectors of the step's tokens, of shape `[tokens, width]`.
    pub fn forward(&self, step: &Step<'_>) -> Result<Tensor> {
        step.adapt_table(self.id, step.ops().embed(&self.weight, &step.pass)?)
    }

    /// The vector of one token, as in the checkpoint, without adapters.
    pub fn vector(&self, token: u32) -> Result<Vec<f32>> {
        let row = token as usize;
        pensieve_kernels::dequantize(&self.raw.rows(row..row + 1)?)
    }

    /// The id for adapters, the tensor as in the checkpoint, and the weight.
    pub(super) fn parts(&self) -> (LayerId, &RawTensor, &Arc<Matrix>) {
        (self.id, &self.raw, &self.weight)
    }
}
