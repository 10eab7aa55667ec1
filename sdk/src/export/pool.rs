//! An autorelease pool around each call of the host. Metal's methods return autoreleased objects, command buffers and encoders
//! among them; the host's threads have no pool of their own, so these objects would pile up for as long as the process lives.

/// Runs an author's code within a pool; without Metal there is none.
pub(super) fn within<T>(code: impl FnOnce() -> T) -> T {
    #[cfg(test)]
    let _counted = counting::Counted::new();
    #[cfg(any(feature = "metal", target_os = "macos"))]
    return objc2::rc::autoreleasepool(|_| code());
    #[cfg(not(any(feature = "metal", target_os = "macos")))]
    code()
}

#[cfg(test)]
pub(super) mod counting {
    use std::cell::Cell;

    thread_local!(static OPEN: Cell<usize> = const { Cell::new(0) });

    /// Pools that are open on this thread.
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
