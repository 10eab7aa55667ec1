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
    is_in_file: bool,
    place: Arc<Mutex<Place>>,
}

enum Place {
    Unused(Bytes),
    /// With the pages that the tensor lies in; none if it is a copy.
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
        Self { dtype: raw.dtype, bytes: raw.data.len() as u64, is_in_file: raw.data.is_in_file(), place }
    }

    pub(in crate::nn) fn is_f32(&self) -> bool {
        self.dtype == Dtype::F32
    }

    /// Bytes, and whether they are pages of a file.
    pub(in crate::nn) fn bytes(&self) -> (u64, bool) {
        (self.bytes, self.is_in_file)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checkpoint's bytes; `None` if they were copied.
    fn data(&self) -> Option<Bytes> {
        match &*self.place() {
            Place::Unused(data) => Some(data.clone()),
            Place::Device(_, pages) => pages.clone(),
        }
    }

    fn shares_place(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.place, &other.place)
    }
}

impl<D: Driver> MetalKernels<D> {
    /// A weight's bytes on the device.
    pub(super) fn placed(&self, weight: &Weight) -> Result<Tensor> {
        let mut place = weight.place();
        let data = match &*place {
            Place::Device(tensor, _) => return Ok(tensor.clone()),
            Place::Unused(data) => data.clone(),
        };
        let (tensor, pages) = match self.driver.mapped(&data, alignment(weight.dtype))? {
            Some(tensor) => (tensor, Some(data)),
            None => (self.copied(&[data], &[0])?, None),
        };
        *place = Place::Device(tensor.clone(), pages);
        Ok(tensor)
    }

    /// Weights in one buffer, and the byte at which each begins; `None` if some have been copied before.
    pub(super) fn placed_together(&self, weights: &[&Weight]) -> Result<Option<(Tensor, Vec<usize>)>> {
        let data: Option<Vec<Bytes>> = weights.iter().map(|weight| weight.data()).collect();
        let Some(data) = data else { return Ok(None) };
        let (tensor, starts, pages) = match self.spanned(weights, &data)? {
            Some((tensor, starts, pages)) => (tensor, starts, Some(pages)),
            None => {
                let starts = starts_of_copies(weights, &data);
                (self.copied(&data, &starts)?, starts, None)
            }
        };
        for ((weight, data), start) in weights.iter().zip(&data).zip(&starts) {
            *weight.place() = Place::Device(tensor.narrow(0, *start, data.len())?, pages.clone());
        }
        Ok(Some((tensor, starts)))
    }

    /// The pages that have all of these, if they are of one map, close enough together and aligned.
    fn spanned(&self, weights: &[&Weight], data: &[Bytes]) -> Result<Option<(Tensor, Vec<usize>, Bytes)>> {
        let Some((span, starts)) = Bytes::spanning(data) else { return Ok(None) };
        let most = SPAN_FACTOR * data.iter().map(|data| data.len()).sum::<usize>();
        let wanted = weights.iter().map(|weight| alignment(weight.dtype)).max().unwrap_or(1);
        if span.len() > most || starts.iter().any(|start| !start.is_multiple_of(wanted)) {
            return Ok(None);
        }
        Ok(self.driver.mapped(&span, wanted)?.map(|tensor| (tensor, starts, span)))
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
