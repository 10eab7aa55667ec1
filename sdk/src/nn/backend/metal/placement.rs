//! Weights where the GPU reads them: in the mapped pages of the checkpoint where their alignment allows it, else copied.
//!
//! A weight is placed when it is first used, which a model does as it warms up: until then it is not known which ones are a
//! layer's experts, whose kernels take all of them in one buffer.

use candle_core::{DType, Tensor};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{driver::Driver, kernels::MetalKernels, products::alignment};
use crate::{
    Result,
    weights::{Bytes, Dtype, RawTensor},
};

/// Where copies begin, which suits what the kernels load from any format.
const COPY_ALIGNMENT: usize = 32;

/// How much larger the pages between weights may be than the weights, to be one buffer with them.
const SPAN_FACTOR: usize = 2;

/// A weight in its checkpoint's format. Clones share its place.
#[derive(Clone)]
pub(in crate::nn) struct Weight {
    pub(super) dtype: Dtype,
    bytes: u64,
    place: Arc<Mutex<Place>>,
}

enum Place {
    Unused(Bytes),
    /// With its bytes in the checkpoint, which keep the pages that it lies in; none if it is a copy.
    Device(Tensor, Option<Bytes>),
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.dtype)
    }
}

impl Weight {
    pub(super) fn new(raw: &RawTensor) -> Self {
        let place = Arc::new(Mutex::new(Place::Unused(raw.data.clone())));
        Self { dtype: raw.dtype, bytes: raw.data.len() as u64, place }
    }

    pub(in crate::nn) fn is_f32(&self) -> bool {
        self.dtype == Dtype::F32
    }

    /// Bytes, and whether they are pages of a file. Before its first use that is known by its alignment alone.
    pub(in crate::nn) fn bytes(&self) -> (u64, bool) {
        let is_mapped = match &*self.place() {
            Place::Unused(data) => data.is_in_file() && is_aligned(data, self.dtype),
            Place::Device(_, data) => data.as_ref().is_some_and(Bytes::is_in_file),
        };
        (self.bytes, is_mapped)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checkpoint's bytes; `None` if they were copied.
    fn data(&self) -> Option<Bytes> {
        match &*self.place() {
            Place::Unused(data) => Some(data.clone()),
            Place::Device(_, data) => data.clone(),
        }
    }

    fn shares_place(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.place, &other.place)
    }
}

fn is_aligned(data: &Bytes, dtype: Dtype) -> bool {
    (data.as_ptr() as usize).is_multiple_of(alignment(dtype))
}

impl<D: Driver> MetalKernels<D> {
    /// A weight's bytes on the device.
    pub(super) fn placed(&self, weight: &Weight) -> Result<Tensor> {
        let mut place = weight.place();
        let data = match &*place {
            Place::Device(tensor, _) => return Ok(tensor.clone()),
            Place::Unused(data) => data.clone(),
        };
        let (tensor, kept) = match self.driver.mapped(&data, alignment(weight.dtype))? {
            Some(tensor) => (tensor, Some(data)),
            None => (self.copied(&[data], &[0])?, None),
        };
        *place = Place::Device(tensor.clone(), kept);
        Ok(tensor)
    }

    /// Weights in one buffer, and the byte at which each begins; `None` if some have been copied before.
    pub(super) fn placed_together(&self, weights: &[&Weight]) -> Result<Option<(Tensor, Vec<usize>)>> {
        let data: Option<Vec<Bytes>> = weights.iter().map(|weight| weight.data()).collect();
        let Some(data) = data else { return Ok(None) };
        let (tensor, starts, is_mapped) = match self.spanned(weights, &data)? {
            Some((tensor, starts)) => (tensor, starts, true),
            None => {
                let starts = starts_of_copies(weights, &data);
                (self.copied(&data, &starts)?, starts, false)
            }
        };
        for ((weight, data), start) in weights.iter().zip(&data).zip(&starts) {
            // Its own bytes, not those of all: their map keeps the pages, and a later call places by them again.
            *weight.place() = Place::Device(tensor.narrow(0, *start, data.len())?, is_mapped.then(|| data.clone()));
        }
        Ok(Some((tensor, starts)))
    }

