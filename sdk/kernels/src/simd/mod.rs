//! One vector interface for every instruction set.
//!
//! Kernels are written once, over [`Simd`], and compiled once for each instruction set that the machine may have. A
//! value of a set's type proves that the processor supports it: such values come only from [`Level`], which queries the
//! processor. So kernels stay safe code, and the unsafe intrinsics sit in one small file per set. Adding a set means
//! writing one such file.
//!
//! In every set, a vector lane never looks at its neighbours except in `sum` and `top`, and in `dots`, whose integers are
//! exact, so that what a kernel computes for a row depends on that row alone.

#[cfg(target_arch = "aarch64")]
mod arm_neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_amx;
#[cfg(target_arch = "x86_64")]
mod x86_avx2;
#[cfg(target_arch = "x86_64")]
mod x86_avx512;

#[cfg(target_arch = "aarch64")]
pub(super) use arm_neon::Neon;
pub(super) use portable::Portable;
use portable::half_to_f32;
#[cfg(target_arch = "x86_64")]
pub(super) use {
    x86_amx::{Amx, Factors, Line, Parts, Split, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, Tiles},
    x86_avx2::{Avx2, Vnni},
    x86_avx512::Avx512,
};

/// Work that is compiled for an instruction set. Implementations of `run` are `#[inline(always)]`, so that their body
/// becomes part of a function that has the set enabled.
pub(super) trait Kernel<S: Simd> {
    fn run(self, simd: S);
}

/// A kernel compiled for every set of vectors.
#[cfg(target_arch = "x86_64")]
pub(super) trait AnyKernel: Kernel<Portable> + Kernel<Avx2> + Kernel<Avx512> {}
#[cfg(target_arch = "x86_64")]
impl<K: Kernel<Portable> + Kernel<Avx2> + Kernel<Avx512>> AnyKernel for K {}
#[cfg(target_arch = "aarch64")]
pub(super) trait AnyKernel: Kernel<Portable> + Kernel<Neon<false>> {}
#[cfg(target_arch = "aarch64")]
impl<K: Kernel<Portable> + Kernel<Neon<false>>> AnyKernel for K {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) trait AnyKernel: Kernel<Portable> {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl<K: Kernel<Portable>> AnyKernel for K {}

/// A kernel with products of bytes; also compiled for sets that differ from others only in those.
#[cfg(target_arch = "x86_64")]
pub(super) trait ByteKernel: AnyKernel + Kernel<Avx2<Vnni>> {}
#[cfg(target_arch = "x86_64")]
impl<K: AnyKernel + Kernel<Avx2<Vnni>>> ByteKernel for K {}
#[cfg(target_arch = "aarch64")]
pub(super) trait ByteKernel: AnyKernel + Kernel<Neon<true>> {}
#[cfg(target_arch = "aarch64")]
impl<K: AnyKernel + Kernel<Neon<true>>> ByteKernel for K {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) trait ByteKernel: AnyKernel {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl<K: AnyKernel> ByteKernel for K {}

/// Vectors of `LANES` 32-bit lanes.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// Lanes of `f32`.
    type F: Copy + Send + Sync;
    /// 32-bit lanes: integers, or four bytes.
    type U: Copy + Send + Sync;
    const LANES: usize;

    /// Runs a kernel in a function that has this set enabled.
    fn enter<K: Kernel<Self>>(self, kernel: K);

