//! Short causal depthwise convolutions along a sequence, which hybrids use instead of attention (LFM2) or before a
//! recurrence (Mamba, Qwen3-Next). The state is the last inputs, and all sequences of a step are computed at once.

use candle_core::Tensor;

use crate::nn::{Activation, LayerCache};

/// A causal depthwise convolution.
#[derive(Clone, Debug)]
pub struct ShortConv {
    pub(in crate::nn) layer: usize,
    /// The part of the layer's state that holds the last inputs.
    pub(in crate::nn) part: usize,
    /// `[taps, channels]`; the last tap is for the token's own input.
    pub(in crate::nn) taps: Tensor,
    pub(in crate::nn) bias: Option<Tensor>,
    pub(in crate::nn) activation: Option<Activation>,
}

impl ShortConv {
    /// The state per sequence: the last `taps − 1` inputs.
    pub fn cache(channels: usize, taps: usize) -> LayerCache {
        LayerCache::State(channels.saturating_mul(taps.saturating_sub(1)))
    }

    /// Keeps the last inputs in this part of the layer's state rather than in the first.
    pub fn in_part(self, part: usize) -> Self {
        Self { part, ..self }
    }

    /// Adds an activation function after the convolution.
    pub fn activated(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }
}
