//! The sections of a report that are about Metal itself: the device, its compiler, and what the compiler's math modes make
//! of infinities.

use candle_core::{DType, Device, MetalDevice, MetalStorage, Storage, Tensor, op::BackpropOp};
use candle_metal_kernels::{
    metal::{ComputeCommandEncoder, Library},
    source,
};
use objc2::{
    class, msg_send,
    rc::Retained,
    runtime::{AnyObject, ProtocolObject},
};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLGPUFamily, MTLLibrary, MTLMathMode, MTLSize,
};
use serde_json::{Value, json};
use std::{
    ffi::{CStr, CString, c_char},
    ptr,
    time::Instant,
};

use super::{
    apple::options_of,
    kernels::failed,
    libraries::{LIBRARIES, Math},
};
use crate::Result;

const FAMILIES: [(MTLGPUFamily, &str); 10] = [
    (MTLGPUFamily::Apple5, "Apple5"),
    (MTLGPUFamily::Apple6, "Apple6"),
    (MTLGPUFamily::Apple7, "Apple7"),
    (MTLGPUFamily::Apple8, "Apple8"),
    (MTLGPUFamily::Apple9, "Apple9"),
    (MTLGPUFamily::Apple10, "Apple10"),
    (MTLGPUFamily::Mac2, "Mac2"),
    (MTLGPUFamily::Common3, "Common3"),
    (MTLGPUFamily::Metal3, "Metal3"),
    (MTLGPUFamily::Metal4, "Metal4"),
];

/// candle's libraries that formulas use.
const OF_CANDLE: [(&str, &str); 11] = [
    ("candle: affine", source::AFFINE),
    ("candle: binary", source::BINARY),
    ("candle: cast", source::CAST),
    ("candle: fill", source::FILL),
    ("candle: gemv", source::GEMV),
    ("candle: indexing", source::INDEXING),
    ("candle: mlx_gemm", source::MLX_GEMM),
    ("candle: quantized", source::QUANTIZED),
    ("candle: reduce", source::REDUCE),
    ("candle: ternary", source::TERNARY),
    ("candle: unary", source::UNARY),
];

/// Values that the compiler's optimizations may take for impossible, each with the value that it has to have: the infinities
/// come from memory, so that nothing but the mode decides.
const GUARDS: &str = r"#include <metal_stdlib>
using namespace metal;
kernel void guards(device const float *x [[buffer(0)]], device float *out [[buffer(1)]]) {
    const float low = x[0], none = x[1], one = x[2], sentinel = x[3];
    out[0] = low == -INFINITY ? 1.0f : 0.0f;
    out[1] = isinf(low) ? 1.0f : 0.0f;
    out[2] = isnan(none) ? 1.0f : 0.0f;
    out[3] = max(low, -INFINITY) == -INFINITY ? 0.0f : exp(low - low);
    out[4] = exp(low - one);
    out[5] = exp(sentinel - one);
    out[6] = exp(sentinel - sentinel);
}
";

const GUARDED: [(&str, f32); 7] = [
    ("x == −∞", 1.0),
    ("isinf", 1.0),
    ("isnan", 1.0),
    ("a guard before exp(−∞ − −∞)", 0.0),
    ("exp(−∞)", 0.0),
    ("exp of a finite sentinel", 0.0),
    ("a finite sentinel less itself", 1.0),
];

const MODES: [(Option<MTLMathMode>, &str); 4] = [
    (None, "default"),
    (Some(MTLMathMode::Fast), "fast"),
    (Some(MTLMathMode::Relaxed), "relaxed"),
    (Some(MTLMathMode::Safe), "safe"),
];

/// The device and its limits.
pub(in crate::nn) fn device(metal: &MetalDevice) -> Value {
    let device = metal.metal_device();
    let raw = device.as_ref();
    let families: Vec<&str> =
        FAMILIES.iter().filter(|(family, _)| raw.supportsFamily(*family)).map(|(_, name)| *name).collect();
    let threads = raw.maxThreadsPerThreadgroup();
    json!({
        "device": "metal:0",
        "name": raw.name().to_string(),
        "architecture": device.architecture_name(),
        "families": families,
        "unified_memory": raw.hasUnifiedMemory(),
        "low_power": raw.isLowPower(),
        "headless": raw.isHeadless(),
        "max_threads_per_threadgroup": [threads.width, threads.height, threads.depth],
        "max_threadgroup_memory_bytes": raw.maxThreadgroupMemoryLength(),
        "max_buffer_bytes": raw.maxBufferLength(),
        "recommended_max_working_set_bytes": device.recommended_max_working_set_size(),
        "allocated_bytes": device.current_allocated_size(),
    })
}

/// Bytes of this process's buffers.
pub(in crate::nn) fn allocated(metal: &MetalDevice) -> u64 {
    metal.metal_device().current_allocated_size() as u64
}

/// The compiler's messages for each library, how long it takes, and the pipelines of our kernels.
pub(in crate::nn) fn compiler(metal: &MetalDevice) -> Value {
    let ours = LIBRARIES.into_iter().map(|ours| library(metal, ours.name, ours.source, ours.kernels, Some(ours.math)));
    let candle = OF_CANDLE.into_iter().map(|(name, source)| library(metal, name, source, &[], None));
    let libraries: Vec<Value> = ours.chain(candle).collect();
    json!({ "libraries": libraries })
}

