//! SigLIP (arXiv 2303.15343) and the blocks of SigLIP 2 (2502.14786): the tower that Gemma 3, Idefics3 and LFM2-VL have in
//! common. What follows the last norm is each family's own.
//!
//! Reference: `modeling_siglip.py` and `modeling_siglip2.py` in Hugging Face transformers; layers are named as in its
//! checkpoints.

use candle_core::Tensor;
use std::ops::Range;

use super::{PatchBatch, PixelRange, PositionTable, VitBlock, VitMlp, VitNorm};
use crate::{
    Error, Result,
    nn::{Activation, LayerNorm, Linear, Loader, Mlp, Qkv, Step, TextAttention, ops::activation},
    weights::{Config, RawTensor},
};

/// Names of the tower: of this generation of checkpoints, of older ones, and of Idefics3.
const PATHS: [&str; 6] = [
    "vision_tower",
    "vision_tower.vision_model",
    "model.vision_tower",
    "model.vision_tower.vision_model",
    "model.vision_model",
    "vision_model",
];

/// The sizes of a SigLIP tower, from `vision_config`.
#[derive(Clone, Debug)]
pub struct SiglipConfig {
    /// Width of a patch's hidden state.
    pub hidden_size: usize,
    /// Inner width of the feed-forward part.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Pixels on a side of a patch.
    pub patch_size: usize,
    /// Patches on a side of the image that the table of positions is made for.
    pub side: usize,
    /// Epsilon of the norms.
    pub layer_norm_eps: f64,
    /// Activation of the feed-forward part.
    pub hidden_act: Activation,
    /// How the pixels are normalized.
    pub range: PixelRange,
}

impl SiglipConfig {
    /// Reads `vision_config`, with the defaults of transformers' class; `settings` are the image processor's.
    pub fn read(vision: &Config, settings: &Config) -> Result<Self> {
        let patch_size = vision.usize_or("patch_size", 16)?;
        let patches = match vision.find_usize("num_patches")? {
            Some(patches) => patches,
            None => (vision.usize_or("image_size", 224)? / patch_size.max(1)).pow(2),
        };
        let config = Self {
            hidden_size: vision.usize_or("hidden_size", 768)?,
            intermediate_size: vision.usize_or("intermediate_size", 3072)?,
            num_hidden_layers: vision.usize_or("num_hidden_layers", 12)?,
            num_attention_heads: vision.usize_or("num_attention_heads", 12)?,
            patch_size,
            side: patches.isqrt(),
            layer_norm_eps: vision.f64_or("layer_norm_eps", 1e-6)?,
            hidden_act: activation(vision.str_or("hidden_act", "gelu_pytorch_tanh")?)?,
            range: PixelRange::read(settings)?,
        };
        let is_square = config.side > 0 && config.side * config.side == patches;
        if !is_square
            || !(1..=256).contains(&patch_size)
            || config.num_attention_heads == 0
            || !config.hidden_size.is_multiple_of(config.num_attention_heads)
        {
            let Self { hidden_size, num_attention_heads, .. } = config;
            let message = format!("{patches} patches of {patch_size} pixels, {hidden_size} values and");
            return Err(Error::corrupt(format!("a tower of {message} {num_attention_heads} heads")));
        }
        Ok(config)
    }

    /// Scratch bytes of so many patches that are encoded at once.
    pub fn scratch_bytes(&self, patches: usize) -> u64 {
        let values = 3 * self.patch_size * self.patch_size + 8 * self.hidden_size + 2 * self.intermediate_size;
        4 * patches as u64 * values as u64
    }
}

/// The tower up to its last norm.
#[derive(Clone, Debug)]
pub struct Siglip {
    patch_embedding: Linear,
    /// The colors of a pixel lie apart in the layer's input, as in a convolution's weight.
    is_planar: bool,
    patch_size: usize,
    range: PixelRange,
    positions: PositionTable,
    /// From the first to the last.
    pub blocks: Vec<VitBlock>,
    /// The norm after the last block.
    pub post_layernorm: LayerNorm,
}

