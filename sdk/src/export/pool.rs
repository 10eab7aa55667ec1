//! An autorelease pool around each call of the host. Metal's methods return autoreleased objects, such as command
//! buffers and encoders; the host's threads have no pool, so these objects would accumulate for the life of the
//! process.

/// Runs an author's code within a pool; without layers there is no Metal, and it simply runs.
pub(super) fn within<T>(code: impl FnOnce() -> T) -> T {
    #[cfg(all(target_os = "macos", feature = "nn"))]
    return objc2::rc::autoreleasepool(|_| counted(code));
    #[cfg(not(all(target_os = "macos", feature = "nn")))]
    counted(code)
}

/// Runs what is in a pool, and lets tests see that it is in one.
fn counted<T>(code: impl FnOnce() -> T) -> T {
    #[cfg(test)]
    let _counted = counting::Counted::new();
    code()
}

#[cfg(test)]
pub(super) mod counting {
    use std::cell::Cell;

    thread_local!(static OPEN: Cell<usize> = const { Cell::new(0) });

    /// Number of pools open on this thread.
    pub(in crate::export) fn open() -> usize {
        OPEN.get()
    }

    pub(super) struct Counted;

    impl Counted {
        pub(super) fn new() -> Self {
            OPEN.set(OPEN.get() + 1);
            Self
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            OPEN.set(OPEN.get() - 1);
        }
    }
}
