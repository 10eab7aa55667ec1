//! Ranges that keep the values around a linear layer within what a narrow type holds.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Linear, Loader, Step},
};

/// The ranges of a linear layer's inputs and outputs (Gemma 4's clippable layers).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// Least and largest input.
    pub input: [f32; 2],
    /// Least and largest output.
    pub output: [f32; 2],
}

impl Clip {
    /// Reads `input_min`, `input_max`, `output_min` and `output_max`; one that is absent is no limit.
    pub fn load(loader: &Loader<'_>) -> Result<Self> {
        let read = |name: &str, default: f32| match loader.values(name)?.as_deref() {
            None => Ok(default),
            Some([value]) if !value.is_nan() => Ok(*value),
            Some(_) => Err(Error::corrupt(format!("'{name}' of a clipped layer is not one number"))),
        };
        let range = |of: &str| -> Result<[f32; 2]> {
            let [min, max] =
                [read(&format!("{of}_min"), f32::NEG_INFINITY)?, read(&format!("{of}_max"), f32::INFINITY)?];
            if min > max {
                return Err(Error::corrupt(format!("a clipped layer's {of} is between {min} and {max}")));
            }
            Ok([min, max])
        };
        Ok(Self { input: range("input")?, output: range("output")? })
    }

    /// The layer's output for the rows of `x`.
    pub fn forward(&self, layer: &Linear, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        within(&layer.forward(&within(x, self.input)?, step)?, self.output)
    }
}

fn within(x: &Tensor, [min, max]: [f32; 2]) -> Result<Tensor> {
    if min == f32::NEG_INFINITY && max == f32::INFINITY { Ok(x.clone()) } else { Ok(x.clamp(min, max)?) }
}
