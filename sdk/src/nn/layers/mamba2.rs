//! Mamba-2's mixer (arXiv 2405.21060), which hybrids use instead of attention in most layers: a short convolution over
//! `x`, `B` and `C`, a recurrence whose time step `dt` is computed from each token, and a gated norm.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Activation, LayerCache, Linear, Loader, Recurrence, RmsNorm, ShortConv, Step},
    weights::{Config, Format},
};

/// The order of a mixer's norm and gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedNorm {
    /// `norm(y · silu(z))`.
    AfterGate,
    /// `norm(y) · silu(z)`.
    BeforeGate,
    /// `y · silu(z)`.
    Absent,
}

/// The sizes and settings of a mixer.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Sizes {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of heads.
    pub heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// State size per value of a head, `d_state`.
    pub state: usize,
    /// Kernel size of the convolution, `d_conv`.
    pub taps: usize,
    /// The norm's epsilon.
    pub eps: f64,
    /// Bounds of `dt`, after softplus.
    pub time_step_limit: (f64, f64),
    /// Norm after the recurrence.
    pub norm: GatedNorm,
}

impl Mamba2Sizes {
    /// Reads the `mamba_…` keys of Granite, Falcon-H1 and Bamba.
    pub fn read(config: &Config, eps: f64) -> Result<Self> {
        let (hidden_size, heads) = (config.usize("hidden_size")?, config.usize_or("mamba_n_heads", 128)?);
        let expanded = hidden_size.saturating_mul(config.usize_or("mamba_expand", 2)?);
        let inner = config.usize_or("mamba_d_ssm", expanded)?;
        let is_given = config.value()["mamba_d_head"].is_number();
        Ok(Self {
            hidden_size,
            heads,
            head_dim: if is_given { config.usize("mamba_d_head")? } else { inner / heads },
            groups: config.usize_or("mamba_n_groups", 1)?,
            state: config.usize_or("mamba_d_state", 256)?,
            taps: config.usize_or("mamba_d_conv", 4)?,
            eps,
            time_step_limit: Self::time_step_limit(config)?,
            norm: GatedNorm::AfterGate,
        })
    }

    /// The configured bounds of `dt`; zero and infinity by default.
    pub fn time_step_limit(config: &Config) -> Result<(f64, f64)> {
        let Some(value) = config.value().get("time_step_limit").filter(|value| !value.is_null()) else {
            return Ok((0.0, f64::INFINITY));
        };
        let limits = match value.as_array().map(Vec::as_slice) {
            Some([shortest, longest]) => shortest.as_f64().zip(longest.as_f64()),
            _ => None,
        };
        limits.ok_or_else(|| Error::corrupt("the configuration's 'time_step_limit' is not a list of two numbers"))
    }

    /// Values of all heads.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: `x`, `B` and `C`.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// Outputs of `in_proj`: the gate, the convolution's channels, and `dt`.
    pub fn widest(&self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// The state that a mixer keeps per sequence.
    pub fn cache(&self) -> LayerCache {
        Recurrence::cache((self.channels(), self.taps), self.heads, self.state, self.head_dim)
    }
}

/// A mixer; its fields are named as in Hugging Face's checkpoints.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    in_proj: Linear,
    conv1d: ShortConv,
    dt_bias: Tensor,
    /// `−exp(A_log)`.
    a: Tensor,
    /// Factor of the skip connection, per head.
    d: Tensor,
    recurrence: Recurrence,
    /// The norm of each group, and the weight applied to all groups together.
    norm: Option<(RmsNorm, Tensor)>,
    out_proj: Linear,
    /// Factors for the outputs of `in_proj`.
    multipliers: Option<Tensor>,
    sizes: Mamba2Sizes,
}

