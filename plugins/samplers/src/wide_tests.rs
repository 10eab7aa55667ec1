//! Passes compiled for wide vectors give the same bits as without.

use crate::{
    nucleus, softmax,
    wide::x86_64::{with_avx2, with_avx512},
};

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
        // SAFETY: the line above has checked for the instruction set.
        assert!(unsafe { with_avx2(measure) } == measure());
    }
    if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
        // SAFETY: the line above has checked for the instruction sets.
        assert!(unsafe { with_avx512(measure) } == measure());
    }
}
