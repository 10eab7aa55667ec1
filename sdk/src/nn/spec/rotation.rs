//! Rotation angles of a step.

use candle_core::Tensor;

use crate::weights::RopeStyle;

/// Sines and cosines that rotate a step's heads: `[tokens, rotated values / 2]` each.
#[derive(Clone, Debug)]
pub(in crate::nn) struct Rotation {
    pub(in crate::nn) cos: Tensor,
    pub(in crate::nn) sin: Tensor,
    pub(in crate::nn) style: RopeStyle,
}
