//! Returns freed memory to the system. By default glibc's allocator has an arena for each of many threads and keeps
//! freed memory in it, which after a few large requests adds up to a multiple of their peak.

use std::time::Duration;

use tokio::time::interval;

use crate::shares::Shares;

/// Until freed memory is returned, the next request may allocate the same amount from another arena.
const INTERVAL: Duration = Duration::from_millis(100);
/// Smaller amounts are not worth walking the heap.
const RETURNED_BYTES_MIN: usize = 8 << 20;

/// Number of arenas. The server allocates too rarely for threads to contend for them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: libc::c_int = 2;
/// Allocations of at least this size are mapped individually, and unmapped when freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES_MIN: libc::c_int = 256 << 10;

/// Configures the allocator. To be called before there are many threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn prepare() {
    // SAFETY: the calls take numbers, and the allocator checks them.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    }
}

/// Other allocators have no such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn prepare() {}

/// Returns memory to the system whenever requests have freed much of `memory`.
pub(super) async fn give_back(memory: Shares) {
    let mut ticks = interval(INTERVAL);
    let mut returned = 0_usize;
    loop {
        ticks.tick().await;
        returned = returned.saturating_add(memory.returned());
        if returned >= RETURNED_BYTES_MIN {
            returned = 0;
            // This holds the arenas' locks one by one, for milliseconds.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: the call takes a number and may be made by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators return free memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