    fn splat(self, value: f32) -> Self::F;
    /// Loads the first `LANES` elements; panics if the slice is shorter.
    fn load(self, from: &[f32]) -> Self::F;
    fn store(self, value: Self::F, to: &mut [f32]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once if the set supports it.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Returns `b` where either operand is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// 0 in the lanes where `by` is below `limit`, else `value`.
    fn zero_below(self, value: Self::F, by: Self::F, limit: f32) -> Self::F;
    /// Rounds to the nearest integers.
    fn round(self, value: Self::F) -> Self::F;
    /// Two to the power of integers in -126..=127.
    fn exp2(self, value: Self::F) -> Self::F;
    /// Stores the lowest byte of each lane's bits.
    fn store_low_bytes(self, value: Self::F, to: &mut [i8]);
    fn sum(self, value: Self::F) -> f32;
    fn top(self, value: Self::F) -> f32;

    fn splat_bits(self, value: u32) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn or(self, a: Self::U, b: Self::U) -> Self::U;
    fn xor(self, a: Self::U, b: Self::U) -> Self::U;
    /// Addition modulo 2³².
    fn add_bits(self, a: Self::U, b: Self::U) -> Self::U;
    fn shl(self, value: Self::U, bits: u32) -> Self::U;
    fn shr(self, value: Self::U, bits: u32) -> Self::U;
    /// Arithmetic right shift.
    fn shr_signed(self, value: Self::U, bits: u32) -> Self::U;
    /// Looks up the table's byte for each byte of the indices, which are all below 16.
    fn lookup(self, table: &[u8; 16], indices: Self::U) -> Self::U;
    /// Looks up the table's word for each lane, by the low bits of its index; the table's length is a power of two.
    fn gather<const N: usize>(self, table: &[u32; N], indices: Self::U) -> Self::U;
    /// Converts signed integers to `f32`.
    fn integers_to_f32(self, value: Self::U) -> Self::F;
    /// Reinterprets bits as `f32`.
    fn bits_to_f32(self, value: Self::U) -> Self::F;
    /// Converts the half-precision number in the low 16 bits.
    fn low_half(self, value: Self::U) -> Self::F;
    /// Converts the half-precision number in the high 16 bits.
    fn high_half(self, value: Self::U) -> Self::F;
    /// Load `LANES` numbers: of 32 bits, of 16 bits, and half-precision.
    fn load_bits(self, from: &[u8]) -> Self::U;
    fn load_words(self, from: &[u8]) -> Self::U;
    fn load_halves(self, from: &[u8]) -> Self::F;
    /// Loads four columns of 4 bytes: lane `r` of column `c` holds bytes `offset + 4c ..` of row `r`.
    fn columns(self, rows: Rows<'_>, offset: usize) -> [Self::U; 4];

    // Dot products of unsigned with signed bytes, four to a lane.

    /// Products summed over a run of steps short enough not to overflow.
    type Run: Copy;
    /// Codes above 127 are read as signed numbers plus 128, and multiplied without that offset.
    const WIDE_IS_SIGNED: bool;
    /// Maximum number of steps in a run whose codes are at most `code_max`.
    fn run_steps(code_max: u8) -> usize;
    /// Begins a run that will be added to `sum`.
    fn begin(self, sum: Self::U) -> Self::Run;
    /// Adds the products of the four codes in each lane with the four signed bytes of `x`.
    fn step<const WIDE: bool>(self, run: Self::Run, codes: Self::U, x: Self::U) -> Self::Run;
    /// Adds a finished run to the 32-bit sum that it began with.
    fn finish(self, run: Self::Run, sum: Self::U) -> Self::U;
    /// The integer that [`scaled`](Self::scaled) treats as 0.
    const ORIGIN: u32;
    /// The set has [`dots`](Self::dots), which is better than a [`step`](Self::step) for each word.
    const HAS_DOTS: bool = false;
    /// Rows of activations that `dots` multiplies by one instruction, if there are several and groups have this many words.
    #[inline(always)]
    fn rows_together(_words: usize) -> usize {
        1
    }
    /// Puts words of codes, a multiple of four, into the form in which `dots` takes them for rows together.
    #[inline(always)]
    fn arrange(self, _codes: &mut [Self::U], _code_max: u8) {}
    /// Adds to `sums[i][p]` the products of a group's codes `p`, which are at most `code_max`, with its activations `i`: as many
    /// words of each, a multiple of four. Codes for [several rows together](Self::rows_together) are [arranged](Self::arrange).
    #[inline(always)]
    fn dots<const P: usize, const N: usize>(
        self,
        _codes: [&[Self::U]; P],
        _code_max: u8,
        _x: [&[[i8; 4]]; N],
        _sums: [[Self::U; P]; N],
    ) -> [[Self::U; P]; N] {
        unreachable!("called only if HAS_DOTS");
    }
    /// Multiplies an integer of magnitude below 2²², offset by `ORIGIN`, by a scale from [`based`], rounding once.
    fn scaled(self, sum: Self::U, scale: Self::F, base: Self::F) -> Self::F;
}

/// The bits of 1.5 · 2²³: adding an integer of magnitude below 2²² to these bits adds it to the number.
pub(super) const ORIGIN: u32 = 0x4b40_0000;

/// Smaller scales have no inverse and count as 0.
const LEAST_SCALE: f32 = f32::MIN_POSITIVE;

/// Larger scales become NaN, as their bases would be infinite.
const LARGEST_SCALE: f32 = 1e31;

/// Rounds a scale up until its last two bits are 0, and returns it with the base that `scaled` adds: minus the scale
/// times 1.5 · 2²³, which 24 bits represent exactly.
#[inline(always)]
pub(super) fn based(scale: f32) -> (f32, f32) {
    if scale < LEAST_SCALE {
        return (0.0, 0.0);
    }
    if scale.is_nan() || scale >= LARGEST_SCALE {
        return (f32::NAN, f32::NAN);
    }
    let scale = f32::from_bits((scale.to_bits() + 3) & !3);
    (scale, scale * -f32::from_bits(ORIGIN))
}

/// Rows of bytes at a fixed stride; a kernel reads as many of them as it has lanes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    /// The same rows from byte `offset` on.
    #[inline(always)]
    pub(super) fn skip(self, offset: usize) -> Self {
        Self { bytes: &self.bytes[offset..], stride: self.stride }
    }

    /// Panics unless each of the first `rows` rows has 16 bytes from `offset` on.
    #[inline(always)]
    fn check(self, rows: usize, offset: usize) {
        assert!((rows - 1) * self.stride + offset + 16 <= self.bytes.len(), "rows end before byte {}", offset + 16);
    }
}

/// The instruction set that kernels use.
#[derive(Clone, Copy)]
pub struct Level(pub(super) Set);

/// The sets, each with the proof that this machine has it.
#[derive(Clone, Copy)]
pub(super) enum Set {
    Portable(Portable),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon<false>),
    /// NEON, and an instruction for products of two rows with two others.
    #[cfg(target_arch = "aarch64")]
    I8mm(Neon<true>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX2, and an instruction for products of bytes.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(Avx2<Vnni>),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512, and tiles for products of many rows.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
}

impl Level {
    /// The set that every machine has.
    pub const PORTABLE: Self = Self(Set::Portable(Portable));

