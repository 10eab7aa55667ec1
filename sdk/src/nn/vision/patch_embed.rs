//! The first layer of towers that also read videos: a patch is as wide as several frames.

use crate::{
    Error, Result,
    nn::{Linear, Loader},
    weights::{Bytes, Dtype, RawTensor},
};

/// Loads the convolution `proj` over `frames` frames as a layer over the patches of an image of `side` by `side` pixels,
/// color by color. The frames of an image are alike, so their weights are added. GGUF files have a tensor for each of two
/// frames, `proj.weight` and `proj.weight.1`.
pub fn patch_embed(loader: &Loader<'_>, width: usize, side: usize, frames: usize) -> Result<Linear> {
    if side == 0 || frames == 0 {
        return Err(Error::corrupt(format!("patches of {side} by {side} pixels in {frames} frames")));
    }
    let area = side * side;
    let mut weight = Vec::new();
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
