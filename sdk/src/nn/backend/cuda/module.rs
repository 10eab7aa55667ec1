//! The compiled kernels on a device: loads them, and launches them by name.
//!
//! All work of a model goes through one stream, so a launch sees what earlier ones wrote. Arguments are device
//! addresses and plain numbers, in the order of the kernel's parameters.

use candle_core::{
    CudaDevice, CudaStorage, Storage, Tensor,
    backend::BackendDevice,
    cuda_backend::{
        CudaDType,
        cudarc::{
            cublas,
            driver::{CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr, sys},
            nvrtc::Ptx,
        },
    },
    op::BackpropOp,
};
use std::{
    collections::HashMap,
    ffi::c_void,
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    capability, locked,
    memory::{Memory, failed},
};
use crate::{Error, Result};

/// The fat binaries.
const MODULES: [&[u8]; 7] = [
    include_bytes!(concat!(env!("OUT_DIR"), "/elementwise.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/products.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/experts.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/attention.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/prompt.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/texts.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/recurrence.fatbin")),
];

/// cuBLAS's default workspace size on devices of compute capability 9.0.
const WORKSPACE_BYTES: usize = 32 << 20;

/// The kernels of a device.
pub(super) struct Module {
    pub(super) device: CudaDevice,
    pub(super) stream: Arc<CudaStream>,
    pub(super) memory: Memory,
    modules: Vec<Arc<CudaModule>>,
    /// Functions launched so far.
    functions: Mutex<HashMap<String, CudaFunction>>,
    /// Maximum shared memory per block, in bytes.
    shared_max: i32,
    launches: AtomicUsize,
    /// Kernels wait for their inputs, so each may start before the previous one has ended.
    may_overlap: bool,
    /// cuBLAS's workspace. By default cuBLAS would allocate one inside the graph that a product is captured into, and
    /// use it for other products, too.
    _workspace: CudaSlice<u8>,
}

/// One of the matrices that share an activation, as in `products.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Segment {
    pub(super) data: u64,
    pub(super) scales: u64,
    pub(super) bias: u64,
    /// Address of the addend.
    pub(super) added: u64,
    pub(super) out: u64,
    pub(super) outputs: i32,
    /// End of its blocks in the grid.
    pub(super) last_block: i32,
    pub(super) format: i32,
    pub(super) unused: i32,
}

/// Up to three matrices, and the parameters of a clamped gate.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Segments {
    pub(super) of: [Segment; 3],
    pub(super) alpha: f32,
    pub(super) limit: f32,
}

/// A kernel argument.
#[derive(Clone, Copy)]
pub(super) enum Arg {
    Segments(Segments),
    Address(u64),
    Size(usize),
    Int(i32),
    Float(f32),
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<u64> for Arg {
    fn from(address: u64) -> Self {
        Self::Address(address)
    }
}

impl From<usize> for Arg {
    /// For counts that kernels take as `int`; larger ones are `Arg::Size`.
    fn from(value: usize) -> Self {
        Self::Int(i32::try_from(value).unwrap_or(i32::MAX))
    }
}

impl Arg {
    /// Pointer to the value, for the driver to read.
    fn pointer(&self) -> *mut c_void {
        match self {
            Self::Segments(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::Address(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::Size(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::Int(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::Float(value) => ptr::from_ref(value).cast_mut().cast(),
        }
    }
}
impl Drop for Module {
    /// Returns cuBLAS to its own workspace: the handle belongs to the device and may be used further by the formulas.
    fn drop(&mut self) {
        let blas = self.device.cublas_handle();
        // SAFETY: the handle and its stream live as long as the device. Setting the stream, even to the current one,
        // drops the workspace.
        let _ = unsafe { cublas::sys::cublasSetStream_v2(*blas.handle(), self.stream.cu_stream().cast()) };
    }
}

impl Module {
    pub(super) fn load(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context().clone();
        let shared_max = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(failed)?;
        // SAFETY: cuBLAS writes before it reads.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE_BYTES) }.map_err(failed)?;
        let blas = device.cublas_handle();
        let at = workspace.device_ptr(&stream).0 as *mut c_void;
        // SAFETY: the memory lives as long as the code that launches products here, on the handle's own stream.
        unsafe { cublas::sys::cublasSetWorkspace_v2(*blas.handle(), at, WORKSPACE_BYTES) }
            .result()
            .map_err(|error| failed(format!("cuBLAS: {error:?}")))?;
        let load = |binary: &&[u8]| context.load_module(Ptx::from_binary(binary.to_vec())).map_err(failed);
        Ok(Self {
            device: device.clone(),
            stream,
            memory: Memory::new(device)?,
            modules: MODULES.iter().map(load).collect::<Result<_>>()?,
            functions: Mutex::default(),
            shared_max,
            launches: AtomicUsize::new(0),
            may_overlap: capability::waits_for_inputs(device_capability(&context)?),
            _workspace: workspace,
        })
    }

    /// Returns a kernel, allowed as much shared memory as the device has per block.
    fn function(&self, name: &str) -> Result<CudaFunction> {
        let found = self.modules.iter().find_map(|module| module.load_function(name).ok());
        let function = found.ok_or_else(|| failed(format!("there is no kernel '{name}'")))?;
        let own = function
            .get_attribute(sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
            .map_err(failed)?;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, (self.shared_max - own).max(0)).map_err(failed)?;
        Ok(function)
    }

    /// Bytes of shared memory available to a block of a kernel without static shared memory.
    pub(super) fn shared_max(&self) -> usize {
        usize::try_from(self.shared_max).unwrap_or_default()
    }

    /// Number of launches so far.
    pub(super) fn launches(&self) -> usize {
        self.launches.load(Ordering::Relaxed)
    }

    /// Launches a kernel over `grid` blocks of `threads` threads.
    pub(super) fn launch(
        &self,
        name: &str,
        grid: (usize, usize, usize),
        threads: usize,
        shared_bytes: usize,
        args: &[Arg],
    ) -> Result<()> {
        let mut functions = locked(&self.functions);
        if !functions.contains_key(name) {
            functions.insert(name.to_owned(), self.function(name)?);
        }
        let Some(function) = functions.get(name) else { return Err(failed(format!("there is no kernel '{name}'"))) };
        let narrow = |value: usize| u32::try_from(value).map_err(|_| failed(format!("a grid of {value} blocks")));
        let overlap = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let mut attribute = sys::CUlaunchAttribute { id: overlap, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: narrow(grid.0)?,
            gridDimY: narrow(grid.1)?,
            gridDimZ: narrow(grid.2)?,
            blockDimX: narrow(threads)?,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: narrow(shared_bytes)?,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(self.may_overlap),
        };
        let mut pointers: Vec<*mut c_void> = args.iter().map(Arg::pointer).collect();
        self.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: each call passes the kernel's parameters in order and with the right types, with addresses of memory
        // that lives on this stream and is as large as the accompanying sizes say. The driver copies the values behind
        // the pointers.
        unsafe {
            self.stream.context().bind_to_thread().map_err(failed)?;
            sys::cuLaunchKernelEx(&raw const config, function.cu_function(), pointers.as_mut_ptr(), ptr::null_mut())
        }
        .result()
        .map_err(|error| failed(format!("{name}: {error}")))
    }

    /// Allocates memory that the next launch fills.
    pub(super) fn room<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        self.memory.room(len)
    }

    /// Copies bytes within the device.
    pub(super) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: callers pass addresses of memory on this stream that has `bytes` bytes.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.cu_stream()) }.result().map_err(failed)
    }

