//! The block formats of quantized weights, as ggml lays them out in GGUF files.
//!
//! All formats encode the same thing: a row is cut into groups of 16 or 32 values, and a value is `scale · (code −
//! offset) − minimum`, where the code is a small unsigned integer, scale and minimum belong to the group, and the
//! offset belongs to the format. So a format only has to split a block into codes, scales and minimums. It does so
//! twice: [`expand`](Format::expand) handles one block of one row, in plain code that is easy to check;
//! [`unpack`](Format::unpack) handles one block of as many rows as a vector has lanes, one row per lane, which takes
//! only masks, shifts and small tables once the rows' words are transposed. Tests compare the two. Those with
//! blocks of 32 values and some others also have [`dots`](Format::dots), which multiplies codes by a few rows of activations without storing them; its results
//! are those of the same rows in a larger batch, to the last bit.

mod blocks256;
mod blocks32;
mod codebooks;
mod grids;
mod plain;
mod points;
mod ternary;
#[cfg(test)]
mod tests;

pub(super) use blocks32::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use blocks256::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use codebooks::levels;
pub(super) use codebooks::{Iq4Nl, Iq4Xs, Mxfp4};
pub(super) use plain::{Int4, Int8};
pub(super) use points::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(super) use ternary::{Tq1, Tq2};

use super::simd::{Rows, Simd};

/// Values that kernels process at a time: the longest block, or eight short ones.
pub(super) const SEGMENT: usize = 256;
/// Maximum number of groups in a segment.
pub(super) const GROUPS: usize = SEGMENT / 16;

/// Properties of a format that products depend on; formats that differ only in their bits share the code after
/// unpacking.
pub(super) trait Layout: Sync + Send + 'static {
    /// Values per block.
    const BLOCK: usize;
    /// Values per scale.
    const GROUP: usize;
    /// The largest code.
    const CODE_MAX: u8;
    /// Groups have a minimum. In other formats it is 0 and need not be written.
    const MINIMUMS: bool;
}

pub(super) struct Shape<const BLOCK: usize, const GROUP: usize, const CODE_MAX: u8, const MINIMUMS: bool>;

impl<const BLOCK: usize, const GROUP: usize, const CODE_MAX: u8, const MINIMUMS: bool> Layout
    for Shape<BLOCK, GROUP, CODE_MAX, MINIMUMS>
{
    const BLOCK: usize = BLOCK;
    const GROUP: usize = GROUP;
    const CODE_MAX: u8 = CODE_MAX;
    const MINIMUMS: bool = MINIMUMS;
}

pub(super) trait Format: Sync + Send + 'static {
    type Shape: Layout;
    const BLOCK: usize = <Self::Shape as Layout>::BLOCK;
    const GROUP: usize = <Self::Shape as Layout>::GROUP;
    /// Bytes per block.
    const BYTES: usize;
    /// Subtracted from each code; 0 if groups have a minimum.
    const OFFSET: u8;

    /// Unpacks one block of one row.
    fn expand(block: &[u8], out: &mut Expanded);

    /// Unpacks one block of each of `LANES` rows.
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>);

    /// The format has [`dots`](Self::dots).
    const HAS_DOTS: bool = Self::BLOCK == 32 && Self::GROUP == 32;

    /// Multiplies one block of each of `LANES` rows by `N` rows of activations. Codes are used as they are unpacked and
    /// stay in registers, which pays where they are used a few times. Those of a block of 32 values fit in registers.
    #[inline(always)]
    fn dots<S: Simd, const N: usize>(simd: S, rows: Rows<'_>, x: [Codes<'_>; N], out: &mut Dots<'_, S, N>) {
        let mut codes = [simd.splat_bits(0); 8];
        let unpacked = &mut Unpacked { codes: &mut codes, scales: out.scales, minimums: out.minimums };
        Self::unpack(simd, rows, unpacked);
        let starts = starts::<S, Self::Shape, N>(simd, &x, 0);
        out.dots[0] = dot_each::<S, Self::Shape, 8, 8, N>(simd, codes, words(&x), 0, starts);
    }
}

