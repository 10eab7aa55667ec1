//! Memory for activations.
//!
//! Everything is computed on one stream, and tensors are allocated from the device's pool in stream order; while a step is
//! captured, allocating and freeing become nodes of the graph. But kernels do not overlap across such a node, which costs steps of
//! few rows a tenth of their time. So their tensors are allocated on a second stream, which is not captured, and live as long as
//! the graph: no two share memory, and nothing else uses it between two replays.

use candle_core::{
    CudaDevice,
    cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, sys},
};
use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use super::locked;
use crate::{Error, Result};

/// The memory of a graph's activations, which lives as long as the graph.
pub(super) type Kept = Vec<Box<dyn Any + Send>>;

/// The allocator of a device's activations.
pub(super) struct Memory {
    /// The stream that computes.
    computing: Arc<CudaStream>,
    /// The stream on which steps of few rows allocate while they are captured.
    aside: Arc<CudaStream>,
    /// The allocations of the step that is being captured; `None` outside of captures.
    kept: Mutex<Option<Kept>>,
}

impl Memory {
    pub(super) fn new(device: &CudaDevice) -> Result<Self> {
        let computing = device.cuda_stream();
        let aside = computing.context().new_stream().map_err(failed)?;
        keep_freed_memory(computing.context().ordinal());
        Ok(Self { computing, aside, kept: Mutex::new(None) })
    }

    /// Starts keeping all allocations, for a capture.
    pub(super) fn keep_all(&self) {
        *locked(&self.kept) = Some(Kept::new());
    }

    /// Ends a capture's allocations and returns them, once they are ready for use.
    pub(super) fn take_kept(&self) -> Result<Kept> {
        let kept = locked(&self.kept).take();
        self.aside.synchronize().map_err(failed)?;
        Ok(kept.unwrap_or_default())
    }

    /// Keeps a value that owns memory, if a capture is running.
    pub(super) fn keep(&self, value: impl Any + Send) {
        if let Some(kept) = locked(&self.kept).as_mut() {
            kept.push(Box::new(value));
        }
    }

    /// Allocates memory that the next launch fills. During a capture the caller passes its owner to [`Memory::keep`].
    pub(super) fn room<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        let stream = if locked(&self.kept).is_some() { &self.aside } else { &self.computing };
        // SAFETY: a kernel writes all of it before anything reads.
        unsafe { stream.alloc::<T>(len.max(1)) }
            .map_err(|error| Error::out_of_memory(format!("the device has no room for {len} values: {error}")))
    }
}

/// Has the device's pool keep freed memory for the next step, instead of returning it to the driver at each synchronization.
fn keep_freed_memory(ordinal: usize) {
    let mut pool = std::ptr::null_mut();
    let mut most = u64::MAX;
    // SAFETY: the pool is the device's own, and the attribute is a 64-bit number. A failure leaves things slower, no more.
    unsafe {
        let device = i32::try_from(ordinal).unwrap_or_default();
        if sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) == sys::CUresult::CUDA_SUCCESS {
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let _ = sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut most).cast());
        }
    }
}

/// Error for a failed call of the driver.
pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(crate::Code::Device, format!("CUDA: {error}"))
}
