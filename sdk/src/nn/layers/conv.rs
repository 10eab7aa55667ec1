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
        let values = here.values("weight")?;
        let values = values.ok_or_else(|| Error::corrupt(format!("no tensor '{}.weight'", here.path())))?;
        if taps < 2 || channels == 0 || channels.checked_mul(taps) != Some(values.len()) {
            let (path, count) = (here.path(), values.len());
            let message = format!("tensor '{path}.weight' has {count} values, not {channels} channels of {taps} taps");
            return Err(Error::corrupt(message));
        }
        let values: Vec<f32> = (0..taps).flat_map(|tap| values.iter().skip(tap).step_by(taps).copied()).collect();
        let bias = if here.has("bias") { Some(here.vector("bias", channels)?) } else { None };
        Ok(Self { layer, taps: loader.tensor(values, &[taps, channels])?, bias, activation: None })
    }

    /// Convolves the step's rows `[tokens, channels]`, each with the previous rows of its sequence.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (taps, channels) = self.taps.dims2()?;
        if x.dims2()? != (step.pass.input().tokens.len(), channels) {
            let dims = x.dims();
            return Err(Error::invalid(format!("a convolution of {channels} channels was given {dims:?}")));
        }
        let state = step.pass.kv.states(self.layer, 0)?.dim(2)?;
        if state != (taps - 1) * channels {
            let message = format!("a state of {state} values for {} inputs of {channels} channels", taps - 1);
            return Err(Error::invalid(message));
        }
        step.ops().short_conv(self, x, &step.pass)
    }
}