/// One block of one row: a code per value, a scale and a minimum per group.
pub(super) struct Expanded {
    pub(super) codes: [u8; SEGMENT],
    pub(super) scales: [f32; GROUPS],
    pub(super) minimums: [f32; GROUPS],
}

impl Default for Expanded {
    fn default() -> Self {
        Self { codes: [0; SEGMENT], scales: [0.0; GROUPS], minimums: [0.0; GROUPS] }
    }
}

/// One block of `LANES` rows: lane `r` of `codes[i]` holds the codes of values 4i to 4i + 3 of row `r`.
pub(super) struct Unpacked<'a, S: Simd> {
    pub(super) codes: &'a mut [S::U],
    pub(super) scales: &'a mut [S::F],
    pub(super) minimums: &'a mut [S::F],
}

/// A row of activations that a block is multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    pub(super) codes: &'a [i8],
    /// What the dot product of each group starts with if the format has no minimums.
    pub(super) starts: &'a [u32],
}

/// One block of `LANES` rows times `N` rows of activations: lane `r` of `dots[g][i]` is the product of row `r`'s group `g` and
/// of activations `i`, offset by `S::ORIGIN`.
pub(super) struct Dots<'a, S: Simd, const N: usize> {
    pub(super) dots: &'a mut [[S::U; N]],
    pub(super) scales: &'a mut [S::F],
    pub(super) minimums: &'a mut [S::F],
}

/// Activations by fours.
#[inline(always)]
fn words<'a, const WORDS: usize, const N: usize>(x: &[Codes<'a>; N]) -> [&'a [[i8; 4]; WORDS]; N] {
    // `map` is not always inlined.
    let mut words = [const { &[[0; 4]; WORDS] }; N];
    for i in 0..N {
        words[i] = match x[i].codes.as_chunks::<4>().0.first_chunk() {
            Some(words) => words,
            None => unreachable!("a block has {} values", 4 * WORDS),
        };
    }
    words
}

