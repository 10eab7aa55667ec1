//! The frame around the blocks of nearly every decoder: embedding, final norm and output layer.
//!
//! The blocks belong to the family, and so do the arguments that it passes through them (angles, per-layer vectors).

use candle_core::Tensor;

use super::{Embedding, LayerNorm, Linear, Loader, RmsNorm, Sizes, Step};
use crate::Result;

/// Embedding, blocks, norm and output layer, as in the `…ForCausalLM` of transformers.
#[derive(Clone, Debug)]
pub struct CausalLm<B, N = RmsNorm> {
    /// Token embeddings.
    pub embed_tokens: Embedding,
    /// One block per layer.
    pub layers: Vec<B>,
    /// The norm after the last block.
    pub norm: N,
    /// Maps hidden states to logits.
    pub lm_head: Linear,
}

impl<B> CausalLm<B> {
    /// Loads `embed_tokens`, `layers` (each by `block`), `norm` and `lm_head` from the checkpoint's text model.
    pub fn load(loader: &Loader<'_>, sizes: &Sizes, block: impl Fn(&Loader<'_>, usize) -> Result<B>) -> Result<Self> {
        let norm = |model: &Loader<'_>| RmsNorm::load(model, "norm", sizes.hidden_size, sizes.rms_norm_eps);
        Self::load_with_norm(loader, sizes, norm, block)
    }
}

impl<B, N: Norm> CausalLm<B, N> {
    /// [`Self::load`] with a final norm of another kind or name.
    pub fn load_with_norm(
        loader: &Loader<'_>,
        sizes: &Sizes,
        norm: impl FnOnce(&Loader<'_>) -> Result<N>,
        block: impl Fn(&Loader<'_>, usize) -> Result<B>,
    ) -> Result<Self> {
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", sizes.vocab_size, sizes.hidden_size)?;
        Ok(Self {
            layers: model.layers(sizes.num_hidden_layers, block)?,
            norm: norm(&model)?,
            lm_head: loader.lm_head(&embed_tokens, sizes.tie_word_embeddings)?,
            embed_tokens,
        })
    }

    /// Runs the step's tokens, and the rows of images among them, through the embedding and all blocks; `block` applies
    /// one.
    pub fn hidden(
        &self,
        step: &mut Step<'_>,
        block: impl Fn(&B, &Tensor, &mut Step<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let x = step.with_items(self.embed_tokens.forward(step)?)?;
        self.hidden_from(x, step, block)
    }

    /// Runs `x` through the blocks, for families that modify the embeddings first.
    pub fn hidden_from(
        &self,
        x: Tensor,
        step: &mut Step<'_>,
        block: impl Fn(&B, &Tensor, &mut Step<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.layers.iter().try_fold(x, |x, layer| block(layer, &x, step))
    }

    /// Applies the final norm and the output layer.
    pub fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.features(hidden, step)?, step)
    }

    /// Applies the final norm.
    pub fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.norm.normalize(hidden, step)
    }
}

/// A kind of final norm.
pub trait Norm {
    /// Normalizes each row of `x`.
    fn normalize(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor>;
}

impl Norm for RmsNorm {
    fn normalize(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.forward(x, step)
    }
}

impl Norm for LayerNorm {
    fn normalize(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.forward(x, step)
    }
}
