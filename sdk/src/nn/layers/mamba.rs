//! Mamba's mixer (arXiv 2312.00752): a short convolution, and a recurrence whose time step `dt`, `B` and `C` are computed
//! from each token. Every element of its state fades at a rate of its own.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Activation, Decay, LayerCache, Linear, Loader, Recurrence, RmsNorm, ShortConv, Step},
    weights::Format,
};

/// The sizes and settings of a mixer.
#[derive(Clone, Copy, Debug)]
pub struct MambaSizes {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Channels of the recurrence.
    pub intermediate_size: usize,
    /// Values of a channel's state, `d_state`.
    pub state: usize,
    /// Kernel size of the convolution, `d_conv`.
    pub taps: usize,
    /// Width of `dt` before its projection.
    pub time_step_rank: usize,
    /// Epsilon of the norms of `dt`, `B` and `C`, which Jamba and Falcon Mamba have; only the former's have weights.
    pub norm_eps: Option<f64>,
}

impl MambaSizes {
    /// The state that a mixer keeps per sequence.
    pub fn cache(&self) -> LayerCache {
        Recurrence::cache((self.intermediate_size, self.taps), 1, self.state, self.intermediate_size)
    }

    /// The widest activation of a token: `x` and its gate together.
    pub fn widest(&self) -> usize {
        (2 * self.intermediate_size).max(self.time_step_rank + 2 * self.state)
    }

    /// Channels that are computed together. All read the same `B` and `C`, so it only divides the work.
    fn channels_together(&self) -> usize {
        let divides = |channels: &usize| self.intermediate_size.is_multiple_of(*channels);
        [64, 48, 32, 16].into_iter().find(divides).or_else(|| (1..=64).rev().find(divides)).unwrap_or(1)
    }
}

/// A mixer; its fields are named as in Hugging Face's checkpoints.
#[derive(Clone, Debug)]
pub struct Mamba {
    /// The recurrence's inputs and their gates, `in_proj` in checkpoints.
    in_proj: [Linear; 2],
    conv1d: ShortConv,
    x_proj: Linear,
    dt_proj: Linear,
    /// `−exp(A_log)`, by group of channels: `[groups, state, channels]`.
    a: Tensor,
    /// Factor of the skip connection, per channel.
    d: Tensor,
    /// The norms of `dt`, `B` and `C`.
    norms: Option<[RmsNorm; 3]>,
    recurrence: Recurrence,
    out_proj: Linear,
    sizes: MambaSizes,
}

impl Mamba {
    /// Loads the mixer at `loader`'s path. `layer` is the layer's index in the model's caches.
    pub fn load(loader: &Loader<'_>, layer: usize, sizes: MambaSizes) -> Result<Self> {
        let MambaSizes { hidden_size, intermediate_size: inner, state, taps, time_step_rank, .. } = sizes;
        let channels = sizes.channels_together();
        let groups = inner.checked_div(channels).unwrap_or_default();
        // GGUF files have `A` itself.
        let is_gguf = loader.format() == Format::Gguf;
        let name = if is_gguf { "A" } else { "A_log" };
        let missing = || Error::corrupt(format!("no tensor '{}.{name}' of {inner} × {state} values", loader.path()));
        let values = loader.values(name)?.filter(|values| Some(values.len()) == inner.checked_mul(state));
        let a = Tensor::from_vec(values.ok_or_else(missing)?, (groups, channels, state), loader.device())?;
        let a = if is_gguf { a } else { a.exp()?.neg()? };
        let norm = |name: &str, width: usize, eps: f64| match loader.has(&format!("{name}.weight")) {
            true => RmsNorm::load(loader, name, width, eps),
            false => RmsNorm::without_weight(loader, width, eps),
        };
        let norms = |eps: f64| -> Result<[RmsNorm; 3]> {
            Ok([
                norm("dt_layernorm", time_step_rank, eps)?,
                norm("b_layernorm", state, eps)?,
                norm("c_layernorm", state, eps)?,
            ])
        };
        Ok(Self {
            in_proj: loader.stacked("in_proj", hidden_size, [("in_proj_x", inner), ("in_proj_z", inner)])?,
            conv1d: ShortConv::load(loader, "conv1d", layer, inner, taps)?.activated(Activation::Silu),
            x_proj: loader.linear("x_proj", inner, time_step_rank + 2 * state)?,
            dt_proj: loader.linear("dt_proj", time_step_rank, inner)?,
            a: a.transpose(1, 2)?.contiguous()?,
            d: loader.vector("D", inner)?,
            norms: sizes.norm_eps.map(norms).transpose()?,
            recurrence: Recurrence::new(layer, groups, 1, state, channels)?,
            out_proj: loader.linear("out_proj", inner, hidden_size)?,
            sizes,
        })
    }

    /// Applies the mixer to the step's rows `[tokens, hidden_size]`.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.out_proj.forward(&self.inner(x, step)?, step)
    }

    /// `residual + mixer(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.out_proj.add_to(residual, &self.inner(x, step)?, step)
    }

    fn inner(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let MambaSizes { state, time_step_rank, .. } = self.sizes;
        let [x, gate] = Linear::forward_all(self.in_proj.each_ref(), x, step)?;
        let x = self.conv1d.forward(&x, step)?;
        let [mut dt, mut b, mut c] = step.split(&self.x_proj.forward(&x, step)?, [time_step_rank, state, state])?;
        if let Some([dt_norm, b_norm, c_norm]) = &self.norms {
            (dt, b, c) = (dt_norm.forward(&dt, step)?, b_norm.forward(&b, step)?, c_norm.forward(&c, step)?);
        }
        let dt = step.ops().activate(&self.dt_proj.forward(&dt, step)?, Activation::Softplus)?;
        let decay = Decay::Element { steps: dt.clone(), rates: self.a.clone() };
        let y = self.recurrence.sum([&c, &b, &x], decay, &dt, &self.d, step)?;
        step.ops().gate(&gate, &y, Activation::Silu)
    }
}
