//! NVIDIA's driver, called through its exported functions.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
    thread,
};

const LIBRARY: &CStr = c"libcuda.so.1";
/// Adds one to as many numbers as there are threads.
const KERNEL: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry increment(.param .u64 numbers)
{
    .reg .u32 %r<5>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [numbers];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r4, [%rd3];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd3], %r4;
    ret;
}
";
const NUMBERS: usize = 64 << 20;
const THREADS: c_uint = 256;

/// Looks up a function of the library. `F` is its C type.
fn function<F: Copy>(library: *mut c_void, name: &str) -> Result<F, String> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: the library is open and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    if found.is_null() {
        return Err(format!("the driver has no {name}"));
    }
    // SAFETY: a function's address has the size of a pointer, and the callers give the types of the driver's header.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn succeeded(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: error {code}")) }
}

/// Computes on the first GPU, from two threads in turn as a worker does.
pub fn compute() -> Result<String, String> {
    // SAFETY: the name ends with a zero; running the driver's constructors is the purpose of this program.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: the text ends with a zero and is valid until the next call of `dlerror`.
        return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
    }
    let library = library as usize;
    let mut said = String::new();
    for round in 0..2 {
        let done = thread::spawn(move || round_trip(library as *mut c_void)).join();
        said = done.map_err(|_| format!("round {round} panicked"))??;
    }
    Ok(said)
}

fn round_trip(library: *mut c_void) -> Result<String, String> {
    type Init = unsafe extern "C" fn(c_uint) -> c_int;
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
    type Set = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
    type Pinned = unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int;
    type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
    type Find = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
    type Up = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;
    type Down = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
    type Wait = unsafe extern "C" fn() -> c_int;
    type Launch = unsafe extern "C" fn(
        *mut c_void,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        *mut c_void,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> c_int;

    let bytes = NUMBERS * size_of::<u32>();
    let source = CString::new(KERNEL).map_err(|error| error.to_string())?;
    let (mut device, mut count, mut memory) = (0, 0, 0_u64);
    let (mut context, mut module, mut kernel, mut pinned) = (null_mut(), null_mut(), null_mut(), null_mut());
    let mut name = [0_u8; 128];
    // SAFETY: each function has its type in the driver's header; the buffers are as large as stated.
    unsafe {
        succeeded("cuInit", function::<Init>(library, "cuInit")?(0))?;
        succeeded("cuDeviceGetCount", function::<Count>(library, "cuDeviceGetCount")?(&raw mut count))?;
        succeeded("cuDeviceGet", function::<Get>(library, "cuDeviceGet")?(&raw mut device, 0))?;
        succeeded(
            "cuDeviceGetName",
            function::<Name>(library, "cuDeviceGetName")?(name.as_mut_ptr().cast(), 127, device),
        )?;
        let retain = function::<Retain>(library, "cuDevicePrimaryCtxRetain")?;
        succeeded("cuDevicePrimaryCtxRetain", retain(&raw mut context, device))?;
        succeeded("cuCtxSetCurrent", function::<Set>(library, "cuCtxSetCurrent")?(context))?;
        succeeded("cuMemAlloc", function::<Alloc>(library, "cuMemAlloc_v2")?(&raw mut memory, bytes))?;
        succeeded("cuMemHostAlloc", function::<Pinned>(library, "cuMemHostAlloc")?(&raw mut pinned, bytes, 0))?;
        let numbers = std::slice::from_raw_parts_mut(pinned.cast::<u32>(), NUMBERS);
        (0..).zip(numbers.iter_mut()).for_each(|(value, number)| *number = value);
        succeeded(
            "cuModuleLoadData",
            function::<Load>(library, "cuModuleLoadData")?(&raw mut module, source.as_ptr().cast()),
        )?;
        let find = function::<Find>(library, "cuModuleGetFunction")?;
        succeeded("cuModuleGetFunction", find(&raw mut kernel, module, c"increment".as_ptr()))?;
        succeeded("cuMemcpyHtoD", function::<Up>(library, "cuMemcpyHtoD_v2")?(memory, pinned, bytes))?;
        let blocks = c_uint::try_from(NUMBERS).map_err(|error| error.to_string())? / THREADS;
        let mut arguments = [(&raw mut memory).cast::<c_void>()];
        let launch = function::<Launch>(library, "cuLaunchKernel")?;
        let launched = launch(kernel, blocks, 1, 1, THREADS, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut());
        succeeded("cuLaunchKernel", launched)?;
        succeeded("cuCtxSynchronize", function::<Wait>(library, "cuCtxSynchronize")?())?;
        succeeded("cuMemcpyDtoH", function::<Down>(library, "cuMemcpyDtoH_v2")?(pinned, memory, bytes))?;
        if let Some((value, number)) = (1..).zip(numbers.iter()).find(|(value, number)| value != *number) {
            return Err(format!("{number} was computed instead of {value}"));
        }
        for (what, code) in [
            ("cuMemFree", function::<unsafe extern "C" fn(u64) -> c_int>(library, "cuMemFree_v2")?(memory)),
            ("cuMemFreeHost", function::<Set>(library, "cuMemFreeHost")?(pinned)),
            ("cuModuleUnload", function::<Set>(library, "cuModuleUnload")?(module)),
        ] {
            succeeded(what, code)?;
        }
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(|error| error.to_string())?.to_string_lossy();
    Ok(format!("computed {NUMBERS} numbers on {name}, of {count} GPUs"))
}