impl Mamba2 {
    /// Loads the mixer at `loader`'s path. `layer` is the layer's index in the model's caches.
    pub fn load(loader: &Loader<'_>, layer: usize, sizes: Mamba2Sizes) -> Result<Self> {
        let Mamba2Sizes { hidden_size, heads, head_dim, groups, state, .. } = sizes;
        let (inner, group) = (sizes.inner(), sizes.inner().checked_div(groups).unwrap_or_default());
        // In GGUF files these vectors have a second dimension.
        let vector = |name: &str, len: usize| -> Result<Tensor> {
            let values = loader.values(name)?.filter(|values| values.len() == len);
            let missing = || Error::corrupt(format!("no tensor '{}.{name}' of {len} values", loader.path()));
            Ok(Tensor::from_vec(values.ok_or_else(missing)?, len, loader.device())?)
        };
        let is_gguf = loader.format() == Format::Gguf;
        let recurrence = Recurrence::new(layer, heads, groups, state, head_dim)?;
        Ok(Self {
            in_proj: loader.linear("in_proj", hidden_size, sizes.widest())?,
            conv1d: ShortConv::load(loader, "conv1d", layer, sizes.channels(), sizes.taps)?.activated(Activation::Silu),
            dt_bias: vector(if is_gguf { "dt_proj.bias" } else { "dt_bias" }, heads)?,
            a: if is_gguf { vector("A", heads)? } else { vector("A_log", heads)?.exp()?.neg()? },
            d: vector("D", heads)?,
            recurrence,
            norm: match sizes.norm {
                GatedNorm::Absent => None,
                _ => Some((RmsNorm::without_weight(loader, group, sizes.eps)?, vector("norm.weight", inner)?)),
            },
            out_proj: loader.linear("out_proj", inner, hidden_size)?,
            multipliers: None,
            sizes,
        })
    }

    /// Scales the parts of `in_proj`'s output: the gate, `x`, `B`, `C`, and `dt`.
    pub fn multiplied_by(self, loader: &Loader<'_>, [gate, x, b, c, dt]: [f64; 5]) -> Result<Self> {
        let (inner, shared) = (self.sizes.inner(), self.sizes.groups * self.sizes.state);
        let parts = [(gate, inner), (x, inner), (b, shared), (c, shared), (dt, self.sizes.heads)];
        if parts.iter().all(|(multiplier, _)| *multiplier == 1.0) {
            return Ok(self);
        }
        let values: Vec<f32> =
            parts.into_iter().flat_map(|(multiplier, len)| std::iter::repeat_n(multiplier as f32, len)).collect();
        let len = values.len();
        Ok(Self { multipliers: Some(Tensor::from_vec(values, len, loader.device())?), ..self })
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
        let Mamba2Sizes { heads, groups, state, time_step_limit: (shortest, longest), .. } = self.sizes;
        let (inner, channels) = (self.sizes.inner(), self.sizes.channels());
        let mut all = self.in_proj.forward(x, step)?;
        if let Some(multipliers) = &self.multipliers {
            all = all.broadcast_mul(multipliers)?;
        }
        let [gate, convolved, dt] = step.split(&all, [inner, channels, heads])?;
        let convolved = self.conv1d.forward(&convolved, step)?;
        let [x, b, c] = step.split(&convolved, [inner, groups * state, groups * state])?;
        let mut dt = step.ops().bias_act_scale(&dt, Some(&self.dt_bias), Some(Activation::Softplus), None)?;
        if shortest > 0.0 || longest < f64::from(f32::MAX) {
            dt = dt.clamp(shortest as f32, longest.min(f64::from(f32::MAX)) as f32)?;
        }
        let decay = step.ops().bias_act_scale(&dt, None, None, Some(&self.a))?;
        let y = self.recurrence.sum([&c, &b, &x], &decay, &dt, &self.d, step)?;
        let gated = |y: &Tensor| step.ops().gate(&gate, y, Activation::Silu);
        let normed = |y: &Tensor| -> Result<Tensor> {
            let Some((norm, weight)) = &self.norm else { return Ok(y.clone()) };
            Ok(norm.forward_heads(y, step)?.broadcast_mul(weight)?)
        };
        match self.sizes.norm {
            GatedNorm::BeforeGate => gated(&normed(&y)?),
            GatedNorm::AfterGate | GatedNorm::Absent => normed(&gated(&y)?),
        }
    }
}
