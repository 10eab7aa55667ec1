//! Counts a thread's allocations, in the test's allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Beyond this a thread that is being measured gets no more: the test ends rather than the machine.
const HARD_MAX: isize = 4 << 30;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static MEASURED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which counts for each thread what it has.
pub struct CountingAllocator;

/// Every test that links this crate counts.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What `work` returns, and the most that this thread had allocated beyond what it had before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    MEASURED.set(true);
    let result = work();
    MEASURED.set(false);
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

/// Counts; false if nothing is left.
fn count(bytes: isize) -> bool {
    // A thread that is ending has no counters any more.
    let Ok(live) = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        live.get()
    }) else {
        return true;
    };
    let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live)));
    live < HARD_MAX || bytes <= 0 || !MEASURED.try_with(Cell::get).unwrap_or(false)
}

// SAFETY: every call goes to the system's allocator with the same arguments, or to none.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size().cast_signed()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps to the contract of this function, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size().cast_signed()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !count(size.cast_signed() - layout.size().cast_signed()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
