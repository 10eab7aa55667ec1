//! Memory that requests have returned goes back to the system. Left to itself, the C library's allocator has a heap for each of
//! many threads and keeps in it what was freed, which after a few large requests is a multiple of what they ever took at once.

use std::time::Duration;

use tokio::time::interval;

use crate::shares::Shares;

/// Until then the next request takes as much from another heap.
const INTERVAL: Duration = Duration::from_millis(100);
/// Less than this is not worth walking the heap for.
const RETURNED_BYTES_MIN: usize = 8 << 20;

/// Heaps of the allocator. Few allocations of the server are so frequent that threads wait for each other.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: libc::c_int = 2;
/// A block of this size or more is mapped by itself, and goes back when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES_MIN: libc::c_int = 256 << 10;

/// Sets the allocator up for a server. To be called before it has many threads.
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

/// Gives memory back whenever requests have returned much of it to `memory`.
pub(super) async fn give_back(memory: Shares) {
    let mut ticks = interval(INTERVAL);
    let mut returned = 0_usize;
    loop {
        ticks.tick().await;
        returned = returned.saturating_add(memory.returned());
        if returned >= RETURNED_BYTES_MIN {
            returned = 0;
            // It takes the heap's locks one by one, for milliseconds.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: the call takes a number and may be made by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back what is free by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
