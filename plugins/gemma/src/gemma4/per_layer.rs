//! Per-layer embeddings of small Gemma 4 models: a vector per token and layer, in addition to the input embedding.

use pensieve_sdk::{
    Result,
    nn::{Activation, Embedding, Linear, Loader, RmsNorm, Sizes, Step, Tensor},
};

use super::config::{Config, PerLayerSizes};

/// Each token's vector for each layer: a separate embedding plus a projection of the input embedding.
pub struct PerLayerInputs {
    embed_tokens_per_layer: Embedding,
    per_layer_model_projection: Linear,
    per_layer_projection_norm: RmsNorm,
    pub width: usize,
    /// The token that stands for a row of an image, and the one whose vectors it has.
    slots: Option<(u32, u32)>,
}

impl PerLayerInputs {
    pub fn load(loader: &Loader<'_>, config: &Config, sizes: PerLayerSizes, slots: Option<(u32, u32)>) -> Result<Self> {
        let Sizes { hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let (PerLayerSizes { vocab_size, width }, all) = (sizes, num_hidden_layers * sizes.width);
        Ok(Self {
            embed_tokens_per_layer: loader.embedding("embed_tokens_per_layer", vocab_size, all)?,
            per_layer_model_projection: loader.linear("per_layer_model_projection", hidden_size, all)?,
            per_layer_projection_norm: RmsNorm::load(loader, "per_layer_projection_norm", width, rms_norm_eps)?,
            width,
            slots,
        })
    }

    /// Computes the vectors of all layers from the embeddings `x`, in which the rows of images stand already.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let own = (self.own(step)? * (self.width as f64).sqrt())?;
        let projected = (self.per_layer_model_projection.forward(x, step)? * (x.dim(1)? as f64).powf(-0.5))?;
        let projected = self.per_layer_projection_norm.forward_heads(&projected, step)?;
        Ok(((projected + own)? * 0.5_f64.sqrt())?)
    }

    /// The vectors that tokens have of their own; slots have that of the padding token.
    fn own(&self, step: &Step<'_>) -> Result<Tensor> {
        let table = &self.embed_tokens_per_layer;
        let own = table.forward(step)?;
        let Some((slot, pad)) = self.slots.filter(|(slot, _)| step.tokens().contains(slot)) else { return Ok(own) };
        let vector = step.ops().activation_of(table.vector(pad)?, (1, table.width()))?;
        let (tokens, last) = (step.tokens(), step.tokens().len() as u32);
        let rows = tokens.iter().zip(0..).map(|(token, row)| if *token == slot { last } else { row });
        step.ops().select_rows(&Tensor::cat(&[own, vector], 0)?, &rows.collect::<Vec<u32>>())
    }
}

/// A layer's use of its tokens' per-layer vectors.
pub struct PerLayerInput {
    per_layer_input_gate: Linear,
    per_layer_projection: Linear,
    post_per_layer_input_norm: RmsNorm,
    act: Activation,
}

impl PerLayerInput {
    pub fn load(loader: &Loader<'_>, config: &Config, width: usize) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            per_layer_input_gate: loader.linear("per_layer_input_gate", hidden_size, width)?,
            per_layer_projection: loader.linear("per_layer_projection", width, hidden_size)?,
            post_per_layer_input_norm: RmsNorm::load(loader, "post_per_layer_input_norm", hidden_size, rms_norm_eps)?,
            act: hidden_act,
        })
    }

    /// Adds to `x` the layer's gated projection of its per-layer vectors, `input`.
    pub fn add_to(&self, x: &Tensor, input: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let gated = step.ops().gate(&self.per_layer_input_gate.forward(x, step)?, input, self.act)?;
        self.post_per_layer_input_norm.add_to(x, &self.per_layer_projection.forward(&gated, step)?, step)
    }
}