    /// Address of device memory.
    pub(super) fn address<T>(&self, slice: &CudaSlice<T>) -> u64 {
        slice.device_ptr(&self.stream).0
    }

    /// Address of a dense tensor's values, of type `T`. Valid while the tensor lives.
    pub(super) fn tensor<T: CudaDType>(&self, tensor: &Tensor) -> Result<u64> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { return Err(failed("a tensor lies on another device")) };
        if storage.device.location() != self.device.location() {
            return Err(failed("a tensor lies on another device"));
        }
        if !layout.is_contiguous() {
            return Err(Error::invalid(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
        }
        let start = self.address(storage.as_cuda_slice::<T>()?);
        Ok(start + (layout.start_offset() * size_of::<T>()) as u64)
    }

    /// Wraps a kernel's result as a tensor.
    pub(super) fn wrap<T: CudaDType>(&self, values: CudaSlice<T>, shape: (usize, usize)) -> Tensor {
        let storage = CudaStorage::wrap_cuda_slice(values, self.device.clone());
        let tensor = Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false);
        self.memory.keep(tensor.clone());
        tensor
    }

    /// `out = x · Wᵀ`, or `out += x · Wᵀ`, by cuBLAS, for dense 16-bit numbers: `x` is `[rows, inputs]` as written by
    /// `to_bf16` or `to_f16`, and the weight is `[outputs, inputs]`.
    pub(super) fn gemm(
        &self,
        numbers: Numbers,
        [x, weight, out]: [u64; 3],
        dims: [usize; 3],
        adds: bool,
    ) -> Result<()> {
        use cublas::{result, sys};
        let [rows, outputs, inputs] = dims.map(|dim| i32::try_from(dim).unwrap_or(i32::MAX));
        let before = if adds { 1.0f32 } else { 0.0 };
        let (kind, factor) = match numbers {
            Numbers::Bf16 => (sys::cudaDataType::CUDA_R_16BF, 1.0f32),
            Numbers::EighthsInF16 => (sys::cudaDataType::CUDA_R_16F, 8.0),
        };
        let number = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        let blas = self.device.cublas_handle();
        let f32 = sys::cudaDataType::CUDA_R_32F;
        // SAFETY: the addresses are of memory on the handle's stream, with the sizes given by `dims`.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                outputs,
                rows,
                inputs,
                number(&factor),
                weight as *const c_void,
                kind,
                inputs,
                x as *const c_void,
                kind,
                inputs,
                number(&before),
                out as *mut c_void,
                f32,
                outputs,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }
        .map_err(|error| failed(format!("cuBLAS: {error:?}")))
    }
}

/// The compute capability of a device, such as 90.
fn device_capability(context: &CudaContext) -> Result<u32> {
    let (major, minor) = context.compute_capability().map_err(failed)?;
    Ok(u32::try_from(major * 10 + minor).unwrap_or_default())
}

/// Element type of a cuBLAS product's inputs.
#[derive(Clone, Copy)]
pub(super) enum Numbers {
    Bf16,
    EighthsInF16,
}