    /// The fastest that this machine has.
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self::PORTABLE)
    }

    /// All that this machine has, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let special = [
            Amx::detect().map(Set::Amx),
            Avx512::detect().map(Set::Avx512),
            Avx2::detect().map(Set::AvxVnni),
            Avx2::detect().map(Set::Avx2),
        ];
        #[cfg(target_arch = "aarch64")]
        let special = [Neon::detect().map(Set::I8mm), Neon::detect().map(Set::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let special: [Option<Set>; 0] = [];
        special.into_iter().flatten().map(Self).chain([Self::PORTABLE])
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable(_) => "portable",
            #[cfg(target_arch = "aarch64")]
            Set::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Set::I8mm(_) => "i8mm",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Amx(_) => "amx",
        }
    }

    pub(super) fn run(self, kernel: impl AnyKernel) {
        match self.0 {
            Set::Portable(simd) => simd.enter(kernel),
            #[cfg(target_arch = "aarch64")]
            Set::Neon(simd) => simd.enter(kernel),
            #[cfg(target_arch = "aarch64")]
            Set::I8mm(simd) => simd.plain().enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(simd) => simd.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(simd) => simd.plain().enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(simd) => simd.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Amx(amx) => amx.avx512().enter(kernel),
        }
    }

    /// Runs a kernel that multiplies bytes.
    pub(super) fn run_on_bytes(self, kernel: impl ByteKernel) {
        match self.0 {
            #[cfg(target_arch = "aarch64")]
            Set::I8mm(simd) => simd.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(simd) => simd.enter(kernel),
            _ => self.run(kernel),
        }
    }

    /// True if the level has a matrix unit.
    pub(super) fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.tiles().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The matrix unit, if the level has one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tiles(self) -> Option<Amx> {
        match self.0 {
            Set::Amx(amx) => Some(amx),
            _ => None,
        }
    }
}

/// Prefetches a cache line into the L2 cache, which supports many more outstanding fills than L1. The address need not
/// be valid; does nothing on sets without a prefetch.
#[inline(always)]
pub(super) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could observe, and any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// As [`prefetch`], into the L1 cache and for this core alone, since the line will be written.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch_to_write<T>(at: *const T) {
    use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) };
}

/// Reads the half-precision number at byte `offset`.
#[inline(always)]
pub(super) fn half(bytes: &[u8], offset: usize) -> f32 {
    half_to_f32(u32::from(u16::from_le_bytes([bytes[offset], bytes[offset + 1]])))
}

