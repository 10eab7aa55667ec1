//! Apple's driver. Dispatches go into candle's command buffer: model files and formulas use candle's ops between ours, and
//! only candle's encoder puts both in order. It tracks which buffers were written, and places barriers.

use candle_core::{DType, Device, MetalDevice, MetalStorage, Storage, Tensor, op::BackpropOp};
use candle_metal_kernels::metal::{Buffer, ComputeCommandEncoder, ComputePipeline};
use objc2::rc::Retained;
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLGPUFamily, MTLMathMode, MTLResource, MTLResourceOptions,
    MTLSize, MTLStorageMode,
};
use std::{
    collections::HashMap,
    ffi::c_void,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    driver::{Arg, Driver},
    figures::{Figures, cores_of, refusal},
    kernels::{MetalKernels, failed},
    launch::Launch,
    libraries::{LIBRARIES, Math},
    window::Window,
};
use crate::{
    Error, Result,
    nn::backend::{Backend, Formulas},
    weights::Bytes,
};

/// As candle allocates, whose encoder orders the use of buffers that Metal does not track.
const SHARED: MTLResourceOptions =
    MTLResourceOptions(MTLResourceOptions::StorageModeShared.0 | MTLResourceOptions::HazardTrackingModeUntracked.0);

/// Our kernels, if they compute what the formulas do on this device.
pub(in crate::nn) fn proved(device: &Device) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(MetalKernels::on(Apple::new(device)?, Formulas::probed(device.clone(), None))?))
}

/// Memory that a model on this device may take.
pub(in crate::nn) fn free_bytes(device: &MetalDevice) -> u64 {
    let device = device.metal_device();
    let figures = Figures {
        recommended: device.recommended_max_working_set_size() as u64,
        wired_limit_mb: system_figure(c"iogpu.wired_limit_mb").unwrap_or(0),
        allocated: device.current_allocated_size() as u64,
        memory: system_figure(c"hw.memsize").unwrap_or(u64::MAX),
        available_percent: system_figure(c"kern.memorystatus_level"),
    };
    figures.free()
}

/// A number that the system gives by name.
fn system_figure(name: &std::ffi::CStr) -> Option<u64> {
    let (mut value, mut size) = (0_u64, size_of::<u64>());
    // SAFETY: `value` has `size` bytes, and the name ends with a zero. Where the number is shorter, it fills the lower bytes.
    let result =
        unsafe { libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &raw mut size, std::ptr::null_mut(), 0) };
    (result == 0).then_some(value)
}

/// The compiler's options for a library.
pub(super) fn options_of(math: Math) -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setMathMode(match math {
        Math::Fast => MTLMathMode::Fast,
        Math::Safe => MTLMathMode::Safe,
    });
    options
}

struct Apple {
    metal: MetalDevice,
    cores: usize,
    /// By kernel, or the compiler's complaint.
    pipelines: HashMap<&'static str, Result<ComputePipeline, String>>,
    /// Buffers in the residency set.
    resident: Mutex<Vec<Buffer>>,
}

impl Apple {
    fn new(device: &Device) -> Result<Self> {
        let metal = device.as_metal_device()?.clone();
        if let Some(why) = refusal(metal.metal_device().as_ref().supportsFamily(MTLGPUFamily::Apple7)) {
            return Err(failed(why));
        }
        let mut pipelines = HashMap::new();
        for library in LIBRARIES {
            let compiled =
                metal.metal_device().new_library_with_source(library.source, Some(&options_of(library.math)));
            for name in library.kernels {
                let pipeline = compiled.as_ref().map_err(|error| format!("library '{}': {error}", library.name));
                let pipeline = pipeline.and_then(|compiled| {
                    let function = compiled.get_function(name, None).map_err(|error| error.to_string())?;
                    let pipeline = metal.metal_device().new_compute_pipeline_state_with_function(&function);
                    pipeline.map_err(|error| error.to_string())
                });
                pipelines.insert(*name, pipeline);
            }
        }
        let cores = cores_of(&metal.metal_device().architecture_name());
        Ok(Self { metal, cores, pipelines, resident: Mutex::default() })
    }

    /// Makes a buffer resident.
    fn keep(&self, buffer: Buffer) -> Arc<Buffer> {
        self.metal.register_buffers([&buffer]);
        self.resident.lock().unwrap_or_else(PoisonError::into_inner).push(buffer.clone());
        Arc::new(buffer)
    }

    /// Calls `run` with the address of a tensor's bytes and their number; `None` if the host cannot see them.
    fn with_memory<T>(&self, tensor: &Tensor, run: impl FnOnce(*mut u8, usize) -> T) -> Result<Option<T>> {
        let (storage, _) = tensor.storage_and_layout();
        let Storage::Metal(storage) = &*storage else { return Err(failed("a tensor lies on another device")) };
        let buffer = storage.buffer();
        if buffer.as_ref().storageMode() != MTLStorageMode::Shared {
            return Ok(None);
        }
        Ok(Some(run(buffer.contents(), buffer.length())))
    }
}

impl Driver for Apple {
    type Buffer = Buffer;

    fn allocate(&self, bytes: usize) -> Result<Arc<Buffer>> {
        let buffer = self.metal.metal_device().new_buffer(bytes, SHARED);
        let buffer = buffer.map_err(|error| Error::out_of_memory(format!("Metal: {bytes} bytes: {error}")))?;
        Ok(self.keep(buffer))
    }

