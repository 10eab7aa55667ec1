//! Keeps the memory of activations for the next layer. Each tensor of a prompt's step has megabytes, which glibc's
//! allocator would map for it and unmap when it is freed: the kernel then clears every page anew for every tensor, which
//! took a quarter of the time of some prompts. An idle worker returns that memory.

/// Configures the allocator. To be called before there are several threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn prepare() {
    /// The most that glibc accepts.
    const MAPPED_BYTES_MIN: libc::c_int = 32 << 20;
    /// Free memory at the heap's end that is kept: more than the activations of a layer in all but the largest steps.
    const KEPT_BYTES_MAX: libc::c_int = 512 << 20;
    // SAFETY: the calls take numbers, and the allocator checks them.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
    }
}

/// Returns free memory to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn trim() {
    // SAFETY: the call takes a number and may be made by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators have no such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn prepare() {}

/// Other allocators return free memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn trim() {}
