//! Memory for activations.
//!
//! Everything is computed on one stream, and tensors are allocated from the device's pool in stream order; while a step
//! is captured, allocating and freeing become nodes of the graph. But kernels do not overlap across such a node, which
//! costs steps with few rows a tenth of their time. So their tensors are allocated on a second stream, which is not
//! captured, and live as long as the graph: none of them share memory, and nothing else uses it between two replays.

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

/// Owners of the memory that a captured graph uses; they live as long as the graph.
pub(super) type GraphMemory = Vec<Box<dyn Any + Send>>;

/// Allocates a device's activations.
pub(super) struct Memory {
    /// The stream that kernels run on.
    computing: Arc<CudaStream>,
    /// Allocates for steps of few rows while they are captured.
    allocating: Arc<CudaStream>,
    /// Allocations of the step being captured; `None` outside captures.
    captured: Mutex<Option<GraphMemory>>,
}

impl Memory {
    pub(super) fn new(device: &CudaDevice) -> Result<Self> {
        let computing = device.cuda_stream();
        let allocating = computing.context().new_stream().map_err(failed)?;
        keep_freed_memory(computing.context().ordinal());
        Ok(Self { computing, allocating, captured: Mutex::new(None) })
    }

    /// Starts collecting the owners of all allocations, for a capture.
    pub(super) fn begin_capture(&self) {
        *locked(&self.captured) = Some(GraphMemory::new());
    }

    /// Ends the collection and returns it, once its memory is ready for use.
    pub(super) fn end_capture(&self) -> Result<GraphMemory> {
        let captured = locked(&self.captured).take();
        self.allocating.synchronize().map_err(failed)?;
        Ok(captured.unwrap_or_default())
    }

    /// Hands a value, and with it its memory, to the running capture.
    pub(super) fn keep(&self, value: impl Any + Send) {
        if let Some(captured) = locked(&self.captured).as_mut() {
            captured.push(Box::new(value));
        }
    }

    /// Allocates memory that the next launch fills. During a capture the caller passes its owner to [`Memory::keep`].
    pub(super) fn room<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        let stream = if locked(&self.captured).is_some() { &self.allocating } else { &self.computing };
        // SAFETY: a kernel writes all of it before anything reads.
        unsafe { stream.alloc::<T>(len.max(1)) }
            .map_err(|error| Error::out_of_memory(format!("the device has no room for {len} values: {error}")))
    }
}

/// Makes the device's pool keep freed memory for the next step, instead of returning it to the driver at each
/// synchronization.
fn keep_freed_memory(ordinal: usize) {
    let mut pool = std::ptr::null_mut();
    let mut most = u64::MAX;
    // SAFETY: the pool is the device's own, and the attribute is a 64-bit number. A failure only makes things slower.
    unsafe {
        let device = i32::try_from(ordinal).unwrap_or_default();
        if sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) == sys::CUresult::CUDA_SUCCESS {
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let _ = sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut most).cast());
        }
    }
}

/// Error for a failed driver call.
pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(crate::Code::Device, format!("CUDA: {error}"))
}
