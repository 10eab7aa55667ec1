//! On which of a model's devices a question is answered. Layers of a model that is spread know nothing of this: a question goes
//! to the device on which the weight or the cache that it is about lies, activations follow, and what comes out is known to be
//! there.
//!
//! Model files add a layer's output to the stream of the layer before, so the stream has to lie where the output does: when a
//! layer first reads an activation that lies on another device, it moves there with all who hold it ([`Interconnect::bring`]).

use candle_core::{Device, Tensor};
use std::sync::Arc;

use crate::{
    Batch, Error, Result,
    nn::{
        backend::{Backend, Compute, Interconnect, Routed, Taken},
        spec::Rotation,
    },
};

/// What computes on each of a model's devices.
#[derive(Clone)]
pub(super) struct Parts {
    /// One or more.
    backends: Vec<Arc<dyn Backend>>,
    /// What connects them; nothing where there is one.
    interconnect: Option<Arc<dyn Interconnect>>,
}

impl Parts {
    /// A model on one device.
    pub(super) fn one(backend: Arc<dyn Backend>) -> Self {
        Self { backends: vec![backend], interconnect: None }
    }

    /// A model that is spread over two devices or more.
    pub(super) fn several(backends: Vec<Arc<dyn Backend>>, interconnect: Arc<dyn Interconnect>) -> Self {
        Self { backends, interconnect: Some(interconnect) }
    }

    pub(super) fn count(&self) -> usize {
        self.backends.len()
    }

    /// What computes on one of the devices.
    pub(super) fn backend(&self, at: usize) -> Result<&dyn Backend> {
        self.backends.get(at).map(|part| &**part).ok_or_else(|| Error::invalid(format!("there is no device {at}")))
    }

    /// Where tensors of one of the devices live.
    pub(super) fn device(&self, at: usize) -> &Device {
        self.backends.get(at).unwrap_or(&self.backends[0]).device()
    }

    /// Which kernels run, for a person.
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

    /// Has a device compute with these tensors, which move to it.
    pub(super) fn at<const N: usize, M: Made>(
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

    /// The same on the latest of the devices that these tensors lie on, for what is about no weight.
    pub(super) fn near<const N: usize, M: Made>(
        &self,
        inputs: [&Tensor; N],
        run: impl FnOnce(&dyn Backend, [&Tensor; N]) -> Result<M>,
    ) -> Result<M> {
        self.at(self.latest(&inputs)?, inputs, run)
    }

    /// The same, and brings the result to where the first of these tensors was.
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

    /// The latest of the devices that tensors lie on: layers follow each other in that order.
    pub(super) fn latest(&self, tensors: &[&Tensor]) -> Result<usize> {
        let Some(interconnect) = &self.interconnect else { return Ok(0) };
        let places = tensors.iter().map(|tensor| interconnect.place(tensor)).collect::<Result<Vec<_>>>()?;
        Ok(places.into_iter().flatten().max().unwrap_or(0))
    }

    /// Where a norm is computed: where its weight lies, or else its input.
    pub(super) fn of_weight(&self, weight: &Tensor, inputs: &[&Tensor]) -> Result<usize> {
        let place = self.interconnect.as_ref().map(|interconnect| interconnect.place(weight)).transpose()?;
        place.flatten().map_or_else(|| self.latest(inputs), Ok)
    }

    /// An activation as one of the devices reads it, to which it moves if it lies elsewhere.
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

    /// The same of a tensor that there may be.
    pub(super) fn bring_some(&self, tensor: Option<&Tensor>, to: usize) -> Result<Option<Tensor>> {
        tensor.map(|tensor| self.bring(tensor, to)).transpose()
    }

    /// Takes note that a device keeps this, as a weight or a cache.
    pub(super) fn keeps(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        match &self.interconnect {
            Some(interconnect) => interconnect.keeps(tensor, at),
            None => Ok(tensor),
        }
    }
}

/// What a device has computed: tensors, each of which is now known to lie there.
pub(super) trait Made: Sized {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl Made for Tensor {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        made(self)
    }
}

impl<M: Made> Made for Option<M> {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        self.map(|inner| inner.each(made)).transpose()
    }
}

impl<M: Made> Made for Vec<M> {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        self.into_iter().map(|inner| inner.each(made)).collect()
    }
}

impl<A: Made, B: Made> Made for (A, B) {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok((self.0.each(made)?, self.1.each(made)?))
    }
}

impl Made for Rotation {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { cos: made(self.cos)?, sin: made(self.sin)?, style: self.style })
    }
}

impl Made for Routed {
    fn each(self, made: &dyn Fn(Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { experts: made(self.experts)?, weights: made(self.weights)? })
    }
}
