//! The layers of the towers: patches as wide as several frames, blocks, and mergers that make a row of a square of patches.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, GatedMlp, LayerNorm, Linear, Loader, Mlp, Qkv, RmsNorm, Step, Tensor, TextAttention,
        vision::{VitBlock, VitMlp, VitNorm},
    },
    weights::{Bytes, Dtype, RawTensor},
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

/// The layer of a convolution over several frames. The frames of an image are alike, so their weights are added. GGUF
/// files have two of them, apart.
pub fn patch_embed(loader: &Loader<'_>, config: &Config) -> Result<Linear> {
    let Config { hidden_size: width, patch_size: side, temporal_patch_size: frames, .. } = *config;
    let area = side * side;
    let mut weight = Vec::with_capacity(4 * width * 3 * area);
    if loader.has("proj.weight.1") {
        let of = |name| loader.raw(name, &[width, 3, side, side])?.to_f32();
        let frames = of("proj.weight")?.into_iter().zip(of("proj.weight.1")?);
        frames.for_each(|(one, other)| weight.extend((one + other).to_le_bytes()));
    } else {
        let kernel = loader.raw("proj.weight", &[width, 3, frames, side, side])?.to_f32()?;
        for color in kernel.chunks_exact(frames * area) {
            for pixel in 0..area {
                let sum: f32 = (0..frames).map(|frame| color[frame * area + pixel]).sum();
                weight.extend(sum.to_le_bytes());
            }
        }
    }
    let weight = RawTensor {
        name: "patch_embed.proj".into(),
        dtype: Dtype::F32,
        shape: vec![width, 3 * area],
        data: Bytes::copy_of(&weight)?,
    };
    let bias = if loader.has("proj.bias") { Some(loader.vector("proj.bias", width)?) } else { None };
    Ok(loader.linear_of("proj", &weight)?.with_bias(bias))
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
