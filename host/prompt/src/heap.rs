//! Returns freed memory to the system. Reading a tokenizer takes several times the memory that it needs afterwards, and
//! glibc's allocator would keep all of it for as long as the process lives.

/// Configures the allocator. To be called before there are several threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn prepare() {
    /// Allocations of at least this size are mapped individually, and unmapped when freed.
    const MAPPED_BYTES_MIN: libc::c_int = 256 << 10;
    // SAFETY: the calls take numbers, and the allocator checks them.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    // SAFETY: the call takes a number and may be made by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators have no such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn prepare() {}

/// Other allocators return free memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim() {}
