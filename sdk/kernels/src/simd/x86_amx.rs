//! The matrix unit of x86 processors (AMX): products of tiles of 16 × 32 numbers in `bf16`, summed in `f32`.
//!
//! Rust has no stable intrinsics for it, so its six instructions are written in assembly here. The registers that they use
//! hold 8 KiB, which Linux saves only for processes that have asked for it, and only for threads that have put something
//! in them: so each task configures its thread's tiles when it begins and releases them when it ends.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{Avx512, Simd};

#[cfg(test)]
mod emulated;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Numbers in a row of a tile of factors, which are as long as a cache line.
pub(crate) const TILE_COLS: usize = 32;
/// Sums in a row of a tile of sums.
pub(crate) const TILE_SUMS: usize = 16;

/// A row of a tile. Of the left factors it holds 32 columns of one row; of the right factors two columns of 16 rows, in
/// pairs.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u16; TILE_COLS]);

impl Line {
    pub(crate) const ZERO: Self = Self([0; TILE_COLS]);
}

/// Proof that the processor has AMX with `bf16` beside AVX-512 with `bf16`, and that this process may use it (in unit tests, that it is
/// emulated otherwise); only [`detect`](Self::detect) creates it.
#[derive(Clone, Copy)]
pub(crate) struct Amx(Avx512);

impl Amx {
    pub(super) fn detect() -> Option<Self> {
        let avx512 = Avx512::detect()?;
        let is_usable = is_x86_feature_detected!("avx512bf16") && (has_unit() || cfg!(test));
        is_usable.then_some(Self(avx512))
    }

    pub(crate) fn avx512(self) -> Avx512 {
        self.0
    }

    /// Runs a kernel in a function that has AVX-512 with `bf16` enabled.
    #[inline(always)]
    pub(crate) fn enter<K: TileKernel>(self, kernel: K) {
        // SAFETY: the value proves that the processor has what the function enables.
        unsafe { enter(self, kernel) };
    }

    /// Rounds two columns of 16 rows to `bf16`, in pairs: a line of the right factors.
    #[inline(always)]
    pub(crate) fn pairs(self, columns: [__m512; 2]) -> __m512i {
        // SAFETY: the value proves that the processor has the instructions; they work on registers only.
        unsafe {
            let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(columns[1], columns[0]));
            _mm512_permutexvar_epi16(_mm512_load_si512((&raw const INTERLEAVED).cast()), rounded)
        }
    }

    /// Rounds 32 columns of a row to `bf16`: a line of the left factors.
    #[inline(always)]
    pub(crate) fn row(self, columns: [__m512; 2]) -> __m512i {
        // SAFETY: as above.
        unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(columns[1], columns[0])) }
    }

    /// What rounding to [`pairs`](Self::pairs) left of the columns.
    #[inline(always)]
    pub(crate) fn rest_of_pairs(self, columns: [__m512; 2], pairs: __m512i) -> [__m512; 2] {
        let simd = self.0;
        let high = simd.and(pairs, simd.splat_bits(0xffff_0000));
        let rounded = [simd.bits_to_f32(simd.shl(pairs, 16)), simd.bits_to_f32(high)];
        [simd.sub(columns[0], rounded[0]), simd.sub(columns[1], rounded[1])]
    }

    /// What rounding to a [`row`](Self::row) left of the columns.
    #[inline(always)]
    pub(crate) fn rest_of_row(self, columns: [__m512; 2], row: __m512i) -> [__m512; 2] {
        let simd = self.0;
        // SAFETY: the value proves that the processor has the instructions; they work on registers only.
        let rounded = unsafe {
            let (low, high) = (_mm512_castsi512_si256(row), _mm512_extracti64x4_epi64::<1>(row));
            [_mm512_cvtepu16_epi32(low), _mm512_cvtepu16_epi32(high)]
        };
        let rounded = [simd.bits_to_f32(simd.shl(rounded[0], 16)), simd.bits_to_f32(simd.shl(rounded[1], 16))];
        [simd.sub(columns[0], rounded[0]), simd.sub(columns[1], rounded[1])]
    }

    #[inline(always)]
    pub(crate) fn store(self, line: __m512i, to: &mut Line) {
        // SAFETY: a line has the 64 bytes that are written, and their alignment.
        unsafe { _mm512_store_si512((&raw mut *to).cast(), line) };
    }

    /// Configures the calling thread's tiles.
    pub(crate) fn tiles(self) -> Tiles {
        #[cfg(test)]
        if !has_unit() {
            return Tiles(PhantomData);
        }
        // SAFETY: the value proves that the processor has the instruction and that the process may use it. It reads the 64
        // bytes of the configuration, which is valid: eight tiles within the limits of palette 1.
        unsafe { std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly)) };
        Tiles(PhantomData)
    }
}

