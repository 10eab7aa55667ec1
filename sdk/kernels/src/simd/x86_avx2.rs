//! Vectors of eight lanes with AVX2, and with AVX-VNNI its instruction for products of bytes.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{Kernel, ORIGIN, Rows, Simd};

/// Calls an intrinsic of the sets whose presence an `Avx2` value proves.
macro_rules! intrinsic {
    ($($call:tt)*) => {
        // SAFETY: a value of type `Avx2` exists, so the processor has the intrinsic's instruction set; the intrinsic
        // works on registers only.
        unsafe { $($call)* }
    };
}

/// Proof that the processor has AVX2, FMA and F16C, and what `B` needs; only [`detect`](Self::detect) creates it.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<B = Pairwise>(PhantomData<B>);

impl<B: ByteProducts> Avx2<B> {
    pub(super) fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        (has && B::is_present()).then_some(Self(PhantomData))
    }

    /// The same without an instruction for products of bytes.
    pub(super) fn plain(self) -> Avx2 {
        Avx2(PhantomData)
    }
}

/// How unsigned bytes are multiplied by signed ones, and four products summed in a lane.
pub(crate) trait ByteProducts: Copy + Send + Sync + 'static {
    /// One instruction adds them to a sum.
    const IS_FUSED: bool;
    fn is_present() -> bool;
    fn enter<K: Kernel<Avx2<Self>>>(simd: Avx2<Self>, kernel: K);
    /// Adds the products to `sum` in 32 bits if they are summed at once, otherwise in 16 bits and by pairs.
    fn add(_simd: Avx2<Self>, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i;
}

/// Pairs of products in 16 bits, as AVX2 alone has them.
#[derive(Clone, Copy)]
pub(crate) struct Pairwise;

impl ByteProducts for Pairwise {
    const IS_FUSED: bool = false;

    fn is_present() -> bool {
        true
    }
    #[inline(always)]
    fn enter<K: Kernel<Avx2>>(simd: Avx2, kernel: K) {
        // SAFETY: the value proves that the processor has what the function enables.
        unsafe { enter(simd, kernel) };
    }
    #[inline(always)]
    fn add(_simd: Avx2<Self>, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        intrinsic!(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x)))
    }
}

/// Four products in 32 bits by AVX-VNNI, which Intel's processors have since 2021, with or without AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

impl ByteProducts for Vnni {
    const IS_FUSED: bool = true;

    fn is_present() -> bool {
        is_x86_feature_detected!("avxvnni") || is_stand_in()
    }
    #[inline(always)]
    fn enter<K: Kernel<Avx2<Self>>>(simd: Avx2<Self>, kernel: K) {
        // SAFETY: as above; where another instruction stands in, AVX-VNNI is not enabled.
        unsafe { if is_stand_in() { enter(simd, kernel) } else { enter_vnni(simd, kernel) } };
    }
    #[inline(always)]
    fn add(_simd: Avx2<Self>, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        if is_stand_in() {
            // SAFETY: the processor has the instruction, as just checked.
            return unsafe { stand_in(sum, codes, x) };
        }
        intrinsic!(_mm256_dpbusd_avx_epi32(sum, codes, x))
    }
}

