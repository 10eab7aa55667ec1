//! Transfers between the devices of a model that is spread over several.

use candle_core::Tensor;

use super::{Compute, Taken};
use crate::{Batch, Result};

/// Tracks the device of each tensor, and moves tensors.
pub(in crate::nn) trait Interconnect: Send + Sync {
    /// Index of a tensor's device; `None` for tensors that all devices can read.
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>>;

    /// Moves a tensor to the device `to`, unless it is there already, for all its holders.
    fn bring(&self, tensor: &Tensor, to: usize) -> Result<Tensor>;

    /// Records that a tensor was computed on device `at`.
    fn made(&self, tensor: Tensor, _at: usize) -> Result<Tensor> {
        Ok(tensor)
    }

    /// Records that a weight or cache is on device `at`.
    fn keeps(&self, tensor: Tensor, _at: usize) -> Result<Tensor> {
        Ok(tensor)
    }

    /// Forgets the activations of the previous step.
    fn clear(&self);

    /// The kernels in use, for the log, if they span devices.
    fn note(&self) -> Option<String> {
        None
    }

    /// As [`super::Backend::begin`]; `false` leaves it to each device's backend.
    fn begin(&self, _batch: &Batch<'_>) -> Result<bool> {
        Ok(false)
    }

    /// As [`super::Backend::warm_up`].
    fn warm_up(&self, _groups: usize, _run: Compute<'_>) -> Result<()> {
        Ok(())
    }

    /// As [`super::Backend::decode`].
    fn decode(&self, _batch: &Batch<'_>, _run: Compute<'_>, _taken: &mut Taken<'_>) -> Result<bool> {
        Ok(false)
    }
}
