//! Vectors of sixteen lanes with AVX-512 and VNNI.

use std::arch::x86_64::*;

use super::{Kernel, ORIGIN, Rows, Simd};

/// Calls an intrinsic of the sets whose presence an `Avx512` value proves.
macro_rules! intrinsic {
    ($($call:tt)*) => {
        // SAFETY: a value of type `Avx512` exists, so the processor has the intrinsic's instruction set; the intrinsic
        // works on registers only.
        unsafe { $($call)* }
    };
}

/// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI; only [`detect`](Self::detect) creates it.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Self(()))
    }

    /// 2 to the power of each lane up to 127, to a relative error of 2e-7: exactly 1 at 0, and 0 at -∞.
    #[inline(always)]
    pub(crate) fn power_of_two(self, x: __m512) -> __m512 {
        // What rounding down leaves is r in 0..1, for which 1 + r · polynomial is 2ʳ to a relative error of 9.4e-8.
        let rest = intrinsic!(_mm512_reduce_ps::<_MM_FROUND_TO_NEG_INF>(x));
        let mut power = self.splat(0.001_867_125_6);
        for coefficient in [0.009_017_039, 0.055_799_91, 0.240_164_44, 0.693_151_3, 1.0] {
            power = self.fma(power, rest, self.splat(coefficient));
        }
        intrinsic!(_mm512_scalef_ps(power, x))
    }

    /// Returns whether any lane differs, or is no number.
    #[inline(always)]
    pub(crate) fn differ(self, a: __m512, b: __m512) -> bool {
        intrinsic!(_mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b)) != 0
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn enter<K: Kernel<Avx512>>(simd: Avx512, kernel: K) {
    kernel.run(simd);
}

const LANES: usize = 16;

impl Simd for Avx512 {
    type F = __m512;
    type U = __m512i;
    const LANES: usize = LANES;
    /// VNNI accumulates directly in 32 bits.
    type Run = __m512i;
    const WIDE_IS_SIGNED: bool = false;

    #[inline(always)]
    fn enter<K: Kernel<Self>>(self, kernel: K) {
        // SAFETY: the value proves that the processor has what the function enables.
        unsafe { enter(self, kernel) };
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        intrinsic!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        // SAFETY: the slice has as many elements as are read, and the load needs no alignment.
        unsafe { _mm512_loadu_ps(from[..LANES].as_ptr()) }
    }
    #[inline(always)]
    fn store(self, value: __m512, to: &mut [f32]) {
        // SAFETY: the slice has as many elements as are written, and the store needs no alignment.
        unsafe { _mm512_storeu_ps(to[..LANES].as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn zero_below(self, value: __m512, by: __m512, limit: f32) -> __m512 {
        let keep = intrinsic!(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(by, _mm512_set1_ps(limit)));
        intrinsic!(_mm512_maskz_mov_ps(keep, value))
    }
    #[inline(always)]
    fn round(self, value: __m512) -> __m512 {
        intrinsic!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value))
    }
    #[inline(always)]
    fn exp2(self, value: __m512) -> __m512 {
        let exponent = intrinsic!(_mm512_add_epi32(_mm512_cvtps_epi32(value), _mm512_set1_epi32(127)));
        intrinsic!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent)))
    }
    #[inline(always)]
    fn store_low_bytes(self, value: __m512, to: &mut [i8]) {
        let bytes = intrinsic!(_mm512_cvtepi32_epi8(_mm512_castps_si512(value)));
        // SAFETY: the slice has as many bytes as are written, and the store needs no alignment.
        unsafe { _mm_storeu_si128(to[..LANES].as_mut_ptr().cast(), bytes) };
    }
    #[inline(always)]
    fn sum(self, value: __m512) -> f32 {
        intrinsic!(_mm512_reduce_add_ps(value))
    }
    #[inline(always)]
    fn top(self, value: __m512) -> f32 {
        intrinsic!(_mm512_reduce_max_ps(value))
    }

    #[inline(always)]
    fn splat_bits(self, value: u32) -> __m512i {
        intrinsic!(_mm512_set1_epi32(value.cast_signed()))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn add_bits(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: __m512i) -> __m512i {
        // SAFETY: the table has the 16 bytes that are read, and the load needs no alignment.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        intrinsic!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices))
    }
    #[inline(always)]
    fn gather<const N: usize>(self, table: &[u32; N], indices: __m512i) -> __m512i {
        const { assert!(N.is_power_of_two() && N <= 1 << 16) };
        let indices = self.and(indices, self.splat_bits(N as u32 - 1));
        // SAFETY: each index is below the length of the table. The caller has a value of type `Avx512`, so the
        // processor has the instruction.
        unsafe { _mm512_i32gather_epi32::<4>(indices, table.as_ptr().cast()) }
    }
    #[inline(always)]
    fn shl(self, value: __m512i, bits: u32) -> __m512i {
        intrinsic!(_mm512_sllv_epi32(value, _mm512_set1_epi32(bits.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, value: __m512i, bits: u32) -> __m512i {
        intrinsic!(_mm512_srlv_epi32(value, _mm512_set1_epi32(bits.cast_signed())))
    }
    #[inline(always)]
    fn shr_signed(self, value: __m512i, bits: u32) -> __m512i {
        intrinsic!(_mm512_srav_epi32(value, _mm512_set1_epi32(bits.cast_signed())))
    }
    #[inline(always)]
    fn integers_to_f32(self, value: __m512i) -> __m512 {
        intrinsic!(_mm512_cvtepi32_ps(value))
    }
    #[inline(always)]
    fn bits_to_f32(self, value: __m512i) -> __m512 {
        intrinsic!(_mm512_castsi512_ps(value))
    }
    #[inline(always)]
    fn low_half(self, value: __m512i) -> __m512 {
        intrinsic!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(value)))
    }
    #[inline(always)]
    fn high_half(self, value: __m512i) -> __m512 {
        intrinsic!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(value))))
    }
    #[inline(always)]
    fn load_bits(self, from: &[u8]) -> __m512i {
        // SAFETY: the slice has as many bytes as are read, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(from[..4 * LANES].as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_words(self, from: &[u8]) -> __m512i {
        // SAFETY: the slice has as many bytes as are read, and the load needs no alignment.
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from[..2 * LANES].as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_halves(self, from: &[u8]) -> __m512 {
        // SAFETY: the slice has as many bytes as are read, and the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from[..2 * LANES].as_ptr().cast())) }
    }
    #[inline(always)]
    fn columns(self, rows: Rows<'_>, offset: usize) -> [__m512i; 4] {
        let (a, b, c, d) = (
            quarters(self, rows, offset, 0),
            quarters(self, rows, offset, 1),
            quarters(self, rows, offset, 2),
            quarters(self, rows, offset, 3),
        );
        let (ab_low, ab_high) = intrinsic!((_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)));
        let (cd_low, cd_high) = intrinsic!((_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)));
        intrinsic!([
            _mm512_unpacklo_epi64(ab_low, cd_low),
            _mm512_unpackhi_epi64(ab_low, cd_low),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ])
    }

    #[inline(always)]
    fn run_steps(_code_max: u8) -> usize {
        usize::MAX
    }
    #[inline(always)]
    fn begin(self, sum: __m512i) -> __m512i {
        sum
    }
    #[inline(always)]
    fn step<const WIDE: bool>(self, run: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        intrinsic!(_mm512_dpbusd_epi32(run, codes, x))
    }
    #[inline(always)]
    fn finish(self, run: __m512i, _sum: __m512i) -> __m512i {
        run
    }
    const ORIGIN: u32 = ORIGIN;
    #[inline(always)]
    fn scaled(self, sum: __m512i, scale: __m512, base: __m512) -> __m512 {
        intrinsic!(_mm512_fmadd_ps(_mm512_castsi512_ps(sum), scale, base))
    }
}

