//! What surrounds a decoder's blocks in nearly every family: the embedding before them, a norm and the output layer behind.
//!
//! The blocks are the family's own, and so is what it passes through them (angles, masks of its own, vectors per layer).

use candle_core::Tensor;

use super::{Embedding, LayerNorm, Linear, Loader, RmsNorm, Sizes, Step};
use crate::Result;

/// Embedding, blocks, norm and output layer, as in the `…ForCausalLM` of transformers.
#[derive(Clone, Debug)]
pub struct CausalLm<B, N = RmsNorm> {
    /// The vectors of tokens.
    pub embed_tokens: Embedding,
    /// One block for each layer.
    pub layers: Vec<B>,
    /// Behind the last block.
    pub norm: N,
    /// From hidden states to logits.
    pub lm_head: Linear,
}

impl<B> CausalLm<B> {
    /// Loads `embed_tokens`, `layers` (each by `block`), `norm` and `lm_head`, wherever the checkpoint has its text model.
    pub fn load(loader: &Loader<'_>, sizes: &Sizes, block: impl Fn(&Loader<'_>, usize) -> Result<B>) -> Result<Self> {
        let norm = |model: &Loader<'_>| RmsNorm::load(model, "norm", sizes.hidden_size, sizes.rms_norm_eps);
        Self::load_with_norm(loader, sizes, norm, block)
    }
}

impl<B, N: Norm> CausalLm<B, N> {
    /// Loads the same with a last norm of another kind or name.
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

    /// Takes the embeddings of the step's tokens through the blocks, each applied by `block`.
    pub fn hidden(
        &self,
        step: &mut Step<'_>,
        block: impl Fn(&B, &Tensor, &mut Step<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let x = self.embed_tokens.forward(step)?;
        self.hidden_from(x, step, block)
    }

    /// Takes `x` through the blocks, as where embeddings are scaled first.
    pub fn hidden_from(
        &self,
        x: Tensor,
        step: &mut Step<'_>,
        block: impl Fn(&B, &Tensor, &mut Step<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.layers.iter().try_fold(x, |x, layer| block(layer, &x, step))
    }

    /// The logits of hidden states.
    pub fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.normalize(hidden, step)?, step)
    }
}

/// A norm over the width of a hidden state.
pub trait Norm {
    /// Normalises each row of `x`.
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
