//! Vectors of four lanes with NEON and its products of bytes: dot products, and with `i8mm` those of two rows with two others.

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use super::{Kernel, ORIGIN, Rows, Simd};

/// Proof that the processor has NEON and `dotprod`, and `i8mm` if `I8MM`; only [`detect`](Self::detect) creates it.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const I8MM: bool>(());

impl<const I8MM: bool> Neon<I8MM> {
    pub(super) fn detect() -> Option<Self> {
        let has = is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod");
        let has = has && (!I8MM || is_aarch64_feature_detected!("i8mm"));
        has.then_some(Self(()))
    }

    /// The same without products of two rows with two others.
    pub(super) fn plain(self) -> Neon<false> {
        Neon(())
    }
}

#[target_feature(enable = "neon,dotprod")]
fn enter<const I8MM: bool, K: Kernel<Neon<I8MM>>>(simd: Neon<I8MM>, kernel: K) {
    kernel.run(simd);
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn enter_i8mm<const I8MM: bool, K: Kernel<Neon<I8MM>>>(simd: Neon<I8MM>, kernel: K) {
    kernel.run(simd);
}

/// Calls an intrinsic of the sets whose presence a `Neon` value proves.
macro_rules! intrinsic {
    ($($call:tt)*) => {
        // SAFETY: a value of type `Neon` exists, so the processor has the intrinsic's instruction set; the intrinsic
        // works on registers only.
        unsafe { $($call)* }
    };
}

/// Adds products of bytes to a sum by an instruction of this extension. Rust's intrinsics for these are not stable. Where nothing
/// is inlined, the function around it is compiled without the extension, so the assembler is told of it here.
macro_rules! accumulate {
    ($extension:literal, $instruction:expr, $sum:expr, $a:expr, $b:expr) => {{
        let mut sum = $sum;
        // SAFETY: a value of type `Neon` exists that proves the instruction's presence, that of `smmla` if it is a `Neon<true>`,
        // and only with that is it reached; it works on registers only.
        unsafe {
            std::arch::asm!(
                concat!(".arch_extension ", $extension),
                $instruction,
                sum = inout(vreg) sum,
                a = in(vreg) $a,
                b = in(vreg) $b,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }};
}

const LANES: usize = 4;

impl<const I8MM: bool> Simd for Neon<I8MM> {
    type F = float32x4_t;
    type U = uint32x4_t;
    const LANES: usize = LANES;
    /// Dot products accumulate directly in 32 bits.
    type Run = int32x4_t;
    /// Both factors are signed.
    const WIDE_IS_SIGNED: bool = true;

    #[inline(always)]
    fn enter<K: Kernel<Self>>(self, kernel: K) {
        // SAFETY: the value proves that the processor has what the function enables.
        unsafe { if I8MM { enter_i8mm(self, kernel) } else { enter(self, kernel) } };
    }
    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        intrinsic!(vdupq_n_f32(value))
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> float32x4_t {
        // SAFETY: the slice has as many elements as are read.
        unsafe { vld1q_f32(from[..LANES].as_ptr()) }
    }
    #[inline(always)]
    fn store(self, value: float32x4_t, to: &mut [f32]) {
        // SAFETY: the slice has as many elements as are written.
        unsafe { vst1q_f32(to[..LANES].as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        intrinsic!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn fnma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        intrinsic!(vfmsq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // NEON's own maximum is NaN where either operand is.
        intrinsic!(vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn zero_below(self, value: float32x4_t, by: float32x4_t, limit: f32) -> float32x4_t {
        let below = intrinsic!(vcltq_f32(by, vdupq_n_f32(limit)));
        intrinsic!(vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), below)))
    }
    #[inline(always)]
    fn round(self, value: float32x4_t) -> float32x4_t {
        intrinsic!(vrndnq_f32(value))
    }
    #[inline(always)]
    fn exp2(self, value: float32x4_t) -> float32x4_t {
        let exponent = intrinsic!(vaddq_s32(vcvtq_s32_f32(value), vdupq_n_s32(127)));
        intrinsic!(vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
    }
    #[inline(always)]
    fn store_low_bytes(self, value: float32x4_t, to: &mut [i8]) {
        let words = intrinsic!(vmovn_u32(vreinterpretq_u32_f32(value)));
        let bytes = intrinsic!(vmovn_u16(vcombine_u16(words, words)));
        let four = intrinsic!(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
        for (to, byte) in to[..LANES].iter_mut().zip(four.to_le_bytes()) {
            *to = byte.cast_signed();
        }
    }
    #[inline(always)]
    fn sum(self, value: float32x4_t) -> f32 {
        intrinsic!(vaddvq_f32(value))
    }
    #[inline(always)]
    fn top(self, value: float32x4_t) -> f32 {
        intrinsic!(vmaxnmvq_f32(value))
    }

    #[inline(always)]
    fn splat_bits(self, value: u32) -> uint32x4_t {
        intrinsic!(vdupq_n_u32(value))
    }
    #[inline(always)]
    fn and(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        intrinsic!(vandq_u32(a, b))
    }
    #[inline(always)]
    fn or(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        intrinsic!(vorrq_u32(a, b))
    }
    #[inline(always)]
    fn xor(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        intrinsic!(veorq_u32(a, b))
    }
    #[inline(always)]
    fn add_bits(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        intrinsic!(vaddq_u32(a, b))
    }
    #[inline(always)]
    fn shl(self, value: uint32x4_t, bits: u32) -> uint32x4_t {
        intrinsic!(vshlq_u32(value, vdupq_n_s32(bits.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, value: uint32x4_t, bits: u32) -> uint32x4_t {
        intrinsic!(vshlq_u32(value, vdupq_n_s32(-bits.cast_signed())))
    }
    #[inline(always)]
    fn shr_signed(self, value: uint32x4_t, bits: u32) -> uint32x4_t {
        let shifted = intrinsic!(vshlq_s32(vreinterpretq_s32_u32(value), vdupq_n_s32(-bits.cast_signed())));
        intrinsic!(vreinterpretq_u32_s32(shifted))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: uint32x4_t) -> uint32x4_t {
        // SAFETY: the table has the 16 bytes that are read.
        let table = unsafe { vld1q_u8(table.as_ptr()) };
        intrinsic!(vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(indices))))
    }
    #[inline(always)]
    fn gather<const N: usize>(self, table: &[u32; N], indices: uint32x4_t) -> uint32x4_t {
        const { assert!(N.is_power_of_two()) };
        let (mut places, mut words) = ([0; LANES], [0; LANES]);
        // SAFETY: both arrays have as many elements as are written and read.
        unsafe {
            vst1q_u32(places.as_mut_ptr(), indices);
            for lane in 0..LANES {
                words[lane] = table[places[lane] as usize & (N - 1)];
            }
            vld1q_u32(words.as_ptr())
        }
    }
    #[inline(always)]
    fn integers_to_f32(self, value: uint32x4_t) -> float32x4_t {
        intrinsic!(vcvtq_f32_s32(vreinterpretq_s32_u32(value)))
    }
    #[inline(always)]
    fn bits_to_f32(self, value: uint32x4_t) -> float32x4_t {
        intrinsic!(vreinterpretq_f32_u32(value))
    }
    #[inline(always)]
    fn low_half(self, value: uint32x4_t) -> float32x4_t {
        widen(self, intrinsic!(vmovn_u32(value)))
    }
    #[inline(always)]
    fn high_half(self, value: uint32x4_t) -> float32x4_t {
        widen(self, intrinsic!(vshrn_n_u32::<16>(value)))
    }
    #[inline(always)]
    fn load_bits(self, from: &[u8]) -> uint32x4_t {
        // SAFETY: the slice has as many bytes as are read.
        intrinsic!(vreinterpretq_u32_u8(vld1q_u8(from[..4 * LANES].as_ptr())))
    }
    #[inline(always)]
    fn load_words(self, from: &[u8]) -> uint32x4_t {
        // SAFETY: the slice has as many bytes as are read.
        intrinsic!(vmovl_u16(vreinterpret_u16_u8(vld1_u8(from[..2 * LANES].as_ptr()))))
    }
    #[inline(always)]
    fn load_halves(self, from: &[u8]) -> float32x4_t {
        // SAFETY: the slice has as many bytes as are read.
        widen(self, intrinsic!(vreinterpret_u16_u8(vld1_u8(from[..2 * LANES].as_ptr()))))
    }
    #[inline(always)]
    fn columns(self, rows: Rows<'_>, offset: usize) -> [uint32x4_t; 4] {
        rows.check(LANES, offset);
        let start = rows.bytes.as_ptr().wrapping_add(offset);
        // SAFETY: each of the rows has 16 bytes at the offset, as just checked.
        let row = |row: usize| unsafe { vreinterpretq_u32_u8(vld1q_u8(start.add(row * rows.stride))) };
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        // Columns 0 and 2, and 1 and 3, of two rows each.
        let (ab_even, ab_odd) = intrinsic!((vtrn1q_u32(a, b), vtrn2q_u32(a, b)));
        let (cd_even, cd_odd) = intrinsic!((vtrn1q_u32(c, d), vtrn2q_u32(c, d)));
        let wide = |v| intrinsic!(vreinterpretq_u64_u32(v));
        let (first, third) =
            intrinsic!((vtrn1q_u64(wide(ab_even), wide(cd_even)), vtrn2q_u64(wide(ab_even), wide(cd_even)),));
        let (second, fourth) =
            intrinsic!((vtrn1q_u64(wide(ab_odd), wide(cd_odd)), vtrn2q_u64(wide(ab_odd), wide(cd_odd))));
        [first, second, third, fourth].map(|column| intrinsic!(vreinterpretq_u32_u64(column)))
    }

    #[inline(always)]
    fn run_steps(_code_max: u8) -> usize {
        usize::MAX
    }
    #[inline(always)]
    fn begin(self, sum: uint32x4_t) -> int32x4_t {
        intrinsic!(vreinterpretq_s32_u32(sum))
    }
    #[inline(always)]
    fn step<const WIDE: bool>(self, run: int32x4_t, codes: uint32x4_t, x: uint32x4_t) -> int32x4_t {
        accumulate!(
            "dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            run,
            if WIDE { signed(self, codes) } else { codes },
            x
        )
    }
    #[inline(always)]
    fn finish(self, run: int32x4_t, _sum: uint32x4_t) -> uint32x4_t {
        intrinsic!(vreinterpretq_u32_s32(run))
    }
    const HAS_DOTS: bool = true;
    /// Sums of rows together have to be taken apart for each group. In groups of four words that costs more than it saves.
    #[inline(always)]
    fn rows_together(words: usize) -> usize {
        if I8MM && words > 4 { 2 } else { 1 }
    }
    /// Signed, and of each two words: rows 0 and 1, then rows 2 and 3, eight columns each.
    #[inline(always)]
    fn arrange(self, codes: &mut [uint32x4_t], code_max: u8) {
        for four in codes.as_chunks_mut().0 {
            let [mut a, mut b, mut c, mut d] = *four;
            if code_max > 127 {
                (a, b, c, d) = (signed(self, a), signed(self, b), signed(self, c), signed(self, d));
            }
            *four = intrinsic!([vzip1q_u32(a, b), vzip2q_u32(a, b), vzip1q_u32(c, d), vzip2q_u32(c, d)]);
        }
    }
    #[inline(always)]
    fn dots<const P: usize, const N: usize>(
        self,
        codes: [&[uint32x4_t]; P],
        code_max: u8,
        x: [&[[i8; 4]]; N],
        sums: [[uint32x4_t; P]; N],
    ) -> [[uint32x4_t; P]; N] {
        match I8MM && N > 1 && Self::rows_together(codes[0].len()) > 1 {
            true => self.dots_of_pairs(codes, x, sums),
            false => self.dots_by_lanes(codes, code_max, x, sums),
        }
    }
    const ORIGIN: u32 = ORIGIN;
    #[inline(always)]
    fn scaled(self, sum: uint32x4_t, scale: float32x4_t, base: float32x4_t) -> float32x4_t {
        intrinsic!(vfmaq_f32(base, vreinterpretq_f32_u32(sum), scale))
    }
}

/// Codes above 127 without their offset of 128.
#[inline(always)]
fn signed<const I8MM: bool>(simd: Neon<I8MM>, codes: uint32x4_t) -> uint32x4_t {
    simd.xor(codes, simd.splat_bits(0x8080_8080))
}

/// Sixteen activations from word `first` on.
#[inline(always)]
fn sixteen<const I8MM: bool>(_proof: Neon<I8MM>, x: &[[i8; 4]], first: usize) -> uint32x4_t {
    let x = x[first..first + 4].as_flattened();
    // SAFETY: the slice has the 16 bytes that are read.
    unsafe { vreinterpretq_u32_s8(vld1q_s8(x.as_ptr())) }
}

impl<const I8MM: bool> Neon<I8MM> {
    /// [`dots`](Simd::dots) with four words of activations to a register.
    #[inline(always)]
    fn dots_by_lanes<const P: usize, const N: usize>(
        self,
        codes: [&[uint32x4_t]; P],
        code_max: u8,
        x: [&[[i8; 4]]; N],
        mut sums: [[uint32x4_t; P]; N],
    ) -> [[uint32x4_t; P]; N] {
        for first in (0..codes[0].len()).step_by(4) {
            let mut sixteens = [self.splat_bits(0); N];
            for i in 0..N {
                sixteens[i] = sixteen(self, x[i], first);
            }
            macro_rules! lane {
                ($lane:literal) => {
                    for p in 0..P {
                        let codes = codes[p][first + $lane];
                        let codes = if code_max > 127 { signed(self, codes) } else { codes };
                        for i in 0..N {
                            let sum = &mut sums[i][p];
                            *sum = accumulate!(
                                "dotprod",
                                concat!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[", $lane, "]"),
                                *sum,
                                codes,
                                sixteens[i]
                            );
                        }
                    }
                };
            }
            lane!(0);
            lane!(1);
            lane!(2);
            lane!(3);
        }
        sums
    }

    /// [`dots`](Simd::dots) of arranged codes. An odd last row is multiplied beside itself.
    #[inline(always)]
    fn dots_of_pairs<const P: usize, const N: usize>(
        self,
        codes: [&[uint32x4_t]; P],
        x: [&[[i8; 4]]; N],
        mut sums: [[uint32x4_t; P]; N],
    ) -> [[uint32x4_t; P]; N] {
        let second = |i: usize| (i + 1).min(N - 1);
        // Rows of weights 0 and 1, and 2 and 3, each with both rows of activations.
        let mut blocks = [[[self.splat_bits(0); 2]; P]; N];
        for i in (0..N).step_by(2) {
            for p in 0..P {
                let (a, b) = (sums[i][p], sums[second(i)][p]);
                blocks[i][p] = intrinsic!([vzip1q_u32(a, b), vzip2q_u32(a, b)]);
            }
        }
        for first in (0..codes[0].len()).step_by(4) {
            for i in (0..N).step_by(2) {
                let (a, b) = (sixteen(self, x[i], first), sixteen(self, x[second(i)], first));
                let (a, b) = intrinsic!((vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
                let both = intrinsic!([vzip1q_u64(a, b), vzip2q_u64(a, b)]);
                for eight in 0..2 {
                    for p in 0..P {
                        for half in 0..2 {
                            let codes = codes[p][first + 2 * eight + half];
                            let block = &mut blocks[i][p][half];
                            *block = accumulate!(
                                "i8mm",
                                "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                                *block,
                                codes,
                                both[eight]
                            );
                        }
                    }
                }
            }
        }
        for i in (0..N).step_by(2) {
            for p in 0..P {
                let [a, b] = blocks[i][p];
                sums[i][p] = intrinsic!(vuzp1q_u32(a, b));
                sums[second(i)][p] = if i + 1 < N { intrinsic!(vuzp2q_u32(a, b)) } else { sums[i][p] };
            }
        }
        sums
    }
}

/// Converts half-precision numbers.
#[inline(always)]
fn widen<const I8MM: bool>(_proof: Neon<I8MM>, halves: uint16x4_t) -> float32x4_t {
    intrinsic!(vcvt_f32_f16(vreinterpret_f16_u16(halves)))
}
