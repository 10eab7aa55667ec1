//! Norms over the width of an activation.

use candle_core::Tensor;

use crate::{
    Result,
    nn::{Loader, Step},
};

/// Root-mean-square norm (arXiv 1910.07467).
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Loads `name.weight`, of `width` values.
    pub fn load(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Self { weight: loader.at(name).vector("weight", width)?, eps: eps as f32 })
    }

    /// A norm whose weight the model file made or took from another tensor.
    pub fn of(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps: eps as f32 }
    }

    /// A norm without weights: `x / √(mean x² + eps)`.
    pub fn without_weight(loader: &Loader<'_>, width: usize, eps: f64) -> Result<Self> {
        Ok(Self::of(Tensor::from_vec(vec![1.0_f32; width], width, loader.device())?, eps))
    }

    /// A norm without weights that scales vectors of `width` values to `length`: `length · x / √(Σ x² + eps)`.
    pub fn to_length(loader: &Loader<'_>, width: usize, length: f64, eps: f64) -> Result<Self> {
        let weight = (length / (width as f64).sqrt()) as f32;
        let weight = Tensor::from_vec(vec![weight; width], width, loader.device())?;
        Ok(Self { weight, eps: (eps / width as f64) as f32 })
    }

    /// Adds `offset` to the weights, for models that store them as differences from one (Gemma).
    pub fn plus(self, offset: f64) -> Result<Self> {
        Ok(Self { weight: (self.weight + offset)?, ..self })
    }

    /// Normalizes each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().rms_norm(x, &self.weight, self.eps)
    }

    /// `residual + norm(x)`, for blocks that normalize their output.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().add(residual, &self.forward(x, step)?)
    }

    /// [`Self::forward_heads`] for queries and keys, in one kernel if the backend has it.
    pub fn forward_both(norms: [&Self; 2], [q, k]: [&Tensor; 2], step: &Step<'_>) -> Result<[Tensor; 2]> {
        let [q_norm, k_norm] = norms;
        // Norms may be as wide as all heads together.
        if q_norm.eps != k_norm.eps || q_norm.weight.dims() != k_norm.weight.dims() {
            return Ok([q_norm.forward_heads(q, step)?, k_norm.forward_heads(k, step)?]);
        }
        let (q, k) = step.ops().norm_heads([q, k], [&q_norm.weight, &k_norm.weight], q_norm.eps)?;
        Ok([q, k])
    }

    /// Normalizes each head of `x`, of shape `[tokens, heads · width]`, as norms of queries and keys do.
    pub fn forward_heads(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let (tokens, all) = x.dims2()?;
        let width = self.weight.dim(0)?;
        let heads = x.reshape((tokens * (all / width), width))?;
        Ok(step.ops().rms_norm(&heads, &self.weight, self.eps)?.reshape((tokens, all))?)
    }
}

/// Layer norm (arXiv 1607.06450).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// Loads `name.weight` and, if present, `name.bias`, of `width` values each. Checkpoints converted from TensorFlow call
    /// them `gamma` and `beta`.
    pub fn load(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<Self> {
        let loader = loader.at(name);
        let [weight, bias] = if loader.has("gamma") { ["gamma", "beta"] } else { ["weight", "bias"] };
        let weight = loader.vector(weight, width)?;
        let bias = if loader.has(bias) { loader.vector(bias, width)? } else { weight.zeros_like()? };
        Ok(Self { weight, bias, eps: eps as f32 })
    }

    /// A norm whose weight and bias the model file made or took from other tensors.
    pub fn of(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self { weight, bias, eps: eps as f32 }
    }

    /// Normalizes each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().layer_norm(x, &self.weight, &self.bias, self.eps)
    }
}
