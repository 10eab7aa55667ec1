//! Short causal convolutions along a sequence, channel by channel: what hybrids have in place of attention (LFM2) or before a
//! recurrence (Mamba, Qwen3-Next). The state is the last inputs, and all sequences of a step are computed at once.

mod forward;

use candle_core::Tensor;

use super::{Activation, LayerCache};

/// A convolution of each channel with its own few taps.
#[derive(Clone, Debug)]
pub struct ShortConv {
    pub(super) layer: usize,
    /// From the oldest input to the token's own, a factor for each channel: `[taps, channels]`.
    pub(super) taps: Tensor,
    pub(super) bias: Option<Tensor>,
    pub(super) activation: Option<Activation>,
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