/// Work that is compiled for AVX-512 with `bf16`. Implementations of `run` are `#[inline(always)]`.
pub(crate) trait TileKernel {
    fn run(self, amx: Amx);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
fn enter<K: TileKernel>(amx: Amx, kernel: K) {
    kernel.run(amx);
}

/// Places of the first and second half's numbers in turn.
static INTERLEAVED: Line = {
    let mut places = [0; TILE_COLS];
    let mut at = 0;
    while at < TILE_COLS {
        places[at] = (at / 2 + at % 2 * TILE_SUMS) as u16;
        at += 1;
    }
    Line(places)
};

/// Palette 1: eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The processor has tiles, and this process may use them. Unit tests emulate them otherwise.
fn has_unit() -> bool {
    static HAS_UNIT: OnceLock<bool> = OnceLock::new();
    *HAS_UNIT.get_or_init(|| is_present() && is_permitted())
}

/// The processor has the instructions, and the system saves their registers.
fn is_present() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: the register is there if the system has enabled XSAVE, which the caller has checked.
        unsafe { _xgetbv(0) }
    }
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const TILES_SAVED: u64 = 3 << 17;
    if !is_x86_feature_detected!("xsave") || __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: XSAVE is there and enabled, as just checked.
    let saved = unsafe { saved() };
    features & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE && saved & TILES_SAVED == TILES_SAVED
}

/// Asks Linux for the use of tiles by all threads of the process. Linux before 5.16 does not know the question.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const REQUEST: libc::c_ulong = 0x1023;
    const TILES: libc::c_ulong = 18;
    // SAFETY: the call changes nothing but what the process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILES) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The calling thread's tiles, configured until this is dropped.
pub(crate) struct Tiles(PhantomData<*mut ()>);

impl Drop for Tiles {
    fn drop(&mut self) {
        #[cfg(test)]
        if !has_unit() {
            return;
        }
        // SAFETY: the value proves that the instruction is there; it clears the tiles, which hold nothing between products.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Where sums are: each row `stride` elements after the one before.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) at: *mut f32,
    pub(crate) stride: usize,
}

/// The factors of two tiles: where their first step is, and how many lines further on the next one is.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    at: [*const Line; 2],
    stride: usize,
}

impl Factors {
    #[inline(always)]
    pub(crate) fn new(lines: [&[Line]; 2], split: Split) -> Self {
        Self { at: lines.map(<[Line]>::as_ptr), stride: split.lines(1) }
    }
}

/// How many numbers of `bf16` each number of a factor is split into, which have 8 more of its bits each. Those of a step stand
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Split(pub(crate) usize);

impl Split {
    /// Lines of 16 rows or columns.
    pub(crate) const fn lines(self, steps: usize) -> usize {
        self.0 * steps * TILE_ROWS
    }

    /// Where a part of a line stands.
    #[inline(always)]
    fn at(self, line: usize, part: usize) -> usize {
        (line / TILE_ROWS * self.0 + part) * TILE_ROWS + line % TILE_ROWS
    }

    /// Stores the parts of 32 numbers of a row: a line of left factors.
    #[inline(always)]
    pub(crate) fn store_row(self, amx: Amx, mut columns: [__m512; 2], line: usize, lines: &mut [Line]) {
        for part in 0..self.0 {
            let rounded = amx.row(columns);
            amx.store(rounded, &mut lines[self.at(line, part)]);
            columns = amx.rest_of_row(columns, rounded);
        }
    }

    /// Stores the parts of two rows of 16 columns: a line of right factors.
    #[inline(always)]
    pub(crate) fn store_pairs(self, amx: Amx, mut rows: [__m512; 2], line: usize, lines: &mut [Line]) {
        for part in 0..self.0 {
            let rounded = amx.pairs(rows);
            amx.store(rounded, &mut lines[self.at(line, part)]);
            rows = amx.rest_of_pairs(rows, rounded);
        }
    }
}

/// How the left and the right factors are split. The products of parts that are left out are below the last bit of an `f32`, or
/// of 16 bits with two parts of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    OneByOne,
    TwoByTwo,
    ThreeByOne,
    ThreeByTwo,
    ThreeByThree,
}

