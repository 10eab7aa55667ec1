//! Runs each op on the right device of a model: the one that holds its weight or cache. Layers know nothing of this;
//! activations move along, and the device of each output is recorded.
//!
//! Model files add a layer's output to the residual stream, so both must be on one device: when a layer first reads an
//! activation that is on another device, the activation moves, for all its holders ([`Interconnect::bring`]).

use candle_core::{Device, Tensor};
use std::sync::Arc;

use crate::{
    Batch, Error, Result,
    nn::{
        backend::{Backend, Compute, Interconnect, Routed, Taken},
        spec::Rotation,
    },
};

/// The backends of a model's devices.
#[derive(Clone)]
pub(super) struct Parts {
    /// One per device; not empty.
    backends: Vec<Arc<dyn Backend>>,
    /// `None` with a single device.
    interconnect: Option<Arc<dyn Interconnect>>,
}

impl Parts {
    /// A model on one device.
    pub(super) fn one(backend: Arc<dyn Backend>) -> Self {
        Self { backends: vec![backend], interconnect: None }
    }

    /// A model spread over two or more devices.
    pub(super) fn several(backends: Vec<Arc<dyn Backend>>, interconnect: Arc<dyn Interconnect>) -> Self {
        Self { backends, interconnect: Some(interconnect) }
    }

    pub(super) fn count(&self) -> usize {
        self.backends.len()
    }

    /// The backend of device `at`.
    pub(super) fn backend(&self, at: usize) -> Result<&dyn Backend> {
        self.backends.get(at).map(|part| &**part).ok_or_else(|| Error::invalid(format!("there is no device {at}")))
    }

    /// Device `at`, for creating candle tensors.
    pub(super) fn device(&self, at: usize) -> &Device {
        self.backends.get(at).unwrap_or(&self.backends[0]).device()
    }

    /// The kernels in use, for the log.
    pub(super) fn note(&self) -> String {
        let notes = || self.backends.iter().map(|part| part.note()).collect::<Vec<_>>().join(" and ");
        self.interconnect.as_ref().and_then(|interconnect| interconnect.note()).unwrap_or_else(notes)
    }

    pub(super) fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        if let Some(interconnect) = &self.interconnect {
            interconnect.clear();
            if interconnect.begin(batch)? {
                return Ok(());
            }
        }
        self.backends.iter().try_for_each(|part| part.begin(batch))
    }

    pub(super) fn group_rows(&self, lens: &[usize]) {
        self.backends.iter().for_each(|part| part.group_rows(lens));
    }

    pub(super) fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        match &self.interconnect {
            Some(interconnect) => interconnect.warm_up(groups, run),
            None => self.backends[0].warm_up(groups, run),
        }
    }

    pub(super) fn decode(&self, batch: &Batch<'_>, run: Compute<'_>, taken: &mut Taken<'_>) -> Result<bool> {
        let Some(interconnect) = &self.interconnect else { return self.backends[0].decode(batch, run, taken) };
        interconnect.clear();
        interconnect.decode(batch, run, taken)
    }

    /// Runs an op on device `at`, to which its inputs are moved.
    pub(super) fn at<const N: usize, M: OpOutput>(
        &self,
        at: usize,
        inputs: [&Tensor; N],
        run: impl FnOnce(&dyn Backend, [&Tensor; N]) -> Result<M>,
    ) -> Result<M> {
        let Some(interconnect) = &self.interconnect else { return run(&*self.backends[0], inputs) };
        let brought = inputs.iter().map(|tensor| self.bring(tensor, at)).collect::<Result<Vec<_>>>()?;
        let brought = std::array::from_fn(|index| &brought[index]);
        run(self.backend(at)?, brought)?.each(&|tensor| interconnect.made(tensor, at))
    }

    /// Runs an op without a weight, on the latest of its inputs' devices.
    pub(super) fn near<const N: usize, M: OpOutput>(
        &self,
        inputs: [&Tensor; N],
        run: impl FnOnce(&dyn Backend, [&Tensor; N]) -> Result<M>,
    ) -> Result<M> {
        self.at(self.latest(&inputs)?, inputs, run)
    }

    /// Runs an op on device `at`, and moves its output to the device of the first input.
    pub(super) fn and_back<const N: usize>(
        &self,
        at: usize,
        inputs: [&Tensor; N],
        run: impl FnOnce(&dyn Backend, [&Tensor; N]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let home = self.latest(inputs.get(..1).unwrap_or_default())?;
        let out = self.at(at, inputs, run)?;
        self.bring(&out, home)
    }

    /// The latest of the tensors' devices, in the order of the model's layers.
    pub(super) fn latest(&self, tensors: &[&Tensor]) -> Result<usize> {
        let Some(interconnect) = &self.interconnect else { return Ok(0) };
        let places = tensors.iter().map(|tensor| interconnect.place(tensor)).collect::<Result<Vec<_>>>()?;
        Ok(places.into_iter().flatten().max().unwrap_or(0))
    }

    /// The device of a norm: its weight's, or its inputs' if none is recorded for the weight.
    pub(super) fn of_weight(&self, weight: &Tensor, inputs: &[&Tensor]) -> Result<usize> {
        let place = self.interconnect.as_ref().map(|interconnect| interconnect.place(weight)).transpose()?;
        place.flatten().map_or_else(|| self.latest(inputs), Ok)
    }

    /// Moves a tensor to the device `to`, unless it is there already.
    pub(super) fn bring(&self, tensor: &Tensor, to: usize) -> Result<Tensor> {
        let Some(interconnect) = &self.interconnect else { return Ok(tensor.clone()) };
        let brought = interconnect.bring(tensor, to)?;
        match interconnect.place(&brought)? {
            Some(place) if place != to => Err(Error::invalid(format!(
                "a tensor of shape {:?} lies on device {place} of a model, and device {to} reads it",
                brought.dims()
            ))),
            _ => Ok(brought),
        }
    }

    /// [`Self::bring`] for an optional tensor.
    pub(super) fn bring_some(&self, tensor: Option<&Tensor>, to: usize) -> Result<Option<Tensor>> {
        tensor.map(|tensor| self.bring(tensor, to)).transpose()
    }

    /// Records that a weight or cache is on device `at`.
    pub(super) fn keeps(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        match &self.interconnect {
            Some(interconnect) => interconnect.keeps(tensor, at),
            None => Ok(tensor),
        }
    }
}

/// The output of an op, whose tensors are each recorded as being on its device.
pub(super) trait OpOutput: Sized {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl OpOutput for Tensor {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        made(self)
    }
}

impl<M: OpOutput> OpOutput for Option<M> {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        self.map(|inner| inner.each(made)).transpose()
    }
}

impl<M: OpOutput> OpOutput for Vec<M> {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        self.into_iter().map(|inner| inner.each(made)).collect()
    }
}

impl<A: OpOutput, B: OpOutput> OpOutput for (A, B) {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok((self.0.each(made)?, self.1.each(made)?))
    }
}

impl OpOutput for Rotation {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { cos: made(self.cos)?, sin: made(self.sin)?, style: self.style })
    }
}

impl OpOutput for Routed {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { experts: made(self.experts)?, weights: made(self.weights)? })
    }
}