/// What the dot products of a group start with.
#[inline(always)]
fn starts<S: Simd, L: Layout, const N: usize>(simd: S, x: &[Codes<'_>; N], group: usize) -> [S::U; N] {
    let mut starts = [simd.splat_bits(S::ORIGIN); N];
    if !L::MINIMUMS {
        for i in 0..N {
            starts[i] = simd.splat_bits(x[i].starts[group]);
        }
    }
    starts
}

/// [`dot`] of the same codes with each row of activations.
#[inline(always)]
fn dot_each<S: Simd, L: Layout, const WORDS: usize, const ALL: usize, const N: usize>(
    simd: S,
    codes: [S::U; WORDS],
    x: [&[[i8; 4]; ALL]; N],
    first: usize,
    mut sums: [S::U; N],
) -> [S::U; N] {
    for i in 0..N {
        sums[i] = dot::<S, L, WORDS>(simd, codes, x[i], first, sums[i]);
    }
    sums
}

/// 32 bytes of each row by fours.
#[inline(always)]
fn eight<S: Simd>(simd: S, rows: Rows<'_>, offset: usize) -> [S::U; 8] {
    let [a, b, c, d] = simd.columns(rows, offset);
    let [e, f, g, h] = simd.columns(rows, offset + 16);
    [a, b, c, d, e, f, g, h]
}

/// Adds the product of `N` words of codes with those of the activations from `first` on to `sum`.
#[inline(always)]
fn dot<S: Simd, L: Layout, const N: usize>(simd: S, codes: [S::U; N], x: &[[i8; 4]], first: usize, sum: S::U) -> S::U {
    if S::HAS_DOTS {
        let [[sum]] = simd.dots([&codes], L::CODE_MAX, [&x[first..first + N]], [[sum]]);
        return sum;
    }
    let run_steps = N.min(S::run_steps(L::CODE_MAX));
    let mut sum = sum;
    for run in 0..N / run_steps {
        let mut grown = simd.begin(sum);
        for step in 0..run_steps {
            let word = run * run_steps + step;
            let four = simd.splat_bits(u32::from_le_bytes(x[first + word].map(i8::cast_unsigned)));
            grown = match L::CODE_MAX > 127 {
                true => simd.step::<true>(grown, codes[word], four),
                false => simd.step::<false>(grown, codes[word], four),
            };
        }
        sum = simd.finish(grown, sum);
    }
    sum
}

/// Evaluates `$body` with `$format` bound to the format of a dtype, or `$dense` for unquantized dtypes.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr, $dense:expr) => {
        match $dtype {
            pensieve_weights::Dtype::F32
            | pensieve_weights::Dtype::F16
            | pensieve_weights::Dtype::BF16
            | pensieve_weights::Dtype::Fp8 => $dense,
            pensieve_weights::Dtype::Q4_0 => {
                type $format = $crate::quant::Q4_0;
                $body
            }
            pensieve_weights::Dtype::Q4_1 => {
                type $format = $crate::quant::Q4_1;
                $body
            }
            pensieve_weights::Dtype::Q5_0 => {
                type $format = $crate::quant::Q5_0;
                $body
            }
            pensieve_weights::Dtype::Q5_1 => {
                type $format = $crate::quant::Q5_1;
                $body
            }
            pensieve_weights::Dtype::Q8_0 => {
                type $format = $crate::quant::Q8_0;
                $body
            }
            pensieve_weights::Dtype::Q2K => {
                type $format = $crate::quant::Q2K;
                $body
            }
            pensieve_weights::Dtype::Q3K => {
                type $format = $crate::quant::Q3K;
                $body
            }
            pensieve_weights::Dtype::Q4K => {
                type $format = $crate::quant::Q4K;
                $body
            }
            pensieve_weights::Dtype::Q5K => {
                type $format = $crate::quant::Q5K;
                $body
            }
            pensieve_weights::Dtype::Q6K => {
                type $format = $crate::quant::Q6K;
                $body
            }
            pensieve_weights::Dtype::MXFP4 => {
                type $format = $crate::quant::Mxfp4;
                $body
            }
            pensieve_weights::Dtype::IQ4NL => {
                type $format = $crate::quant::Iq4Nl;
                $body
            }
            pensieve_weights::Dtype::IQ4XS => {
                type $format = $crate::quant::Iq4Xs;
                $body
            }
            pensieve_weights::Dtype::IQ3XXS => {
                type $format = $crate::quant::Iq3Xxs;
                $body
            }
            pensieve_weights::Dtype::IQ3S => {
                type $format = $crate::quant::Iq3S;
                $body
            }
            pensieve_weights::Dtype::IQ2XXS => {
                type $format = $crate::quant::Iq2Xxs;
                $body
            }
            pensieve_weights::Dtype::IQ2XS => {
                type $format = $crate::quant::Iq2Xs;
                $body
            }
            pensieve_weights::Dtype::IQ2S => {
                type $format = $crate::quant::Iq2S;
                $body
            }
            pensieve_weights::Dtype::IQ1S => {
                type $format = $crate::quant::Iq1S;
                $body
            }
            pensieve_weights::Dtype::IQ1M => {
                type $format = $crate::quant::Iq1M;
                $body
            }
            pensieve_weights::Dtype::TQ1_0 => {
                type $format = $crate::quant::Tq1;
                $body
            }
            pensieve_weights::Dtype::TQ2_0 => {
                type $format = $crate::quant::Tq2;
                $body
            }
            pensieve_weights::Dtype::Int4 => {
                type $format = $crate::quant::Int4;
                $body
            }
            pensieve_weights::Dtype::Int8 => {
                type $format = $crate::quant::Int8;
                $body
            }
        }
    };
}
pub(super) use with_format;