impl Siglip {
    /// Loads the tower.
    pub fn load(loader: &Loader<'_>, config: &SiglipConfig) -> Result<Self> {
        let at = |path: &&&str| loader.at(path).has("post_layernorm.weight");
        let tower = loader.at(PATHS.iter().find(at).unwrap_or(&PATHS[0]));
        let (width, eps) = (config.hidden_size, config.layer_norm_eps);
        let (patch_embedding, is_planar) = patch_embedding(&tower, config)?;
        let positions = PositionTable::load(&tower, "embeddings.position_embedding.weight", config.side, width)?;
        let block = |loader: &Loader<'_>, _| block(loader, config);
        Ok(Self {
            patch_embedding,
            is_planar,
            patch_size: config.patch_size,
            range: config.range,
            positions,
            blocks: tower.at("encoder").layers(config.num_hidden_layers, block)?,
            post_layernorm: LayerNorm::load(&tower, "post_layernorm", width, eps)?,
        })
    }

    /// Embeds some patches of a batch, and adds their positions.
    pub fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        let values = self.range.values(&batch.pixels(&patches), self.patch_size, self.is_planar, step)?;
        let x = self.patch_embedding.forward(&values, step)?;
        self.positions.add_to(&x, &batch.places(&patches), triangle, step)
    }
}

/// The weights of linear interpolation from `from` to `to` samples, with a wider filter where it shrinks.
fn triangle(from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = from as f32 / to as f32;
    let support = scale.max(1.0);
    let of = |index: usize| {
        let center = scale * (index as f32 + 0.5);
        let start = ((center - support + 0.5) as isize).max(0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weight = |at: usize| (1.0 - ((at as f32 - center + 0.5) / support).abs()).max(0.0);
        let total: f32 = (start..end).map(weight).sum();
        (start..end).map(|at| (at, weight(at) / total)).collect()
    };
    (0..to).map(of).collect()
}

/// The layer of a convolution whose kernel is as large as its step, or of SigLIP 2's linear layer, and whether the colors
/// lie apart.
fn patch_embedding(tower: &Loader<'_>, config: &SiglipConfig) -> Result<(Linear, bool)> {
    let (side, width, name) = (config.patch_size, config.hidden_size, "embeddings.patch_embedding");
    let inputs = 3 * side * side;
    let flat = tower.raw(&format!("{name}.weight"), &[width, inputs]);
    let (raw, is_planar) = match flat {
        Ok(raw) => (raw, false),
        Err(_) => (tower.raw(&format!("{name}.weight"), &[width, 3, side, side])?, true),
    };
    let weight = RawTensor { shape: vec![width, inputs], ..raw };
    let bias = tower.vector(&format!("{name}.bias"), width)?;
    Ok((tower.linear_of(name, &weight)?.with_bias(Some(bias)), is_planar))
}

fn block(loader: &Loader<'_>, config: &SiglipConfig) -> Result<VitBlock> {
    let SiglipConfig { hidden_size, intermediate_size, num_attention_heads: heads, hidden_act, .. } = *config;
    let norm = |name| LayerNorm::load(loader, name, hidden_size, config.layer_norm_eps).map(VitNorm::Layer);
    let attn = loader.at("self_attn");
    let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| attn.linear(name, hidden_size, hidden_size));
    Ok(VitBlock {
        norm1: norm("layer_norm1")?,
        qkv: Qkv::of([q?, k?, v?]),
        attention: TextAttention::new(heads, heads, hidden_size / heads)?,
        proj: attn.linear("out_proj", hidden_size, hidden_size)?,
        norm2: norm("layer_norm2")?,
        mlp: VitMlp::Plain(Mlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?),
        windowed: false,
        sandwich: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_as_large_as_the_table_takes_its_positions_as_they_are() {
        for (index, taps) in triangle(7, 7).into_iter().enumerate() {
            let taken: Vec<_> = taps.into_iter().filter(|(_, weight)| *weight > 0.0).collect();
            assert_eq!(taken, [(index, 1.0)]);
        }
    }

    #[test]
    fn interpolation_is_that_of_torch() {
        // torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True) of 0, 1, 4, 9, 16.
        let interpolated = |to: usize| -> Vec<f32> {
            let values = [0.0, 1.0, 4.0, 9.0, 16.0];
            triangle(5, to).iter().map(|taps| taps.iter().map(|(at, weight)| weight * values[*at]).sum()).collect()
        };
        let close = |found: Vec<f32>, expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
        };
        close(interpolated(2), &[1.72727, 9.72727]);
        close(interpolated(3), &[0.42857, 4.44444, 13.0]);
        close(interpolated(7), &[0.0, 0.57143, 1.85714, 4.0, 7.57143, 12.0, 16.0]);
    }
}