    fn mapped(&self, bytes: &Bytes, alignment: usize) -> Result<Option<Tensor>> {
        let address = bytes.as_ptr() as usize;
        let window = Window::around(address, bytes.len());
        if address.is_multiple_of(alignment)
            && let Some(start) = NonNull::new(window.start as *mut c_void)
            // SAFETY: `bytes` is a range of a mapping, which has whole pages, and the caller keeps it as long as the tensor.
            && let Some(buffer) = unsafe {
                let device = self.metal.metal_device().as_ref();
                device.newBufferWithBytesNoCopy_length_options_deallocator(start, window.bytes, SHARED, None)
            }
        {
            let buffer = self.keep(Buffer::new(buffer));
            let tensor = self.tensor(&buffer, DType::U8, &[window.bytes])?;
            return Ok(Some(tensor.narrow(0, address - window.start, bytes.len())?));
        }
        Ok(None)
    }

    fn capacity(buffer: &Buffer) -> usize {
        buffer.length()
    }

    fn tensor(&self, buffer: &Arc<Buffer>, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let storage = MetalStorage::new(buffer.clone(), self.metal.clone(), dims.iter().product(), dtype);
        Ok(Tensor::from_storage(Storage::Metal(storage), dims, BackpropOp::none(), false))
    }

    fn cores(&self) -> usize {
        self.cores
    }

    fn takes(&self, launch: &Launch) -> bool {
        let pipeline = self.pipelines.get(launch.kernel).and_then(|pipeline| pipeline.as_ref().ok());
        pipeline.is_some_and(|pipeline| pipeline.as_ref().maxTotalThreadsPerThreadgroup() >= launch.threads)
    }

    fn launch(&self, launch: &Launch, args: &[Arg<'_>]) -> Result<()> {
        let missing = || failed(format!("there is no kernel '{}'", launch.kernel));
        let pipeline = self.pipelines.get(launch.kernel).ok_or_else(missing)?.as_ref().map_err(failed)?;
        let guard = self.metal.command_encoder()?;
        let encoder: &ComputeCommandEncoder = guard.as_ref();
        encoder.set_compute_pipeline_state(pipeline);
        for (index, arg) in args.iter().enumerate() {
            let (Arg::Read(tensor) | Arg::Written(tensor)) = arg else {
                if let Arg::Bytes(bytes) = arg {
                    encoder.set_bytes_directly(index, bytes.len(), bytes.as_ptr().cast());
                }
                continue;
            };
            let (storage, layout) = tensor.storage_and_layout();
            let Storage::Metal(storage) = &*storage else { return Err(failed("a tensor lies on another device")) };
            if !layout.is_contiguous() {
                return Err(Error::invalid(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
            }
            let offset = layout.start_offset() * tensor.dtype().size_in_bytes();
            match arg {
                Arg::Written(_) => encoder.set_output_buffer(index, Some(storage.buffer()), offset),
                _ => encoder.set_input_buffer(index, Some(storage.buffer()), offset),
            }
        }
        if launch.shared_bytes > 0 {
            encoder.set_threadgroup_memory_length(0, launch.shared_bytes);
        }
        let [width, height, depth] = launch.groups;
        let threads = MTLSize { width: launch.threads, height: 1, depth: 1 };
        encoder.dispatch_thread_groups(MTLSize { width, height, depth }, threads);
        Ok(())
    }

    /// candle looks at every command buffer here, while its own read-back looks at the last alone.
    fn finish(&self) -> Result<()> {
        Ok(self.metal.wait_until_completed()?)
    }

    fn read(&self, tensor: &Tensor, from: usize, bytes: &mut [u8]) -> Result<bool> {
        let read = self.with_memory(tensor, |memory, length| {
            if from.checked_add(bytes.len()).is_none_or(|end| end > length) {
                return false;
            }
            // SAFETY: the buffer has these bytes, and nothing writes them: what was encoded has been waited for.
            unsafe { memory.add(from).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            true
        })?;
        Ok(read == Some(true))
    }

    fn write(&self, tensor: &Tensor, to: usize, bytes: &[u8]) -> Result<()> {
        let written = self.with_memory(tensor, |memory, length| {
            if to.checked_add(bytes.len()).is_none_or(|end| end > length) {
                return false;
            }
            // SAFETY: the buffer has these bytes, and neither a dispatch nor the host uses them now.
            unsafe { memory.add(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            true
        })?;
        if written == Some(true) { Ok(()) } else { Err(failed(format!("{} bytes do not fit at {to}", bytes.len()))) }
    }

    fn zero(&self, tensor: &Tensor) -> Result<()> {
        // SAFETY: the buffer is that long, and neither a dispatch nor the host uses it now.
        let zeroed = self.with_memory(tensor, |memory, length| unsafe { memory.write_bytes(0, length) })?;
        zeroed.ok_or_else(|| failed("a buffer is not shared with the host"))
    }
}

impl Drop for Apple {
    fn drop(&mut self) {
        // The residency set would keep the buffers.
        let resident = std::mem::take(self.resident.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.metal.unregister_buffers(&resident);
    }
}
