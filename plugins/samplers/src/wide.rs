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
mod x86_64 {
    /// A function that needs an instruction set.
    pub(super) type Compiled<R, F> = unsafe fn(F) -> R;

    pub(super) fn detect<R, F: FnOnce() -> R>() -> Option<Compiled<R, F>> {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            Some(with_avx512)
        } else if is_x86_feature_detected!("avx2") {
            Some(with_avx2)
        } else {
            None
        }
    }

    #[target_feature(enable = "avx512bw,avx512vl")]
    pub(super) fn with_avx512<R, F: FnOnce() -> R>(pass: F) -> R {
        pass()
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn with_avx2<R, F: FnOnce() -> R>(pass: F) -> R {
        pass()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::x86_64::{with_avx2, with_avx512};
    use crate::{nucleus, softmax};

    #[test]
    fn every_path_gives_the_same_bits() {
        let mut logits: Vec<f32> = (0..5003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * -3e-6).collect();
        (logits[7], logits[70], logits[700]) = (f32::NAN, f32::NEG_INFINITY, -1e30);
        let measure = || {
            let (total, product) = softmax::weigh_all(&logits, 0.0);
            let classes = nucleus::weigh_classes(&logits, 0.0, 0.0, |logit| logit);
            classes.into_iter().chain([total, product]).map(f64::to_bits).collect::<Vec<u64>>()
        };
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the line above has asked for the instruction set.
            assert!(unsafe { with_avx2(measure) } == measure());
        }
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the line above has asked for the instruction sets.
            assert!(unsafe { with_avx512(measure) } == measure());
        }
    }
}