/// In tests AVX-512 stands in for AVX-VNNI: it has the same instruction in another encoding.
#[inline(always)]
fn is_stand_in() -> bool {
    cfg!(test)
        && !is_x86_feature_detected!("avxvnni")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx512vl")
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn stand_in(mut sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller has checked that the processor has the instruction; it works on registers only.
    unsafe {
        std::arch::asm!(
            "vpdpbusd {sum}, {codes}, {x}",
            sum = inout(ymm_reg) sum,
            codes = in(ymm_reg) codes,
            x = in(ymm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

#[target_feature(enable = "avx2,fma,f16c")]
fn enter<B: ByteProducts, K: Kernel<Avx2<B>>>(simd: Avx2<B>, kernel: K) {
    kernel.run(simd);
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn enter_vnni<K: Kernel<Avx2<Vnni>>>(simd: Avx2<Vnni>, kernel: K) {
    kernel.run(simd);
}

const LANES: usize = 8;

impl<B: ByteProducts> Simd for Avx2<B> {
    type F = __m256;
    type U = __m256i;
    const LANES: usize = LANES;
    /// Sums of products in 32 bits, or of pairs of them in 16 bits.
    type Run = __m256i;
    const WIDE_IS_SIGNED: bool = !B::IS_FUSED;

    #[inline(always)]
    fn enter<K: Kernel<Self>>(self, kernel: K) {
        B::enter(self, kernel);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        intrinsic!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        // SAFETY: the slice has as many elements as are read, and the load needs no alignment.
        unsafe { _mm256_loadu_ps(from[..LANES].as_ptr()) }
    }
    #[inline(always)]
    fn store(self, value: __m256, to: &mut [f32]) {
        // SAFETY: the slice has as many elements as are written, and the store needs no alignment.
        unsafe { _mm256_storeu_ps(to[..LANES].as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        intrinsic!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        intrinsic!(_mm256_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn zero_below(self, value: __m256, by: __m256, limit: f32) -> __m256 {
        let keep = intrinsic!(_mm256_cmp_ps::<_CMP_NLT_UQ>(by, _mm256_set1_ps(limit)));
        intrinsic!(_mm256_and_ps(keep, value))
    }
    #[inline(always)]
    fn round(self, value: __m256) -> __m256 {
        intrinsic!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value))
    }
    #[inline(always)]
    fn exp2(self, value: __m256) -> __m256 {
        let exponent = intrinsic!(_mm256_add_epi32(_mm256_cvtps_epi32(value), _mm256_set1_epi32(127)));
        intrinsic!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
    }
    #[inline(always)]
    fn store_low_bytes(self, value: __m256, to: &mut [i8]) {
        let order = intrinsic!(_mm_set_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 12, 8, 4, 0));
        let (low, high) = intrinsic!((_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value)));
        let low = intrinsic!(_mm_shuffle_epi8(_mm_castps_si128(low), order));
        let high = intrinsic!(_mm_shuffle_epi8(_mm_castps_si128(high), order));
        // SAFETY: the slice has as many bytes as are written, and the store needs no alignment.
        unsafe { _mm_storeu_si64(to[..LANES].as_mut_ptr().cast(), _mm_unpacklo_epi32(low, high)) };
    }
    #[inline(always)]
    fn sum(self, value: __m256) -> f32 {
        let v = intrinsic!(_mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value)));
        let v = intrinsic!(_mm_add_ps(v, _mm_movehl_ps(v, v)));
        intrinsic!(_mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v))))
    }
    #[inline(always)]
    fn top(self, value: __m256) -> f32 {
        let v = intrinsic!(_mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value)));
        let v = intrinsic!(_mm_max_ps(v, _mm_movehl_ps(v, v)));
        intrinsic!(_mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v))))
    }

    #[inline(always)]
    fn splat_bits(self, value: u32) -> __m256i {
        intrinsic!(_mm256_set1_epi32(value.cast_signed()))
    }
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn add_bits(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: __m256i) -> __m256i {
        // SAFETY: the table has the 16 bytes that are read, and the load needs no alignment.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        intrinsic!(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices))
    }
    #[inline(always)]
    fn gather<const N: usize>(self, table: &[u32; N], indices: __m256i) -> __m256i {
        const { assert!(N.is_power_of_two() && N <= 1 << 16) };
        let indices = self.and(indices, self.splat_bits(N as u32 - 1));
        // SAFETY: each index is below the length of the table. The caller has a value of type `Avx2`, so the
        // processor has the instruction.
        unsafe { _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), indices) }
    }
    #[inline(always)]
    fn shl(self, value: __m256i, bits: u32) -> __m256i {
        intrinsic!(_mm256_sllv_epi32(value, _mm256_set1_epi32(bits.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, value: __m256i, bits: u32) -> __m256i {
        intrinsic!(_mm256_srlv_epi32(value, _mm256_set1_epi32(bits.cast_signed())))
    }
    #[inline(always)]
    fn shr_signed(self, value: __m256i, bits: u32) -> __m256i {
        intrinsic!(_mm256_srav_epi32(value, _mm256_set1_epi32(bits.cast_signed())))
    }
    #[inline(always)]
    fn integers_to_f32(self, value: __m256i) -> __m256 {
        intrinsic!(_mm256_cvtepi32_ps(value))
    }
    #[inline(always)]
    fn bits_to_f32(self, value: __m256i) -> __m256 {
        intrinsic!(_mm256_castsi256_ps(value))
    }
    #[inline(always)]
    fn low_half(self, value: __m256i) -> __m256 {
        // Gather the low halves of each 128-bit part in its first 8 bytes, then join the two parts.
        let order = intrinsic!(_mm256_set_epi8(
            -1, -1, -1, -1, -1, -1, -1, -1, 13, 12, 9, 8, 5, 4, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1, 13, 12, 9, 8, 5,
            4, 1, 0
        ));
        let packed = intrinsic!(_mm256_permute4x64_epi64::<0b1000>(_mm256_shuffle_epi8(value, order)));
        intrinsic!(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)))
    }
    #[inline(always)]
    fn high_half(self, value: __m256i) -> __m256 {
        self.low_half(intrinsic!(_mm256_srli_epi32::<16>(value)))
    }
    #[inline(always)]
    fn load_bits(self, from: &[u8]) -> __m256i {
        // SAFETY: the slice has as many bytes as are read, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(from[..4 * LANES].as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_words(self, from: &[u8]) -> __m256i {
        // SAFETY: the slice has as many bytes as are read, and the load needs no alignment.
        unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from[..2 * LANES].as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_halves(self, from: &[u8]) -> __m256 {
        // SAFETY: the slice has as many bytes as are read, and the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from[..2 * LANES].as_ptr().cast())) }
    }
    #[inline(always)]
    fn columns(self, rows: Rows<'_>, offset: usize) -> [__m256i; 4] {
        let (a, b, c, d) = (
            halves(self, rows, offset, 0),
            halves(self, rows, offset, 1),
            halves(self, rows, offset, 2),
            halves(self, rows, offset, 3),
        );
        let (ab_low, ab_high) = intrinsic!((_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)));
        let (cd_low, cd_high) = intrinsic!((_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d)));
        intrinsic!([
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ])
    }

    /// In 16 bits a step adds at most 2 · 127 · `code_max` to a lane.
    #[inline(always)]
    fn run_steps(code_max: u8) -> usize {
        match (B::IS_FUSED, code_max) {
            (true, _) => usize::MAX,
            (false, 128..) => 1,
            (false, _) => i16::MAX as usize / (2 * 127 * code_max as usize),
        }
    }
    #[inline(always)]
    fn begin(self, sum: __m256i) -> __m256i {
        if B::IS_FUSED { sum } else { intrinsic!(_mm256_setzero_si256()) }
    }
    #[inline(always)]
    fn step<const WIDE: bool>(self, run: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        if WIDE && Self::WIDE_IS_SIGNED {
            // 255 · 127 · 2 would not fit 16 bits, 128 · 127 · 2 does: move the code's sign over to x.
            let signed = intrinsic!(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)));
            return B::add(self, run, intrinsic!(_mm256_abs_epi8(signed)), intrinsic!(_mm256_sign_epi8(x, signed)));
        }
        B::add(self, run, codes, x)
    }
    #[inline(always)]
    fn finish(self, run: __m256i, sum: __m256i) -> __m256i {
        if B::IS_FUSED {
            return run;
        }
        intrinsic!(_mm256_add_epi32(sum, _mm256_madd_epi16(run, _mm256_set1_epi16(1))))
    }
    const ORIGIN: u32 = ORIGIN;
    #[inline(always)]
    fn scaled(self, sum: __m256i, scale: __m256, base: __m256) -> __m256 {
        intrinsic!(_mm256_fmadd_ps(_mm256_castsi256_ps(sum), scale, base))
    }
}

/// Loads 16 bytes of each of the rows `first` and `first + 4`: transposing within the halves of four such vectors
/// leaves the rows in order.
#[inline(always)]
fn halves<B: ByteProducts>(_proof: Avx2<B>, rows: Rows<'_>, offset: usize, first: usize) -> __m256i {
    rows.check(LANES, offset);
    let start = rows.bytes.as_ptr().wrapping_add(first * rows.stride + offset);
    // SAFETY: each of the rows has 16 bytes at the offset, as just checked, and the loads need no alignment. The
    // caller has a value of type `Avx2`, so the processor has the instructions.
    unsafe {
        let v = _mm256_castsi128_si256(_mm_loadu_si128(start.cast()));
        _mm256_inserti128_si256::<1>(v, _mm_loadu_si128(start.add(4 * rows.stride).cast()))
    }
}
