//! The compiled kernels on a device: loading them, and launching one by name.
//!
//! All work of a model goes through one stream, so that a launch sees what earlier ones wrote. Arguments are device
//! addresses and plain numbers, in the order of the kernel's parameters.

use candle_core::{
    CudaDevice, CudaStorage, DType, Storage, Tensor,
    cuda_backend::{
        CudaDType,
        cudarc::{
            driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, sys},
            nvrtc::Ptx,
        },
    },
    op::BackpropOp,
};
use std::{collections::HashMap, ffi::c_void, sync::Arc};

use crate::{Error, Result};

/// The fat binaries and the kernels in each.
const MODULES: [(&[u8], &[&str]); 4] = [
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/elementwise.fatbin")),
        &[
            "rms_norm",
            "layer_norm",
            "angles",
            "rotate",
            "activate",
            "gate",
            "add_bias",
            "prepare",
            "to_bf16",
            "rows_f32",
            "rows_f16",
            "rows_bf16",
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/products.fatbin")),
        &[
            "product_q4k_1",
            "product_q4k_2",
            "product_q4k_4",
            "product_q5k_1",
            "product_q5k_2",
            "product_q5k_4",
            "product_q6k_1",
            "product_q6k_2",
            "product_q6k_4",
            "product_q80_1",
            "product_q80_2",
            "product_q80_4",
            "product_bf16_1",
            "product_bf16_2",
            "product_bf16_4",
            "unpack_q4k",
            "rows_q4k",
            "unpack_q5k",
            "rows_q5k",
            "unpack_q6k",
            "rows_q6k",
            "unpack_q80",
            "rows_q80",
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/attention.fatbin")),
        &[
            "store_f16",
            "store_f32",
            "attend_f16_1",
            "attend_f16_2",
            "attend_f16_4",
            "attend_f16_8",
            "attend_f32_1",
            "attend_f32_2",
            "attend_f32_4",
            "attend_f32_8",
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/prompt.fatbin")),
        &["attend_tiles_64", "attend_tiles_80", "attend_tiles_96", "attend_tiles_128"],
    ),
];

/// Memory that a block may ask for without a word to the driver.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;

/// The kernels of a device.
pub(super) struct Module {
    pub(super) device: CudaDevice,
    pub(super) stream: Arc<CudaStream>,
    functions: HashMap<&'static str, CudaFunction>,
}

/// One of the matrices that share an activation, as `products.cu` has it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Segment {
    pub(super) data: u64,
    pub(super) scales: u64,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) outputs: i32,
    /// The end of its blocks in the grid.
    pub(super) last_block: i32,
}

/// Up to three of them.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Segments(pub(super) [Segment; 3]);

// SAFETY: plain numbers in C's layout, which a kernel takes by value.
unsafe impl DeviceRepr for Segments {}

/// An argument of a kernel.
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
    /// Counts that kernels take as `int`; those that may be larger are `Arg::Size`.
    fn from(value: usize) -> Self {
        Self::Int(i32::try_from(value).unwrap_or(i32::MAX))
    }
}

pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(crate::Code::Device, format!("CUDA: {error}"))
}

impl Module {
    /// Loads the kernels, each allowed as much shared memory as the device has for a block.
    pub(super) fn load(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context().clone();
        keep_freed_memory(context.ordinal());
        let most = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(failed)?;
        let mut functions = HashMap::new();
        for (binary, names) in MODULES {
            let module = context.load_module(Ptx::from_binary(binary.to_vec())).map_err(failed)?;
            for &name in names {
                let function = module.load_function(name).map_err(failed)?;
                let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                let own = function
                    .get_attribute(sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
                    .map_err(failed)?;
                function.set_attribute(attribute, (most - own).max(0)).map_err(failed)?;
                functions.insert(name, function);
            }
        }
        Ok(Self { device: device.clone(), stream, functions })
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
        let function = self.functions.get(name).ok_or_else(|| failed(format!("there is no kernel '{name}'")))?;
        let narrow = |value: usize| u32::try_from(value).map_err(|_| failed(format!("a grid of {value} blocks")));
        let config = LaunchConfig {
            grid_dim: (narrow(grid.0)?, narrow(grid.1)?, narrow(grid.2)?),
            block_dim: (narrow(threads)?, 1, 1),
            shared_mem_bytes: narrow(shared_bytes)?,
        };
        debug_assert!(config.shared_mem_bytes <= 4 * SHARED_BYTES_PLAIN);
        let mut launch = self.stream.launch_builder(function);
        for arg in args {
            match arg {
                Arg::Segments(value) => launch.arg(value),
                Arg::Address(value) => launch.arg(value),
                Arg::Size(value) => launch.arg(value),
                Arg::Int(value) => launch.arg(value),
                Arg::Float(value) => launch.arg(value),
            };
        }
        // SAFETY: each call names the kernel's parameters in their order and types, with addresses of memory that lives on
        // this stream and is as large as the sizes beside them say.
        unsafe { launch.launch(config) }.map_err(|error| failed(format!("{name}: {error}")))?;
        Ok(())
    }

    /// Memory that the next launch fills.
    pub(super) fn room<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        // SAFETY: a kernel writes all of it before anything reads.
        unsafe { self.stream.alloc::<T>(len.max(1)) }
            .map_err(|error| Error::out_of_memory(format!("the device has no room for {len} values: {error}")))
    }

    /// The address of device memory.
    pub(super) fn address<T>(&self, slice: &CudaSlice<T>) -> u64 {
        slice.device_ptr(&self.stream).0
    }

    /// The address of a dense tensor's values, of type `T`. It stays valid while the tensor lives.
    pub(super) fn tensor<T: CudaDType>(&self, tensor: &Tensor) -> Result<u64> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { return Err(failed("a tensor lies on another device")) };
        if !layout.is_contiguous() {
            return Err(Error::invalid(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
        }
        let start = self.address(storage.as_cuda_slice::<T>()?);
        Ok(start + (layout.start_offset() * size_of::<T>()) as u64)
    }

    /// A tensor out of a kernel's result.
    pub(super) fn wrap(&self, values: CudaSlice<f32>, shape: (usize, usize)) -> Tensor {
        let storage = CudaStorage::wrap_cuda_slice(values, self.device.clone());
        Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
    }

    /// `out = x · Wᵀ` by cuBLAS, for dense bf16 of `[rows, inputs]` and `[outputs, inputs]`.
    pub(super) fn gemm_bf16(&self, x: u64, weight: u64, out: u64, dims: [usize; 3]) -> Result<()> {
        use candle_core::cuda_backend::cudarc::cublas::{result, sys};
        let [rows, outputs, inputs] = dims.map(|dim| i32::try_from(dim).unwrap_or(i32::MAX));
        let (one, zero) = (1.0f32, 0.0f32);
        let number = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        let blas = self.device.cublas_handle();
        let (bf16, f32) = (sys::cudaDataType::CUDA_R_16BF, sys::cudaDataType::CUDA_R_32F);
        // SAFETY: the addresses are of memory on the handle's stream, of the sizes that `dims` says.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                outputs,
                rows,
                inputs,
                number(&one),
                weight as *const c_void,
                bf16,
                inputs,
                x as *const c_void,
                bf16,
                inputs,
                number(&zero),
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

/// The values of `dtype` as tensors of a KV cache hold them.
pub(super) fn kv_suffix(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some("f16"),
        DType::F32 => Some("f32"),
        _ => None,
    }
}

/// Has the device's pool keep what is freed for the next step, instead of giving it back to the driver at each wait.
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