    /// The pages that have all of these, if they are of one map, close enough together and aligned.
    fn spanned(&self, weights: &[&Weight], data: &[Bytes]) -> Result<Option<(Tensor, Vec<usize>)>> {
        let Some((span, starts)) = Bytes::spanning(data) else { return Ok(None) };
        let most = SPAN_FACTOR * data.iter().map(|data| data.len()).sum::<usize>();
        let wanted = weights.iter().map(|weight| alignment(weight.dtype)).max().unwrap_or(1);
        if span.len() > most || starts.iter().any(|start| !start.is_multiple_of(wanted)) {
            return Ok(None);
        }
        Ok(self.driver.mapped(&span, wanted)?.map(|tensor| (tensor, starts)))
    }

    fn copied(&self, data: &[Bytes], starts: &[usize]) -> Result<Tensor> {
        let bytes = starts.iter().zip(data).map(|(start, data)| start + data.len()).max().unwrap_or(0);
        let tensor = self.driver.tensor(&self.driver.allocate(bytes)?, DType::U8, &[bytes])?;
        for (start, data) in starts.iter().zip(data) {
            self.driver.write(&tensor, *start, data)?;
        }
        Ok(tensor)
    }
}

/// Copies one behind the other; a weight that follows itself is copied once.
fn starts_of_copies(weights: &[&Weight], data: &[Bytes]) -> Vec<usize> {
    let (mut starts, mut end) = (Vec::with_capacity(data.len()), 0_usize);
    for (at, data) in data.iter().enumerate() {
        let is_repeated = at > 0 && weights[at].shares_place(weights[at - 1]);
        let start = if is_repeated { starts[at - 1] } else { end.next_multiple_of(COPY_ALIGNMENT) };
        starts.push(start);
        end = start + data.len();
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::backend::{Double, Formulas};
    use candle_core::Device;

    /// Weights of eight values at these places of one file.
    fn in_a_file(places: &[usize]) -> Vec<Weight> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..256).map(|at| at as u8).collect();
        std::fs::write(file.path(), content).unwrap();
        let map = Bytes::map(file.path()).unwrap();
        let weight = |place: &usize| {
            let data = map.slice(*place..place + 32).unwrap();
            Weight::new(&RawTensor { name: "weight".into(), dtype: Dtype::F32, shape: vec![8], data })
        };
        places.iter().map(weight).collect()
    }

    fn first_bytes(kernels: &MetalKernels<Double>, weights: &[Weight]) -> Vec<u8> {
        let first = |weight| kernels.placed(weight).unwrap().to_vec1::<u8>().unwrap()[0];
        weights.iter().map(first).collect()
    }

    #[test]
    fn weights_that_are_placed_together_again_keep_their_places() {
        let kernels = MetalKernels::new(Double::default(), Formulas::plain(Device::Cpu));
        let weights = in_a_file(&[32, 96, 64]);
        let all: Vec<&Weight> = weights.iter().collect();
        for _ in 0..2 {
            let (tensor, starts) = kernels.placed_together(&all).unwrap().unwrap();
            assert_eq!((starts, tensor.elem_count()), (vec![0, 64, 32], 96));
            assert_eq!(first_bytes(&kernels, &weights), [32, 96, 64]);
        }
    }

    #[test]
    fn only_weights_that_lie_in_their_file_count_as_mapped() {
        let kernels = MetalKernels::new(Double::default(), Formulas::plain(Device::Cpu));
        // The second is not aligned, and so copied.
        let weights = in_a_file(&[32, 65]);
        for _ in 0..2 {
            let is_mapped: Vec<bool> = weights.iter().map(|weight| weight.bytes().1).collect();
            assert_eq!(is_mapped, [true, false]);
            assert_eq!(first_bytes(&kernels, &weights), [32, 65]);
        }
    }

    #[test]
    fn weights_take_no_memory_beside_their_file_but_those_that_are_not_aligned() {
        let double = Double::default();
        let kernels = MetalKernels::new(double.clone(), Formulas::plain(Device::Cpu));
        // Every third one lies where no kernel can read it.
        let places: Vec<usize> = (0..6).map(|at| 36 * at + usize::from(at % 3 == 2)).collect();
        let weights = in_a_file(&places);
        for _ in 0..3 {
            first_bytes(&kernels, &weights);
        }
        let record = double.record();
        assert_eq!((&record.mapped, &record.allocations), (&vec![32; 4], &vec![32; 2]));
        // A copy lets go of its pages, so the file does not stay in memory with it.
        let keeps: Vec<bool> = weights.iter().map(|weight| weight.data().is_some()).collect();
        assert_eq!(keeps, [true, true, false, true, true, false]);
    }
}
