//! Runs a pass over the vocabulary as code for the widest vectors that the processor supports.
//!
//! Our binaries are built for any x86-64 processor, hence for vectors of four lanes, which makes an exponential for
//! each of 128k candidates three times as slow as necessary. A pass is written once, as plain arithmetic on lanes, and
//! also compiled for AVX2 and AVX-512. No path fuses multiplication and addition, and the order of every sum is
//! explicit, so all give the same bits, which reproducible seeds require.

/// Calls `pass` as code for the widest vectors. Functions that `pass` calls must be inlined to be compiled with it, so
/// it and everything in it is `#[inline(always)]`.
#[inline]
pub(crate) fn widest<R, F: FnOnce() -> R>(pass: F) -> R {
    #[cfg(target_arch = "x86_64")]
    if let Some(compiled) = x86_64::detect::<R, F>() {
        // SAFETY: `detect` returns only functions whose instruction set the processor has.
        return unsafe { compiled(pass) };
    }
    pass()
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64 {
    /// A function that requires an instruction set.
    pub(crate) type Compiled<R, F> = unsafe fn(F) -> R;

    pub(crate) fn detect<R, F: FnOnce() -> R>() -> Option<Compiled<R, F>> {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            Some(with_avx512)
        } else if is_x86_feature_detected!("avx2") {
            Some(with_avx2)
        } else {
            None
        }
    }

    #[target_feature(enable = "avx512bw,avx512vl")]
    pub(crate) fn with_avx512<R, F: FnOnce() -> R>(pass: F) -> R {
        pass()
    }

    #[target_feature(enable = "avx2")]
    pub(crate) fn with_avx2<R, F: FnOnce() -> R>(pass: F) -> R {
        pass()
    }
}
