//! The projections of attention: queries, keys and values from one input.
//!
//! The three are computed together, so that a backend reads their input once; on a GPU they are one launch. Families
//! differ in the steps that follow (norms, clipping) and in how a checkpoint stores the weights; both are decided at
//! load time.

use candle_core::Tensor;

use crate::{
    Result,
    nn::{Attention, Clip, Linear, Loader, RmsNorm, Step},
};

/// `q_proj`, `k_proj` and `v_proj`, with biases, norms and clipping in families that have them.
#[derive(Clone, Debug)]
pub struct Qkv {
    layers: [Linear; 3],
    /// Norms of queries and keys.
    norms: Option<[RmsNorm; 2]>,
    /// Norm of the heads of values.
    v_norm: Option<RmsNorm>,
    clip: Option<f64>,
    /// Ranges of each projection.
    clips: Option<Box<[Clip; 3]>>,
}

impl Qkv {
    /// Loads `q_proj`, `k_proj` and `v_proj` for the heads of `attention`, with biases if the checkpoint has them.
    pub fn load(loader: &Loader<'_>, hidden_size: usize, attention: &Attention) -> Result<Self> {
        let [q, k, v] = parts(attention).map(|(name, outputs)| loader.linear(name, hidden_size, outputs));
        Ok(Self::of([q?, k?, v?]))
    }

    /// [`Self::load`] for checkpoints that may stack the three as rows of `name`: queries, keys, values.
    pub fn load_stacked(loader: &Loader<'_>, name: &str, hidden_size: usize, attention: &Attention) -> Result<Self> {
        Ok(Self::of(loader.stacked(name, hidden_size, parts(attention))?))
    }

    /// Projections loaded by the model file, or with other widths, such as queries with a gate.
    pub fn of(layers: [Linear; 3]) -> Self {
        Self { layers, norms: None, v_norm: None, clip: None, clips: None }
    }

    /// Adds norms of queries and keys. They are as wide as one head (Qwen 3) or as all heads together (OLMo 2).
    #[must_use]
    pub fn with_norms(self, q_norm: RmsNorm, k_norm: RmsNorm) -> Self {
        Self { norms: Some([q_norm, k_norm]), ..self }
    }

    /// Adds a norm of each head of the values (Gemma 4).
    #[must_use]
    pub fn with_value_norm(self, v_norm: RmsNorm) -> Self {
        Self { v_norm: Some(v_norm), ..self }
    }

    /// Keeps inputs and outputs of the projections within ranges of their own, before the norms.
    #[must_use]
    pub fn within(self, clips: Option<[Clip; 3]>) -> Self {
        Self { clips: clips.map(Box::new), ..self }
    }

    /// Clamps queries, keys and values to `± limit`, after the norms (OLMoE's `clip_qkv`).
    #[must_use]
    pub fn clipped(self, limit: Option<f64>) -> Self {
        Self { clip: limit, ..self }
    }

    /// Returns queries, keys and values for the rows of `x`, before rotation.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<[Tensor; 3]> {
        let [mut q, mut k, mut v] = match self.clips.as_deref() {
            None => Linear::forward_all(self.layers.each_ref(), x, step)?,
            Some([q_clip, k_clip, v_clip]) => {
                let [q, k, v] = self.layers.each_ref();
                [q_clip.forward(q, x, step)?, k_clip.forward(k, x, step)?, v_clip.forward(v, x, step)?]
            }
        };
        if let Some([q_norm, k_norm]) = &self.norms {
            [q, k] = RmsNorm::forward_both([q_norm, k_norm], [&q, &k], step)?;
        }
        if let Some(v_norm) = &self.v_norm {
            v = v_norm.forward_heads(&v, step)?;
        }
        if let Some(limit) = self.clip {
            (q, k, v) = (q.clamp(-limit, limit)?, k.clamp(-limit, limit)?, v.clamp(-limit, limit)?);
        }
        Ok([q, k, v])
    }
}

fn parts(attention: &Attention) -> [(&'static str, usize); 3] {
    let Attention { heads, kv_heads, head_dim, value_dim, .. } = *attention;
    [("q_proj", heads * head_dim), ("k_proj", kv_heads * head_dim), ("v_proj", kv_heads * value_dim)]
}
