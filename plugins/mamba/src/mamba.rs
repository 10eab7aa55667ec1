//! Mamba (arXiv 2312.00752) and Falcon Mamba (2410.05355), which normalizes `dt`, `B` and `C`.
//!
//! Reference: `modeling_mamba.py` and `modeling_falcon_mamba.py` in Hugging Face transformers; layers are named as in
//! its checkpoints.

use pensieve_sdk::{
    Error, Result,
    nn::{LayerCache, Loader, Mamba, MambaSizes, Step, Tensor},
    weights::{Checkpoint, GgufConfig, Names},
};

use crate::backbone::Mixer;

const GGUF_KEYS: Names = &[
    ("ssm.conv_kernel", "conv_kernel"),
    ("ssm.state_size", "state_size"),
    ("ssm.inner_size", "intermediate_size"),
    ("ssm.time_step_rank", "time_step_rank"),
    ("ssm.dt_b_c_rms", "normalizes_dt_b_c"),
];

impl Mixer for Mamba {
    const NAME: &'static str = "mamba";
    const GGUF: &'static [&'static str] = &["mamba"];
    const CLASSES: &'static [&'static str] = &["MambaForCausalLM", "FalconMambaForCausalLM"];
    const LAYERS: usize = 32;
    const TIES: bool = true;

    type Sizes = MambaSizes;

    fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
        config.rename(GGUF_KEYS)
    }

    fn sizes(checkpoint: &Checkpoint, eps: f64) -> Result<MambaSizes> {
        let config = checkpoint.config();
        let is_silu = config.str_or("hidden_act", "silu")? == "silu";
        if !is_silu {
            return Err(Error::declined("'hidden_act' is not silu, which is all that is computed"));
        }
        let normalizes = checkpoint.architecture() == "FalconMambaForCausalLM";
        let norm_eps = match config.bool_or("normalizes_dt_b_c", false)? {
            true => Some(eps),
            false if normalizes => Some(config.f64_or("mixer_rms_eps", 1e-6)?),
            false => None,
        };
        let hidden_size = config.usize("hidden_size")?;
        let expanded = hidden_size.saturating_mul(config.usize_or("expand", 2)?);
        let is_auto = config.value()["time_step_rank"].as_str() == Some("auto");
        let rank = hidden_size.div_ceil(16);
        Ok(MambaSizes {
            hidden_size,
            intermediate_size: config.usize_or("intermediate_size", expanded)?,
            state: config.usize_or("state_size", 16)?,
            taps: config.usize_or("conv_kernel", 4)?,
            time_step_rank: if is_auto { rank } else { config.usize_or("time_step_rank", rank)? },
            norm_eps,
        })
    }

    fn cache(sizes: &MambaSizes) -> LayerCache {
        sizes.cache()
    }

    fn widest(sizes: &MambaSizes) -> usize {
        sizes.widest()
    }

    fn load(loader: &Loader<'_>, layer: usize, sizes: MambaSizes) -> Result<Self> {
        Self::load(loader, layer, sizes)
    }

    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.add_to(residual, x, step)
    }
}
