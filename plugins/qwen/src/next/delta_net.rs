//! The gated delta net (arXiv 2412.06464) that three layers out of four use instead of attention.

use pensieve_sdk::{
    Error, Result,
    nn::{Activation, Linear, Loader, Recurrence, RmsNorm, ShortConv, Step, Tensor},
    weights::Format,
};

use super::{
    config::{Config, LinearSizes},
    of_groups,
};

/// The input projections of a delta net, which checkpoints store as one layer, with its outputs grouped by key head, or
/// as two.
enum Projection<const N: usize> {
    Grouped { all: Linear, groups: usize, widths: [usize; N] },
    Apart([Linear; 2]),
}

impl<const N: usize> Projection<N> {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Vec<Tensor>> {
        match self {
            Self::Apart(layers) => Ok(Linear::forward_all(layers.each_ref(), x, step)?.into()),
            Self::Grouped { all, groups, widths } => {
                Ok(of_groups(&all.forward(x, step)?, *groups, *widths, step)?.into())
            }
        }
    }
}

/// A gated delta net: a linear recurrence with the delta rule, after a short convolution.
pub struct GatedDeltaNet {
    /// Queries, keys and values, and the gate of the norm.
    qkvz: Projection<4>,
    /// `beta`, and the input of the decay.
    ba: Projection<2>,
    conv1d: ShortConv,
    /// `−exp(A_log)`.
    a: Tensor,
    dt_bias: Tensor,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    recurrence: Recurrence,
    norm: RmsNorm,
    out_proj: Linear,
    sizes: LinearSizes,
}

impl GatedDeltaNet {
    pub fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        // In some GGUF files value heads are interleaved over key heads.
        let interleaved = loader.at("interleaved_linear_attn");
        let interleaved_heads = interleaved.has("out_proj.weight");
        let loader = &if interleaved_heads { interleaved } else { loader.at("linear_attn") };
        let (sizes, width) = (config.linear, config.sizes.hidden_size);
        let LinearSizes { num_key_heads: key_heads, num_value_heads: heads, key_head_dim, value_head_dim, .. } = sizes;
        let recurrence = Recurrence::new(layer, heads, key_heads, key_head_dim, value_head_dim)?;
        let shared = heads / key_heads;
        let qkvz = if loader.has("in_proj_qkvz.weight") {
            let widths = [key_head_dim, key_head_dim, shared * value_head_dim, shared * value_head_dim];
            let all = loader.linear("in_proj_qkvz", width, sizes.channels() + sizes.value_dim())?;
            Projection::Grouped { all, groups: key_heads, widths }
        } else {
            let qkv = loader.linear("in_proj_qkv", width, sizes.channels())?;
            Projection::Apart([qkv, loader.linear("in_proj_z", width, sizes.value_dim())?])
        };
        let ba = if loader.has("in_proj_ba.weight") {
            let all = loader.linear("in_proj_ba", width, 2 * heads)?;
            Projection::Grouped { all, groups: key_heads, widths: [shared; 2] }
        } else {
            Projection::Apart([loader.linear("in_proj_b", width, heads)?, loader.linear("in_proj_a", width, heads)?])
        };
        let is_gguf = loader.format() == Format::Gguf;
        let eps = 1e-6;
        Ok(Self {
            qkvz,
            ba,
            conv1d: ShortConv::load(loader, "conv1d", layer, sizes.channels(), sizes.conv_kernel_dim)?
                .activated(Activation::Silu),
            a: if is_gguf { loader.vector("A", heads)? } else { loader.vector("A_log", heads)?.exp()?.neg()? },
            dt_bias: loader.vector(if is_gguf { "dt_proj.bias" } else { "dt_bias" }, heads)?,
            q_norm: RmsNorm::to_length(loader, key_head_dim, (key_head_dim as f64).powf(-0.5), eps)?,
            k_norm: RmsNorm::to_length(loader, key_head_dim, 1.0, eps)?,
            recurrence: Recurrence { interleaved_heads, ..recurrence },
            norm: RmsNorm::load(loader, "norm", value_head_dim, config.sizes.rms_norm_eps)?,
            out_proj: loader.linear("out_proj", sizes.value_dim(), width)?,
            sizes,
        })
    }

    /// `residual + net(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (mut qkvz, ba) = (self.qkvz.forward(x, step)?, self.ba.forward(x, step)?);
        let unexpected = || Error::invalid("a projection of other parts");
        let (Some(z), [b, a]) = (qkvz.pop(), &ba[..]) else { return Err(unexpected()) };
        let qkv = match &qkvz[..] {
            [qkv] => qkv.clone(),
            [q, k, v] => step.join([q, k, v])?,
            _ => return Err(unexpected()),
        };
        let qkv = self.conv1d.forward(&qkv, step)?;
        let (keys, values) = (self.sizes.key_dim(), self.sizes.value_dim());
        let [q, k, v] = step.split(&qkv, [keys, keys, values])?;
        let (q, k) = (self.q_norm.forward_heads(&q, step)?, self.k_norm.forward_heads(&k, step)?);
        let decay = step.ops().bias_act_scale(a, Some(&self.dt_bias), Some(Activation::Softplus), Some(&self.a))?;
        let beta = step.ops().activate(b, Activation::Sigmoid)?;
        let core_attn_out = self.recurrence.delta([&q, &k, &v], &decay, &beta, step)?;
        let gated = step.ops().gate(&z, &self.norm.forward_heads(&core_attn_out, step)?, Activation::Silu)?;
        self.out_proj.add_to(residual, &gated, step)
    }
}