/// Loads 16 bytes of each of the rows `first`, `first + 4`, `first + 8` and `first + 12`: transposing within the
/// quarters of four such vectors leaves the rows in order.
#[inline(always)]
fn quarters(_proof: Avx512, rows: Rows<'_>, offset: usize, first: usize) -> __m512i {
    rows.check(LANES, offset);
    let start = rows.bytes.as_ptr().wrapping_add(first * rows.stride + offset);
    let step = 4 * rows.stride;
    // SAFETY: each of the rows has 16 bytes at the offset, as just checked, and the loads need no alignment. The
    // caller has a value of type `Avx512`, so the processor has the instructions.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(start.cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(start.add(step).cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(start.add(2 * step).cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(start.add(3 * step).cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Power<'a>(&'a mut [f32]);

    impl Kernel<Avx512> for Power<'_> {
        #[inline(always)]
        fn run(self, simd: Avx512) {
            for lanes in self.0.chunks_exact_mut(LANES) {
                simd.store(simd.power_of_two(simd.load(lanes)), lanes);
            }
        }
    }

    #[test]
    fn powers_of_two_are_close_everywhere_and_exact_at_their_ends() {
        let Some(simd) = Avx512::detect() else { return };
        let x: Vec<f32> = (0..16_000).map(|i| (i as f32 - 15_000.0) * 0.0083).collect();
        let mut y = x.clone();
        simd.enter(Power(&mut y));
        for (x, y) in x.iter().zip(&y) {
            let (expected, y) = (f64::from(*x).exp2(), f64::from(*y));
            assert!((y - expected).abs() <= expected * 2e-7 + 1e-44, "2 to the power of {x} gave {y}");
        }
        let mut ends = [0.0, f32::NEG_INFINITY, f32::MIN / 2.0, -1.0, -200.0, 10.0, -0.0, -126.0].repeat(2);
        simd.enter(Power(&mut ends));
        assert_eq!(ends[..8], [1.0, 0.0, 0.0, 0.5, 0.0, 1024.0, 1.0, f32::MIN_POSITIVE]);
    }
}
