//! Loading a [`ShortConv`] and applying it to a step.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Loader, Step, spec::ShortConv},
};

impl ShortConv {
    /// Loads `name.weight`, `[channels, 1, taps]` or `[channels, taps]`, and `name.bias` if the checkpoint has one.
    /// `layer` is the layer's index in the model's caches.
    pub fn load(loader: &Loader<'_>, name: &str, layer: usize, channels: usize, taps: usize) -> Result<Self> {
        let here = loader.at(name);
        let bias = if here.has("bias") { Some(here.vector("bias", channels)?) } else { None };
        Ok(Self { bias, ..Self::load_joined(loader, &[(name, channels)], layer, taps)? })
    }

    /// Joins convolutions without biases, each with its number of channels, so that they run as one over the channels
    /// of all.
    pub fn load_joined(loader: &Loader<'_>, parts: &[(&str, usize)], layer: usize, taps: usize) -> Result<Self> {
        let mut weights: Vec<f32> = Vec::new();
        for &(name, channels) in parts {
            let here = loader.at(name);
            let values = here.values("weight")?;
            let values = values.ok_or_else(|| Error::corrupt(format!("no tensor '{}.weight'", here.path())))?;
            if taps < 2 || channels == 0 || channels.checked_mul(taps) != Some(values.len()) {
                let (path, count) = (here.path(), values.len());
                let message =
                    format!("tensor '{path}.weight' has {count} values, not {channels} channels of {taps} taps");
                return Err(Error::corrupt(message));
            }
            weights.extend(values);
        }
        let channels = weights.len() / taps.max(1);
        let values: Vec<f32> = (0..taps).flat_map(|tap| weights.iter().skip(tap).step_by(taps).copied()).collect();
        let taps = loader.tensor(values, &[taps, channels])?;
        Ok(Self { layer, part: 0, taps, bias: None, activation: None })
    }

    /// Gives each row the row before it in its sequence, zeros to the first: the token shift of RWKV.
    pub fn shift(loader: &Loader<'_>, layer: usize, channels: usize) -> Result<Self> {
        let values = [1.0, 0.0].into_iter().flat_map(|tap| std::iter::repeat_n(tap, channels)).collect();
        let taps = loader.tensor(values, &[2, channels])?;
        Ok(Self { layer, part: 0, taps, bias: None, activation: None })
    }

    /// Convolves the step's rows `[tokens, channels]`, each with the previous rows of its sequence.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (taps, channels) = self.taps.dims2()?;
        if x.dims2()? != (step.pass.input().tokens.len(), channels) {
            let dims = x.dims();
            return Err(Error::invalid(format!("a convolution of {channels} channels was given {dims:?}")));
        }
        let state = step.pass.kv.states(self.layer, self.part)?.dim(2)?;
        if state != (taps - 1) * channels {
            let message = format!("a state of {state} values for {} inputs of {channels} channels", taps - 1);
            return Err(Error::invalid(message));
        }
        step.ops().short_conv(self, x, &step.pass)
    }
}
