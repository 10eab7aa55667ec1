//! What connects the devices of a model that is spread over several.

use candle_core::Tensor;

use super::{Compute, Taken};
use crate::{Batch, Result};

/// What knows where tensors lie and moves them.
pub(in crate::nn) trait Interconnect: Send + Sync {
    /// On which of the devices a tensor lies; none for one that may be read from all.
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>>;

    /// The tensor as the device `to` reads it. If it lay elsewhere, it has moved: whoever holds it finds it on that device, too.
    fn bring(&self, tensor: &Tensor, to: usize) -> Result<Tensor>;

    /// Takes note that a device has computed this.
    fn made(&self, tensor: Tensor, _at: usize) -> Result<Tensor> {
        Ok(tensor)
    }

    /// Takes note that a device keeps this, as a weight or a cache.
    fn keeps(&self, tensor: Tensor, _at: usize) -> Result<Tensor> {
        Ok(tensor)
    }

    /// Forgets what was moved in the step before.
    fn clear(&self);

    /// Which kernels run, where they do not on each device by itself.
    fn note(&self) -> Option<String> {
        None
    }

    /// As [`super::Backend::begin`], where devices do not begin by themselves.
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
