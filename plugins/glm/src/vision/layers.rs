//! The layers of the tower: blocks, interpolated positions, and the gated block after the convolution.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, ActivationFn, ExpertNames, GatedMlp, LayerNorm, Linear, Loader, Qkv, RmsNorm, Step, Tensor,
        TextAttention,
        vision::{VitBlock, VitMlp, VitNorm},
    },
};

use super::Config;

/// Epsilon of the merger's norm.
const NORM_EPS: f64 = 1e-5;

/// What follows the convolution over squares of patches.
pub struct PatchMerger {
    proj: Linear,
    post_projection_norm: LayerNorm,
    mlp: GatedMlp,
}

impl PatchMerger {
    pub fn load(loader: &Loader<'_>, config: &Config, width: usize) -> Result<Self> {
        let inner = config.merger_inner;
        Ok(Self {
            proj: loader.linear("proj", width, width)?,
            post_projection_norm: LayerNorm::load(loader, "post_projection_norm", width, NORM_EPS)?,
            mlp: GatedMlp::load_named(loader, ExpertNames::default(), width, inner, config.hidden_act)?,
        })
    }

    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let normed = self.post_projection_norm.forward(&self.proj.forward(x, step)?, step)?;
        self.mlp.forward(&ActivationFn::from(Activation::GeluErf).forward(&normed, step.ops())?, step)
    }
}

/// For each of `count` places in a row the four of `side` that it lies between, with their weights: cubic convolution
/// between pixels' centers, without antialiasing, and the border beyond the ends.
pub fn cubic(side: usize, count: usize) -> Vec<[(usize, f32); 4]> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let of = |index: usize| {
        // As `grid_sample` computes it, from -1 to 1 and back.
        let place = ((index as f32 + 0.5) / count as f32) * 2.0 - 1.0;
        let place = ((place + 1.0) * side as f32 - 1.0) / 2.0;
        let (floor, rest) = (place.floor(), place - place.floor());
        let weights = [far(rest + 1.0), near(rest), near(1.0 - rest), far(2.0 - rest)];
        let at = |tap: usize| (floor + tap as f32 - 1.0).clamp(0.0, (side - 1) as f32) as usize;
        [0, 1, 2, 3].map(|tap| (at(tap), weights[tap]))
    };
    (0..count).map(of).collect()
}

pub fn block(loader: &Loader<'_>, config: &Config) -> Result<VitBlock> {
    let Config { hidden_size: width, block_inner, num_heads: heads, rms_norm_eps: eps, hidden_act, .. } = *config;
    let norm = |name| Ok::<_, Error>(VitNorm::Rms(RmsNorm::load(loader, name, width, eps)?));
    let attn = loader.at("attn");
    let head_norm = |name| RmsNorm::load(&attn, name, width / heads, eps);
    let qkv = Qkv::of(attn.stacked("qkv", width, [("q", width), ("k", width), ("v", width)])?);
    Ok(VitBlock {
        norm1: norm("norm1")?,
        qkv: if config.side.is_none() { qkv.with_norms(head_norm("q_norm")?, head_norm("k_norm")?) } else { qkv },
        attention: TextAttention::new(heads, heads, width / heads)?,
        proj: attn.linear("proj", width, width)?,
        norm2: norm("norm2")?,
        mlp: VitMlp::Gated(GatedMlp::load(&loader.at("mlp"), width, block_inner, hidden_act)?),
        windowed: false,
        sandwich: None,
    })
}