/// Compiles a source as the backend does, or by the compiler's defaults. The compiler's text may be there beside a library, as warnings, which the bindings drop.
fn compile(metal: &MetalDevice, source: &str, math: Option<Math>) -> (Option<Library>, Option<String>) {
    let Ok(source) = CString::new(source) else { return (None, Some("the source has a zero".into())) };
    let (device, options) = (metal.metal_device().as_ref(), math.map(options_of));
    let options: Option<&MTLCompileOptions> = options.as_deref();
    let mut error: *mut AnyObject = ptr::null_mut();
    // SAFETY: the messages and their types are those of Apple's headers: the text ends with a zero and is copied, and `error`
    // is set to an object or left alone.
    let library: Option<Retained<ProtocolObject<dyn MTLLibrary>>> = unsafe {
        let text: Retained<AnyObject> = msg_send![class!(NSString), stringWithUTF8String: source.as_ptr()];
        msg_send![device, newLibraryWithSource: &*text, options: options, error: &mut error]
    };
    if error.is_null() {
        return (library.map(Library::new), None);
    }
    // SAFETY: the error lives until the pool ends that is around this call, as does the text's copy in UTF-8, which ends
    // with a zero.
    let said = unsafe {
        let text: Retained<AnyObject> = msg_send![error, localizedDescription];
        let utf8: *const c_char = msg_send![&*text, UTF8String];
        CStr::from_ptr(utf8).to_string_lossy().into_owned()
    };
    (library.map(Library::new), Some(said))
}

fn library(metal: &MetalDevice, name: &str, source: &str, kernels: &[&str], math: Option<Math>) -> Value {
    let (device, started) = (metal.metal_device(), Instant::now());
    let (compiled, said) = compile(metal, source, math);
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let Some(library) = compiled else {
        return json!({ "library": name, "ms": ms, "error": said.unwrap_or_else(|| "no reason".into()) });
    };
    let pipelines = kernels.iter().map(|kernel| {
        let started = Instant::now();
        let pipeline = library.get_function(kernel, None).map_err(|error| error.to_string()).and_then(|function| {
            device.new_compute_pipeline_state_with_function(&function).map_err(|error| error.to_string())
        });
        match pipeline {
            Ok(pipeline) => {
                let state = pipeline.as_ref();
                json!({
                    "kernel": kernel,
                    "ms": started.elapsed().as_secs_f64() * 1e3,
                    "max_threads_per_threadgroup": state.maxTotalThreadsPerThreadgroup(),
                    "simd_width": state.threadExecutionWidth(),
                    "threadgroup_memory_bytes": state.staticThreadgroupMemoryLength(),
                })
            }
            Err(error) => json!({ "kernel": kernel, "error": error }),
        }
    });
    json!({ "library": name, "ms": ms, "warnings": said, "pipelines": pipelines.collect::<Vec<_>>() })
}

/// Which guards are lost in each of the compiler's math modes.
pub(in crate::nn) fn guards(metal: &MetalDevice) -> Result<Value> {
    let mut modes = Vec::new();
    for (mode, name) in MODES {
        modes.push(match guarded(metal, mode) {
            Ok(values) => {
                let is_lost = |(value, (_, expected)): (&f32, &(&str, f32))| value != expected;
                let pairs = values.iter().zip(&GUARDED).filter(|pair| is_lost(*pair));
                let lost: Vec<&str> = pairs.map(|(_, (name, _))| *name).collect();
                json!({ "mode": name, "lost": lost, "values": values.iter().map(f32::to_string).collect::<Vec<_>>() })
            }
            Err(error) => json!({ "mode": name, "error": error.message }),
        });
    }
    Ok(json!({ "modes": modes }))
}

/// Runs the guards as compiled in a mode.
fn guarded(metal: &MetalDevice, mode: Option<MTLMathMode>) -> Result<Vec<f32>> {
    let options = mode.map(|mode| {
        let options = MTLCompileOptions::new();
        options.setMathMode(mode);
        options
    });
    let library = metal.metal_device().new_library_with_source(GUARDS, options.as_deref()).map_err(failed)?;
    let function = library.get_function("guards", None).map_err(failed)?;
    let pipeline = metal.metal_device().new_compute_pipeline_state_with_function(&function).map_err(failed)?;
    let inputs = [f32::NEG_INFINITY, f32::NAN, 1.0, -1e30];
    let device = Device::Metal(metal.clone());
    let x = Tensor::new(&inputs[..], &device)?;
    let out = metal.new_buffer(GUARDED.len(), DType::F32, "guards")?;
    let storage = MetalStorage::new(out.clone(), metal.clone(), GUARDED.len(), DType::F32);
    let values = Tensor::from_storage(Storage::Metal(storage), GUARDED.len(), BackpropOp::none(), false);
    {
        let (storage, _) = x.storage_and_layout();
        let Storage::Metal(storage) = &*storage else { return Err(failed("a tensor lies on another device")) };
        let guard = metal.command_encoder()?;
        let encoder: &ComputeCommandEncoder = guard.as_ref();
        encoder.set_compute_pipeline_state(&pipeline);
        encoder.set_input_buffer(0, Some(storage.buffer()), 0);
        encoder.set_output_buffer(1, Some(&out), 0);
        let one = MTLSize { width: 1, height: 1, depth: 1 };
        encoder.dispatch_thread_groups(one, one);
    }
    Ok(values.to_vec1()?)
}
