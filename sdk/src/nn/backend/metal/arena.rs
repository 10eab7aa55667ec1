//! The buffers of a model's activations. candle's pool rounds sizes up to powers of two and, at every read-back, gives
//! unused buffers back, each with a change of the residency set; here a buffer is allocated once and serves every later step.
//!
//! A buffer is free again when the tensors over it are dropped on the host. The GPU may still read it then, but what is
//! encoded next runs later, and the encoder puts a barrier between. That holds for kernels only: the host writes at once. So what it
//! writes has buffers of its own, each of which serves again when the GPU has finished.

use candle_core::{DType, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::Driver;
use crate::Result;

/// Allocations of the GPU are whole pages.
const PAGE_BYTES: usize = 16 << 10;

pub(super) struct Arena<D: Driver> {
    driver: Arc<D>,
    buffers: Mutex<Vec<Arc<D::Buffer>>>,
    written: Mutex<Written<D::Buffer>>,
}

/// Buffers that the host writes.
struct Written<B> {
    buffers: Vec<Arc<B>>,
    /// Those of them that what is encoded may read.
    held: Vec<Arc<B>>,
}

impl<D: Driver> Arena<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        let written = Mutex::new(Written { buffers: Vec::new(), held: Vec::new() });
        Self { driver, buffers: Mutex::default(), written }
    }

    /// A tensor of undefined values over the smallest free buffer that holds it, or over a new one.
    pub(super) fn tensor(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        self.driver.tensor(&self.free(&mut buffers, dtype, dims)?, dtype, dims)
    }

    fn free(&self, buffers: &mut Vec<Arc<D::Buffer>>, dtype: DType, dims: &[usize]) -> Result<Arc<D::Buffer>> {
        let bytes = dtype.size_in_bytes() * dims.iter().product::<usize>();
        let free = buffers.iter().filter(|buffer| Arc::strong_count(buffer) == 1 && D::capacity(buffer) >= bytes);
        if let Some(buffer) = free.min_by_key(|buffer| D::capacity(buffer)) {
            return Ok(buffer.clone());
        }
        let buffer = self.driver.allocate(bytes.max(1).next_multiple_of(PAGE_BYTES))?;
        buffers.push(buffer.clone());
        Ok(buffer)
    }

    /// A tensor of these bytes.
    fn holding(&self, bytes: &[u8], dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = self.free(&mut written.buffers, dtype, dims)?;
        written.held.push(buffer.clone());
        let tensor = self.driver.tensor(&buffer, dtype, dims)?;
        self.driver.write(&tensor, 0, bytes)?;
        Ok(tensor)
    }

    /// The GPU has finished, so nothing reads what the host wrote, unless it still has the tensor.
    pub(super) fn release(&self) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).held.clear();
    }

    /// A tensor of `u32`, such as a step's slots.
    pub(super) fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        // A kernel is given a buffer even if there is nothing to read.
        self.holding(bytemuck::cast_slice(ids), DType::U32, &[ids.len().max(1)])
    }

    /// A tensor of `f32` values.
    pub(super) fn values(&self, values: &[f32], dims: &[usize]) -> Result<Tensor> {
        self.holding(bytemuck::cast_slice(values), DType::F32, dims)
    }

    /// Allocates for steps of `factor` times the rows of those so far, of whose buffers the host wants one for few rows only.
    pub(super) fn provide(&self, factor: usize, except_bytes: usize) -> Result<()> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let except = except_bytes.next_multiple_of(PAGE_BYTES);
        let sizes = |buffers: &[Arc<D::Buffer>]| buffers.iter().map(|buffer| D::capacity(buffer)).collect::<Vec<_>>();
        let (mut computed, kept) = (sizes(&buffers), sizes(&written.buffers));
        if let Some(place) = computed.iter().position(|size| *size == except) {
            computed.swap_remove(place);
        }
        for (buffers, sizes) in [(&mut *buffers, computed), (&mut written.buffers, kept)] {
            for bytes in sizes {
                buffers.push(self.driver.allocate(bytes * factor)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::{
        super::{double::Double, driver::Arg, kernels::MetalKernels, products::EmbedShape},
        *,
    };
    use crate::{
        nn::backend::{Backend, Formulas},
        weights::Dtype,
    };

    #[test]
    fn what_the_host_writes_stays_until_the_gpu_has_finished() {
        let driver = Double::default();
        let arena = Arena::new(Arc::new(driver.clone()));
        let allocations = || driver.record().allocations.len();
        drop(arena.tensor(DType::F32, &[8]).unwrap());
        // Neither what a kernel may still write nor what one may still read is written over.
        drop(arena.ids(&[1, 2]).unwrap());
        drop(arena.values(&[1.0], &[1]).unwrap());
        assert_eq!(allocations(), 3);
        arena.release();
        let ids = arena.ids(&[3]).unwrap();
        drop(arena.values(&[2.0], &[1]).unwrap());
        assert_eq!(allocations(), 3);
        arena.release();
        drop((arena.ids(&[4]).unwrap(), arena.ids(&[5]).unwrap()));
        assert_eq!((allocations(), ids.to_vec1::<u32>().unwrap()), (4, vec![3]));
    }

    const WIDTH: usize = 8;

    /// Kernels that run when the host waits, and a table whose row `i` has `i` alone.
    fn deferred() -> (MetalKernels<Double>, Tensor) {
        let double = Double::default();
        double.record().is_deferred = true;
        let rows: Vec<f32> = (0..4 * WIDTH).map(|at| (at / WIDTH) as f32).collect();
        let table = Tensor::from_vec(rows, (4, WIDTH), &Device::Cpu).unwrap();
        (MetalKernels::new(double, Formulas::plain(Device::Cpu)), table)
    }

    fn read(kernels: &MetalKernels<Double>, row: &Tensor) -> [f32; WIDTH] {
        let mut values = [f32::NAN; WIDTH];
        kernels.read(row, &mut values).unwrap();
        values
    }

    #[test]
    fn ids_that_are_written_over_before_the_gpu_has_finished_show() {
        let (kernels, table) = deferred();
        for (is_mistaken, expected) in [(false, 1.0), (true, 2.0)] {
            let first = kernels.rows_at(&table, &[1]).unwrap().unwrap();
            if is_mistaken {
                kernels.arena.release();
            }
            let second = kernels.rows_at(&table, &[2]).unwrap().unwrap();
            assert_eq!(read(&kernels, &first), [expected; WIDTH]);
            assert_eq!(read(&kernels, &second), [2.0; WIDTH]);
        }
    }

    #[test]
    fn a_buffer_that_is_given_to_a_second_tensor_too_early_shows() {
        let (kernels, table) = deferred();
        for (is_mistaken, expected) in [(false, 1.0), (true, 2.0)] {
            let buffer = kernels.driver.allocate(4 * WIDTH).unwrap();
            let other = if is_mistaken { buffer.clone() } else { kernels.driver.allocate(4 * WIDTH).unwrap() };
            let rows = [(1, buffer), (2, other)].map(|(row, buffer)| {
                let out = kernels.driver.tensor(&buffer, DType::F32, &[1, WIDTH]).unwrap();
                let (shape, ids) = (EmbedShape::new(1, WIDTH, Dtype::F32).unwrap(), kernels.arena.ids(&[row]).unwrap());
                let args =
                    [Arg::Read(&table), Arg::Read(&ids), Arg::Bytes(bytemuck::bytes_of(&shape)), Arg::Written(&out)];
                kernels.launch(&shape.launch(), &args).unwrap();
                out
            });
            assert_eq!(read(&kernels, &rows[0]), [expected; WIDTH]);
        }
    }
}
