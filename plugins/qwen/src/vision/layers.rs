//! The layers of the towers: blocks, and mergers that make a row of a square of patches.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, GatedMlp, LayerNorm, Loader, Mlp, Qkv, RmsNorm, Step, Tensor, TextAttention,
        vision::{VitBlock, VitMlp, VitNorm},
    },
};

use super::{Config, Kind};

/// Epsilon of the tower's norms.
const NORM_EPS: f64 = 1e-6;

/// Makes a row of the text's width of each square of patches.
pub struct PatchMerger {
    norm: VitNorm,
    /// The norm is as wide as a square, not as a patch.
    is_postshuffle: bool,
    mlp: Mlp,
}

impl PatchMerger {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize, is_postshuffle: bool) -> Result<Self> {
        let width = config.hidden_size;
        let merged = width * config.spatial_merge_size * config.spatial_merge_size;
        let (norm, names) = match config.kind {
            Kind::Windowed { .. } => {
                (VitNorm::Rms(RmsNorm::load(loader, "ln_q", width, NORM_EPS)?), ["mlp.0", "mlp.2"])
            }
            Kind::Positioned { .. } => {
                let width = if is_postshuffle { merged } else { width };
                (VitNorm::Layer(LayerNorm::load(loader, "norm", width, NORM_EPS)?), ["linear_fc1", "linear_fc2"])
            }
        };
        let mlp = Mlp::load_projector(loader, names, [merged, merged, text_width], Activation::GeluErf)?;
        Ok(Self { norm, is_postshuffle, mlp })
    }

    /// The patches of a square follow one another.
    pub fn forward(&self, x: &Tensor, patches: usize, step: &Step<'_>) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let squares = |x: Tensor| -> Result<Tensor> { Ok(x.reshape((rows / patches, patches * width))?) };
        let merged = match self.is_postshuffle {
            true => self.norm.forward(&squares(x.clone())?, step)?,
            false => squares(self.norm.forward(x, step)?)?,
        };
        self.mlp.forward(&merged, step)
    }
}

pub fn block(loader: &Loader<'_>, config: &Config, index: usize) -> Result<VitBlock> {
    let Config { hidden_size: width, intermediate_size: inner, num_heads: heads, hidden_act, .. } = *config;
    let (attn, mlp) = (loader.at("attn"), loader.at("mlp"));
    let norm = |name| {
        Ok::<_, Error>(match config.kind {
            Kind::Windowed { .. } => VitNorm::Rms(RmsNorm::load(loader, name, width, NORM_EPS)?),
            Kind::Positioned { .. } => VitNorm::Layer(LayerNorm::load(loader, name, width, NORM_EPS)?),
        })
    };
    let (mlp, windowed) = match &config.kind {
        Kind::Windowed { full, .. } => {
            (VitMlp::Gated(GatedMlp::load(&mlp, width, inner, hidden_act)?), !full.contains(&index))
        }
        Kind::Positioned { .. } => {
            (VitMlp::Plain(Mlp::load_named(&mlp, ["linear_fc1", "linear_fc2"], width, inner, hidden_act)?), false)
        }
    };
    Ok(VitBlock {
        norm1: norm("norm1")?,
        qkv: Qkv::of(attn.stacked("qkv", width, [("q", width), ("k", width), ("v", width)])?),
        attention: TextAttention::new(heads, heads, width / heads)?,
        proj: attn.linear("proj", width, width)?,
        norm2: norm("norm2")?,
        mlp,
        windowed,
        sandwich: None,
    })
}
