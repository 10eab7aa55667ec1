//! Mamba-2 (arXiv 2405.21060).
//!
//! Reference: `modeling_mamba2.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Result,
    nn::{GatedNorm, LayerCache, Loader, Mamba2, Mamba2Sizes, Step, Tensor},
    weights::{Checkpoint, Format, GgufConfig},
};

use crate::backbone::Mixer;

impl Mixer for Mamba2 {
    const NAME: &'static str = "mamba2";
    const GGUF: &'static [&'static str] = &["mamba2"];
    const CLASSES: &'static [&'static str] = &["Mamba2ForCausalLM"];
    const LAYERS: usize = 64;
    const TIES: bool = false;

    type Sizes = Mamba2Sizes;

    fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
        config.mamba2()
    }

    /// By this class's keys or those that GGUF metadata is mapped to.
    fn sizes(checkpoint: &Checkpoint, eps: f64) -> Result<Mamba2Sizes> {
        let config = checkpoint.config();
        if checkpoint.format() == Format::Gguf {
            return Mamba2Sizes::read(config, eps);
        }
        Ok(Mamba2Sizes {
            hidden_size: config.usize("hidden_size")?,
            heads: config.usize_or("num_heads", 128)?,
            head_dim: config.usize_or("head_dim", 64)?,
            groups: config.usize_or("n_groups", 8)?,
            state: config.usize_or("state_size", 128)?,
            taps: config.usize_or("conv_kernel", 4)?,
            eps,
            time_step_limit: Mamba2Sizes::time_step_limit(config)?,
            norm: GatedNorm::AfterGate,
        })
    }

    fn cache(sizes: &Mamba2Sizes) -> LayerCache {
        sizes.cache()
    }

    fn widest(sizes: &Mamba2Sizes) -> usize {
        sizes.widest()
    }

    fn load(loader: &Loader<'_>, layer: usize, sizes: Mamba2Sizes) -> Result<Self> {
        Self::load(loader, layer, sizes)
    }

    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.add_to(residual, x, step)
    }
}
