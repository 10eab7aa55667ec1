//! Runs a pass over the vocabulary as code for the widest vectors that the processor has.
//!
//! Our binaries are built for any x86-64 processor, hence for vectors of four lanes, which makes an exponential for each
//! of 128k candidates three times as slow as it need be. A pass is written once, as plain arithmetic on lanes, and compiled
//! again for AVX2 and AVX-512. No path fuses a multiplication with an addition, and the order of every sum is written
//! out, so all give the same bits, which a seed's promise needs.

/// Calls `pass` as code for the widest vectors. What `pass` calls must be inlined into it to be compiled with it, so it and
/// all in it are `#[inline(always)]`.
#[inline]
pub(crate) fn widest<R, F: FnOnce() -> R>(pass: F) -> R {
    #[cfg(target_arch = "x86_64")]
    if let Some(compiled) = x86_64::detect::<R, F>() {
        // SAFETY: `detect` returns only a function whose instruction set the processor has.
        return unsafe { compiled(pass) };
    }
    pass()
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64 {
    /// A function that needs an instruction set.
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
