//! The blocks of vision transformers (arXiv 2010.11929): norm, attention among patches, norm, feed-forward.

use candle_core::Tensor;
use std::ops::Range;

use crate::{
    Result,
    nn::{Angles, Clip, GatedMlp, LayerNorm, Linear, Mlp, Qkv, RmsNorm, Step, TextAttention},
};

/// A block: `x + proj(attention(norm1(x)))`, then `x + mlp(norm2(x))`, in Gemma 4 with norms of what is added, too. Families
/// differ in the kinds of its parts, and in their names in checkpoints.
#[derive(Clone, Debug)]
pub struct VitBlock {
    /// The norm before attention.
    pub norm1: VitNorm,
    /// Queries, keys and values.
    pub qkv: Qkv,
    /// Attention within a grid or a window.
    pub attention: TextAttention,
    /// The output of attention.
    pub proj: Linear,
    /// The norm before the feed-forward part.
    pub norm2: VitNorm,
    /// The feed-forward part.
    pub mlp: VitMlp,
    /// Attends within the tower's windows instead of whole grids.
    pub windowed: bool,
    /// Norms and ranges that few families have.
    pub sandwich: Option<Sandwich>,
}

/// Norms of what a block adds to its input.
#[derive(Clone, Debug)]
pub struct Sandwich {
    /// The norm after the output of attention.
    pub post_norm1: VitNorm,
    /// The norm after the feed-forward part.
    pub post_norm2: VitNorm,
    /// Ranges of the output of attention.
    pub proj_clip: Option<Clip>,
}

/// A norm of a block.
#[derive(Clone, Debug)]
pub enum VitNorm {
    /// With mean and bias.
    Layer(LayerNorm),
    /// By root mean square.
    Rms(RmsNorm),
}

/// The feed-forward part of a block.
#[derive(Clone, Debug)]
pub enum VitMlp {
    /// Two layers.
    Plain(Mlp),
    /// Three, one of which is a gate.
    Gated(GatedMlp),
}

impl VitNorm {
    /// Normalizes each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Layer(norm) => norm.forward(x, step),
            Self::Rms(norm) => norm.forward(x, step),
        }
    }
}

impl VitBlock {
    /// Queries, keys and values of some rows, before rotation.
    pub(super) fn qkv(&self, x: &Tensor, step: &Step<'_>) -> Result<[Tensor; 3]> {
        self.qkv.forward(&self.norm1.forward(x, step)?, step)
    }

    /// Attention of the heads that share the keys `groups`, over all rows. The step's spans are the runs of patches that see
    /// each other.
    pub(super) fn attend_heads(
        &self,
        qkv: [&Tensor; 3],
        groups: &Range<usize>,
        angles: Option<&Angles>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let TextAttention { heads, kv_heads, head_dim, .. } = self.attention;
        if groups.len() == kv_heads {
            return self.attention.forward(qkv, angles, step);
        }
        let shared = heads / kv_heads;
        let part = TextAttention { heads: groups.len() * shared, kv_heads: groups.len(), ..self.attention };
        let columns = |x: &Tensor, of_group: usize| {
            step.columns(x, groups.start * of_group * head_dim, groups.len() * of_group * head_dim)
        };
        let [q, k, v] = qkv;
        part.forward([&columns(q, shared)?, &columns(k, 1)?, &columns(v, 1)?], angles, step)
    }

    /// The rest of the block after attention, for some rows: `x + proj(attn_out)`, and its feed-forward part.
    pub(super) fn rest(&self, x: &Tensor, attn_out: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        if let Some(Sandwich { post_norm1, post_norm2, proj_clip }) = &self.sandwich {
            let added = match proj_clip {
                Some(clip) => clip.forward(&self.proj, attn_out, step)?,
                None => self.proj.forward(attn_out, step)?,
            };
            let x = step.ops().add(x, &post_norm1.forward(&added, step)?)?;
            let normed = self.norm2.forward(&x, step)?;
            let added = match &self.mlp {
                VitMlp::Plain(mlp) => mlp.forward(&normed, step)?,
                VitMlp::Gated(mlp) => mlp.forward(&normed, step)?,
            };
            return step.ops().add(&x, &post_norm2.forward(&added, step)?);
        }
        let x = self.proj.add_to(x, attn_out, step)?;
        let normed = self.norm2.forward(&x, step)?;
        match &self.mlp {
            VitMlp::Plain(mlp) => mlp.add_to(&x, &normed, step),
            VitMlp::Gated(mlp) => mlp.add_to(&x, &normed, step),
        }
    }
}
