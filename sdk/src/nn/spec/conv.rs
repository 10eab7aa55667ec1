//! Short causal convolutions along a sequence, channel by channel: what hybrids have in place of attention (LFM2) or before a
//! recurrence (Mamba, Qwen3-Next). The state is the last inputs, and all sequences of a step are computed at once.

use candle_core::Tensor;

use crate::nn::{Activation, LayerCache};

/// A convolution of each channel with its own few taps.
#[derive(Clone, Debug)]
pub struct ShortConv {
    pub(in crate::nn) layer: usize,
    /// From the oldest input to the token's own, a factor for each channel: `[taps, channels]`.
    pub(in crate::nn) taps: Tensor,
    pub(in crate::nn) bias: Option<Tensor>,
    pub(in crate::nn) activation: Option<Activation>,
}

impl ShortConv {
    /// What a convolution remembers of a sequence; it has two taps at least.
    pub fn cache(channels: usize, taps: usize) -> LayerCache {
        LayerCache::State(channels.saturating_mul(taps.saturating_sub(1)))
    }

    /// The convolution with an activation function behind it.
    pub fn activated(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }
}
