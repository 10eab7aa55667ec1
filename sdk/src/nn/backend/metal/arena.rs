//! The buffers of a model's activations. candle's pool rounds sizes up to powers of two and, at every read-back, gives
//! unused buffers back, each with a change of the residency set; here a buffer is allocated once and serves every later step.
//!
//! A buffer is free again when the tensors over it are dropped on the host. The GPU may still read it then, but what is
//! encoded next runs later, and the encoder puts a barrier between.

use candle_core::{DType, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::Driver;
use crate::Result;

/// Allocations of the GPU are whole pages.
const PAGE_BYTES: usize = 16 << 10;

pub(super) struct Arena<D: Driver> {
    driver: Arc<D>,
    buffers: Mutex<Vec<Arc<D::Buffer>>>,
}

impl<D: Driver> Arena<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        Self { driver, buffers: Mutex::default() }
    }

    /// A tensor of undefined values over the smallest free buffer that holds it, or over a new one.
    pub(super) fn tensor(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let bytes = dtype.size_in_bytes() * dims.iter().product::<usize>();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = buffers.iter().filter(|buffer| Arc::strong_count(buffer) == 1 && D::capacity(buffer) >= bytes);
        let buffer = match free.min_by_key(|buffer| D::capacity(buffer)) {
            Some(buffer) => buffer.clone(),
            None => {
                let buffer = self.driver.allocate(bytes.max(1).next_multiple_of(PAGE_BYTES))?;
                buffers.push(buffer.clone());
                buffer
            }
        };
        self.driver.tensor(&buffer, dtype, dims)
    }

    /// A tensor of `u32`, such as a step's slots.
    pub(super) fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        // A kernel is given a buffer even if there is nothing to read.
        let tensor = self.tensor(DType::U32, &[ids.len().max(1)])?;
        self.driver.write(&tensor, 0, bytemuck::cast_slice(ids))?;
        Ok(tensor)
    }

    /// A tensor of `f32` values.
    pub(super) fn values(&self, values: &[f32], dims: &[usize]) -> Result<Tensor> {
        let tensor = self.tensor(DType::F32, dims)?;
        self.driver.write(&tensor, 0, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Allocates for steps of `factor` times the rows of those so far, of whose buffers the host wants one for few rows only.
    pub(super) fn provide(&self, factor: usize, except_bytes: usize) -> Result<()> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let except = except_bytes.next_multiple_of(PAGE_BYTES);
        let sizes: Vec<usize> =
            buffers.iter().map(|buffer| D::capacity(buffer)).filter(|size| *size != except).collect();
        for bytes in sizes {
            buffers.push(self.driver.allocate(bytes * factor)?);
        }
        Ok(())
    }
}
