//! The size of a dispatch.

/// One dispatch: a kernel, its threadgroups, the threads of each, and the threadgroup memory that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) kernel: &'static str,
    pub(super) groups: [usize; 3],
    pub(super) threads: usize,
    pub(super) shared_bytes: usize,
}

/// Threads of a threadgroup, as `common.metal` has them.
pub(super) const THREADS: usize = 128;

/// Threadgroup memory that every GPU has.
pub(super) const SHARED_BYTES_MAX: usize = 32 << 10;
