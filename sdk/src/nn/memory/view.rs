//! CPU tensors as slices, so that our kernels read and write candle's storage without copies.

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Shape, Storage, Tensor};
use std::{
    cell::RefCell,
    ops::{Deref, Range},
};

use crate::{Error, Result};

/// Returns the values of a dense `f32` tensor in CPU memory.
pub(in crate::nn) fn view(tensor: &Tensor) -> Result<impl Deref<Target = [f32]>> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(Error::invalid(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
    };
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) if end <= values.len() => Ok(View { storage, range: start..end }),
        _ => Err(Error::invalid(format!("a tensor of type {:?} is not f32 in the CPU's memory", tensor.dtype()))),
    }
}

/// Holds the storage's read lock while the slice is in use.
struct View<S> {
    storage: S,
    range: Range<usize>,
}

impl<S: Deref<Target = Storage>> Deref for View<S> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => &values[self.range.clone()],
            // `view` has checked the kind, and a tensor's storage never changes its kind.
            _ => &[],
        }
    }
}

/// Runs a kernel on the values of a dense `f32` tensor in place.
pub(in crate::nn) fn change(tensor: &Tensor, kernel: impl FnMut(&mut [f32]) -> Result<()>) -> Result<()> {
    Ok(tensor.inplace_op1(&InPlace(RefCell::new(kernel)))?)
}

struct InPlace<K>(RefCell<K>);

impl<K: FnMut(&mut [f32]) -> Result<()>> InplaceOp1 for InPlace<K> {
    fn name(&self) -> &'static str {
        "a kernel in place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let values = match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(values), Some((start, end))) => values.get_mut(start..end),
            _ => None,
        };
        let values = values.ok_or_else(|| candle_core::Error::Msg("a tensor is not dense and f32".into()))?;
        (self.0.borrow_mut())(values).map_err(|error| candle_core::Error::Msg(error.to_string()))
    }
}

/// Creates a CPU tensor from a kernel's result.
pub(in crate::nn) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape.into(), &Device::Cpu)?)
}

/// Copies a dense tensor's values from any device into a slice of the same length.
pub(crate) fn copy_to(tensor: &Tensor, out: &mut [f32]) -> Result<()> {
    if tensor.elem_count() != out.len() {
        return Err(Error::invalid(format!("{} values do not fill {} places", tensor.elem_count(), out.len())));
    }
    if tensor.device().is_cpu() {
        out.copy_from_slice(&view(tensor)?);
    } else {
        out.copy_from_slice(&tensor.to_vec1::<f32>()?);
    }
    Ok(())
}
