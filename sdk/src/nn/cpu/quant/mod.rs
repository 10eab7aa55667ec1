//! The block formats of quantized weights, as ggml lays them out in GGUF files.
//!
//! Every format says the same thing in its own bits: a row is cut into groups of 16 or 32 values, and a value is
//! `scale · (code − offset) − minimum`, where the code is a small unsigned integer, scale and minimum belong to the
//! group, and the offset to the format. So a format has to do one thing only: take a block apart into codes, scales and
//! minimums. It does so twice: [`expand`](Format::expand) takes one block of one row, in plain code that is easy to
//! check; [`unpack`](Format::unpack) takes one block of as many rows as a vector has lanes, a row to a lane, which
//! needs no more than masks and shifts once the rows' words are transposed. Tests hold the two against each other.

mod blocks256;
mod blocks32;

pub(super) use blocks32::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use blocks256::{Q2K, Q3K, Q4K, Q5K, Q6K};

use super::simd::{Rows, Simd};

/// Values that kernels take at a time: the longest block, or eight of the short ones.
pub(super) const SEGMENT: usize = 256;
/// The most groups in a segment.
pub(super) const GROUPS: usize = SEGMENT / 16;

pub(super) trait Format: Sync + Send + 'static {
    /// Values in a block, and its bytes.
    const BLOCK: usize;
    const BYTES: usize;
    /// Values that share a scale.
    const GROUP: usize;
    /// What is subtracted from a code.
    const OFFSET: u8;
    const CODE_MAX: u8;
    /// Whether groups have a minimum; without one it is taken to be 0 and need not be written.
    const MINIMUMS: bool;

    /// Takes one block apart.
    fn expand(block: &[u8], out: &mut Expanded);

    /// Takes one block of each of `LANES` rows apart.
    fn unpack<S: Simd>(simd: S, rows: Rows<'_>, out: &mut Unpacked<'_, S>);
}

/// One block of one row: a code for each value, a scale and a minimum for each group.
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

/// `$body` with `$format` standing for the format of a dtype, or `$dense` for dtypes without blocks.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr, $dense:expr) => {
        match $dtype {
            $crate::weights::Dtype::F32 | $crate::weights::Dtype::F16 | $crate::weights::Dtype::BF16 => $dense,
            $crate::weights::Dtype::Q4_0 => {
                type $format = $crate::nn::cpu::quant::Q4_0;
                $body
            }
            $crate::weights::Dtype::Q4_1 => {
                type $format = $crate::nn::cpu::quant::Q4_1;
                $body
            }
            $crate::weights::Dtype::Q5_0 => {
                type $format = $crate::nn::cpu::quant::Q5_0;
                $body
            }
            $crate::weights::Dtype::Q5_1 => {
                type $format = $crate::nn::cpu::quant::Q5_1;
                $body
            }
            $crate::weights::Dtype::Q8_0 => {
                type $format = $crate::nn::cpu::quant::Q8_0;
                $body
            }
            $crate::weights::Dtype::Q2K => {
                type $format = $crate::nn::cpu::quant::Q2K;
                $body
            }
            $crate::weights::Dtype::Q3K => {
                type $format = $crate::nn::cpu::quant::Q3K;
                $body
            }
            $crate::weights::Dtype::Q4K => {
                type $format = $crate::nn::cpu::quant::Q4K;
                $body
            }
            $crate::weights::Dtype::Q5K => {
                type $format = $crate::nn::cpu::quant::Q5K;
                $body
            }
            $crate::weights::Dtype::Q6K => {
                type $format = $crate::nn::cpu::quant::Q6K;
                $body
            }
        }
    };
}
pub(super) use with_format;