impl Parts {
    pub(crate) const fn left(self) -> Split {
        Split(match self {
            Self::OneByOne => 1,
            Self::TwoByTwo => 2,
            Self::ThreeByOne | Self::ThreeByTwo | Self::ThreeByThree => 3,
        })
    }

    pub(crate) const fn right(self) -> Split {
        Split(match self {
            Self::OneByOne | Self::ThreeByOne => 1,
            Self::TwoByTwo | Self::ThreeByTwo => 2,
            Self::ThreeByThree => 3,
        })
    }
}

/// Loads two tiles of left factors, and multiplies them with the right ones.
macro_rules! next_left {
    ($part:literal, $_right:literal) => {
        concat!(
            "tileloadd tmm4, [{left0} + {scratch}*1 + 1024*",
            $part,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tileloadd tmm5, [{left1} + {scratch}*1 + 1024*",
            $part,
            "]\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tdpbf16ps tmm3, tmm5, tmm7",
        )
    };
}

/// Loads two tiles of right factors, and multiplies the left ones with them.
macro_rules! next_right {
    ($_left:literal, $part:literal) => {
        concat!(
            "tileloadd tmm6, [{right0} + {scratch}*1 + 1024*",
            $part,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tileloadd tmm7, [{right1} + {scratch}*1 + 1024*",
            $part,
            "]\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tdpbf16ps tmm3, tmm5, tmm7",
        )
    };
}

/// Loads two tiles of each, and multiplies them.
macro_rules! both {
    ($left:literal, $right:literal) => {
        concat!(
            "tileloadd tmm4, [{left0} + {scratch}*1 + 1024*",
            $left,
            "]\n",
            "tileloadd tmm6, [{right0} + {scratch}*1 + 1024*",
            $right,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tileloadd tmm5, [{left1} + {scratch}*1 + 1024*",
            $left,
            "]\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tileloadd tmm7, [{right1} + {scratch}*1 + 1024*",
            $right,
            "]\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tdpbf16ps tmm3, tmm5, tmm7",
        )
    };
}

/// The products of two by two tiles, with these in each step.
macro_rules! products {
    ($left:ident, $right:ident, $steps:ident, $from:ident, $to:ident, $($product:expr),+) => {
        std::arch::asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {from}, {from}",
            "jz 2f",
            "tileloadd tmm0, [{from} + {from_stride}*1]",
            "tileloadd tmm1, [{from} + {from_stride}*1 + 64]",
            "mov {scratch}, {from_stride}",
            "shl {scratch}, 4",
            "add {scratch}, {from}",
            "tileloadd tmm2, [{scratch} + {from_stride}*1]",
            "tileloadd tmm3, [{scratch} + {from_stride}*1 + 64]",
            "2:",
            "mov {scratch}, 64",
            "3:",
            $($product,)+
            "add {left0}, {left_stride}",
            "add {left1}, {left_stride}",
            "add {right0}, {right_stride}",
            "add {right1}, {right_stride}",
            "dec {steps}",
            "jnz 3b",
            "tilestored [{to} + {to_stride}*1], tmm0",
            "tilestored [{to} + {to_stride}*1 + 64], tmm1",
            "mov {scratch}, {to_stride}",
            "shl {scratch}, 4",
            "add {scratch}, {to}",
            "tilestored [{scratch} + {to_stride}*1], tmm2",
            "tilestored [{scratch} + {to_stride}*1 + 64], tmm3",
            left0 = inout(reg) $left.at[0] => _,
            left1 = inout(reg) $left.at[1] => _,
            left_stride = in(reg) size_of::<Line>() * $left.stride,
            right0 = inout(reg) $right.at[0] => _,
            right1 = inout(reg) $right.at[1] => _,
            right_stride = in(reg) size_of::<Line>() * $right.stride,
            steps = inout(reg) $steps => _,
            from = in(reg) $from.at,
            from_stride = in(reg) 4 * $from.stride,
            to = in(reg) $to.at,
            to_stride = in(reg) 4 * $to.stride,
            scratch = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// As `both`, with one tile of left factors.
macro_rules! one {
    ($left:literal, $right:literal) => {
        concat!(
            "tileloadd tmm4, [{left} + {scratch}*1 + 1024*",
            $left,
            "]\n",
            "tileloadd tmm6, [{right0} + {scratch}*1 + 1024*",
            $right,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tileloadd tmm7, [{right1} + {scratch}*1 + 1024*",
            $right,
            "]\n",
            "tdpbf16ps tmm1, tmm4, tmm7",
        )
    };
}

/// The products of one by two tiles, with these in each step.
macro_rules! products_of_one {
    ($left:ident, $right:ident, $steps:ident, $from:ident, $to:ident, $($product:expr),+) => {
        std::arch::asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "test {from}, {from}",
            "jz 2f",
            "tileloadd tmm0, [{from} + {from_stride}*1]",
            "tileloadd tmm1, [{from} + {from_stride}*1 + 64]",
            "2:",
            "mov {scratch}, 64",
            "3:",
            $($product,)+
            "add {left}, {left_stride}",
            "add {right0}, {right_stride}",
            "add {right1}, {right_stride}",
            "dec {steps}",
            "jnz 3b",
            "tilestored [{to} + {to_stride}*1], tmm0",
            "tilestored [{to} + {to_stride}*1 + 64], tmm1",
            left = inout(reg) $left.at[0] => _,
            left_stride = in(reg) size_of::<Line>() * $left.stride,
            right0 = inout(reg) $right.at[0] => _,
            right1 = inout(reg) $right.at[1] => _,
            right_stride = in(reg) size_of::<Line>() * $right.stride,
            steps = inout(reg) $steps => _,
            from = in(reg) $from.at,
            from_stride = in(reg) 4 * $from.stride,
            to = in(reg) $to.at,
            to_stride = in(reg) 4 * $to.stride,
            scratch = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// The products of parts that matter, in an order in which most need a new part of one side only. It is the same for one tile of left
/// factors and for two, so a row is the same to the last bit in both.
macro_rules! of_parts {
    ($parts:ident, $products:ident, [$both:ident, $left:ident, $right:ident], $($rest:ident),+) => {
        match $parts {
            Parts::OneByOne => $products!($($rest,)+ $both!(0, 0)),
            Parts::TwoByTwo => $products!($($rest,)+ $both!(1, 0), $left!(0, 0), $right!(0, 1)),
            Parts::ThreeByOne => $products!($($rest,)+ $both!(2, 0), $left!(1, 0), $left!(0, 0)),
            Parts::ThreeByTwo => {
                $products!($($rest,)+ $both!(2, 0), $left!(1, 0), $right!(1, 1), $left!(0, 1), $right!(0, 0))
            }
            Parts::ThreeByThree => $products!(
                $($rest,)+ $both!(2, 0), $left!(1, 0), $right!(1, 1), $left!(0, 1), $right!(0, 0), $right!(0, 2)
            ),
        }
    };
}

impl Tiles {
    /// Multiplies two tiles of 16 rows in each step with two tiles of 16 columns, and writes the 32 × 32 sums to `to`,
    /// added to those in `from` unless that is null.
    ///
    /// The parts that a number has in each factor stand one after another in each step. The products of parts that matter are
    /// summed.
    ///
    /// # Safety
    /// Each step of the factors has 16 lines for each of their parts. `to` and, unless it is null, `from` have 32 rows of 32
    /// elements.
    #[inline(always)]
    pub(crate) unsafe fn two_by_two(
        &self,
        parts: Parts,
        left: Factors,
        right: Factors,
        steps: usize,
        from: Sums,
        to: Sums,
    ) {
        #[cfg(test)]
        if !has_unit() {
            // SAFETY: as the caller promises.
            return unsafe { emulated::products(2, parts, left, right, steps, from, to) };
        }
        // SAFETY: the tiles are configured. What is read and written is as the caller promises.
        unsafe { of_parts!(parts, products, [both, next_left, next_right], left, right, steps, from, to) };
    }

    /// As [`two_by_two`](Self::two_by_two), with the first tile of 16 rows.
    ///
    /// # Safety
    /// As for that. `to` and, unless it is null, `from` have 16 rows of 32 elements.
    #[inline(always)]
    pub(crate) unsafe fn one_by_two(
        &self,
        parts: Parts,
        left: Factors,
        right: Factors,
        steps: usize,
        from: Sums,
        to: Sums,
    ) {
        #[cfg(test)]
        if !has_unit() {
            // SAFETY: as the caller promises.
            return unsafe { emulated::products(1, parts, left, right, steps, from, to) };
        }
        // SAFETY: the tiles are configured. What is read and written is as the caller promises.
        unsafe { of_parts!(parts, products_of_one, [one, one, one], left, right, steps, from, to) };
    }
}
