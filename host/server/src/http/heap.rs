//! Memory that requests have returned goes back to the system. The allocator keeps what was freed for the thread that had it,
//! which after a few large requests on many threads is most of what they ever took.

use std::time::Duration;

use tokio::time::interval;

use crate::shares::Shares;

const INTERVAL: Duration = Duration::from_secs(1);
/// Less than this is not worth walking the heap for.
const RETURNED_BYTES_MIN: usize = 8 << 20;

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