/// e to the power of each lane, within 2 ULP; 0 below -87, exactly 1 at 0.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::F) -> S::F {
    const LOWEST: f32 = -87.0;
    let clamped = simd.min(simd.splat(88.0), simd.max(simd.splat(LOWEST), x));
    let twos = simd.round(simd.mul(clamped, simd.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, the first with few enough bits for an exact product.
    let rest = simd.fnma(twos, simd.splat(0.693_359_4), clamped);
    let rest = simd.fnma(twos, simd.splat(-2.121_944_4e-4), rest);
    let mut power = simd.splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = simd.fma(power, rest, simd.splat(coefficient));
    }
    simd.zero_below(simd.mul(power, simd.exp2(twos)), x, LOWEST)
}

/// 2 to the power of each lane, to a relative error of 2e-7; 2⁻¹²⁶ below -126 and 2¹²⁷ above 127, exact at whole numbers.
#[inline(always)]
pub(super) fn exp2<S: Simd>(simd: S, x: S::F) -> S::F {
    let clamped = simd.min(simd.splat(127.0), simd.max(simd.splat(-126.0), x));
    let twos = simd.round(clamped);
    let rest = simd.sub(clamped, twos);
    // A polynomial that is 1 at 0 and interpolates 2ˣ at the Chebyshev nodes of -1/2..1/2, to 5.1e-9.
    let mut power = simd.splat(0.000_154_531_63);
    for coefficient in [0.001_339_086_3, 0.009_618_083, 0.055_503_57, 0.240_226_5, std::f32::consts::LN_2, 1.0] {
        power = simd.fma(power, rest, simd.splat(coefficient));
    }
    simd.mul(power, simd.exp2(twos))
}

/// Hyperbolic tangent of each lane.
#[inline(always)]
pub(super) fn tanh<S: Simd>(simd: S, x: S::F) -> S::F {
    let one = simd.splat(1.0);
    let squared = exp(simd, simd.add(x, x));
    simd.sub(one, simd.div(simd.splat(2.0), simd.add(squared, one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a mut [f32]);

    impl<S: Simd> Kernel<S> for Exp<'_> {
        #[inline(always)]
        fn run(self, simd: S) {
            for lanes in self.0.chunks_exact_mut(S::LANES) {
                let value = exp(simd, simd.load(lanes));
                simd.store(value, lanes);
            }
        }
    }

    #[test]
    fn exp_is_close_everywhere_and_exact_at_its_ends() {
        for level in Level::available() {
            let x: Vec<f32> = (0..16000).map(|i| (i as f32 - 14000.0) * 0.00625).collect();
            let mut y = x.clone();
            level.run(Exp(&mut y));
            for (x, y) in x.iter().zip(&y) {
                let expected = f64::from(*x).exp();
                let error = (f64::from(*y) - expected).abs();
                assert!(error <= expected * 3e-7 + 2e-38, "{}: exp({x}) gave {y}", level.name());
            }
            let mut ends = [0.0, f32::NEG_INFINITY, f32::NAN, -1e30, 1e30, -0.0, 88.0, 1.0].repeat(2);
            level.run(Exp(&mut ends));
            assert_eq!((ends[0], ends[1], ends[3], ends[5]), (1.0, 0.0, 0.0, 1.0));
            assert!(ends[2].is_nan() && ends[4] > 1e38);
        }
    }

    struct Exp2<'a>(&'a mut [f32]);

    impl<S: Simd> Kernel<S> for Exp2<'_> {
        #[inline(always)]
        fn run(self, simd: S) {
            for lanes in self.0.chunks_exact_mut(S::LANES) {
                let value = exp2(simd, simd.load(lanes));
                simd.store(value, lanes);
            }
        }
    }

    #[test]
    fn exp2_is_close_everywhere_and_exact_at_whole_numbers() {
        for level in Level::available() {
            let x: Vec<f32> = (-16_000..16_000).map(|i| i as f32 / 127.0).collect();
            let mut y = x.clone();
            level.run(Exp2(&mut y));
            for (x, y) in x.iter().zip(&y) {
                let expected = f64::from(*x).exp2();
                let error = (f64::from(*y) - expected).abs();
                assert!(error <= expected * 2e-7, "{}: 2 to the {x} gave {y}", level.name());
                assert!(x.fract() != 0.0 || f64::from(*y) == expected, "{}: 2 to the {x} gave {y}", level.name());
            }
            let mut ends = [0.0, f32::NEG_INFINITY, f32::NAN, -1e30, 1e30, -0.0, 127.0, 1.0].repeat(2);
            level.run(Exp2(&mut ends));
            let lowest = f32::MIN_POSITIVE;
            assert_eq!((ends[0], ends[1], ends[3], ends[5]), (1.0, lowest, lowest, 1.0));
            assert!(ends[2].is_nan() && ends[4] > 1e38);
        }
    }
}
