//! Weights in the form that the kernels of `products.cu` read: the checkpoint's own blocks, with a block's scale stored
//! separately where it would break the alignment.

use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use half::f16;

use super::{memory::failed, module::Module};
use crate::{
    Result,
    nn::backend::repack::{PART, Packing, Repacked, repack, row_bytes},
    weights::{Dtype, RawTensor},
};

/// A block format that the kernels support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nn) enum Format {
    Q4K,
    Q5K,
    Q6K,
    Q80,
    /// Groups of 32 indices into a table of 16 integers, with a scale each.
    Nibbles,
    /// Like `Nibbles`, with a minimum per group.
    LoweredNibbles,
    Bf16,
}

impl Format {
    /// Returns the format of a matrix that a kernel can read as stored in the checkpoint.
    pub(super) fn of(dtype: Dtype, inputs: usize) -> Option<Self> {
        let (format, multiple) = match dtype {
            Dtype::Q4K => (Self::Q4K, 256),
            Dtype::Q5K => (Self::Q5K, 256),
            Dtype::Q6K => (Self::Q6K, 256),
            Dtype::BF16 => (Self::Bf16, 32),
            _ => return None,
        };
        inputs.is_multiple_of(multiple).then_some(format)
    }

    /// Bytes and separate scales per row of a quantized matrix.
    pub(super) fn row_of(self, inputs: usize) -> (usize, usize) {
        let padded = inputs.next_multiple_of(PART);
        match self {
            Self::Q4K => (inputs / 256 * 144, 0),
            Self::Q5K => (inputs / 256 * 176, 0),
            Self::Q6K => (inputs / 256 * 208, inputs / 256),
            Self::Q80 => (padded, padded / 32),
            Self::Nibbles => (padded / 2, padded / 32),
            Self::LoweredNibbles => (padded / 2, padded / 16),
            Self::Bf16 => (2 * inputs, 0),
        }
    }

    /// Row stride in shared memory modulo 128 at which loads hit different banks.
    pub(super) fn bank_offset(self) -> usize {
        match self {
            Self::Q80 | Self::Nibbles | Self::LoweredNibbles => 64,
            Self::Q4K | Self::Q5K | Self::Q6K | Self::Bf16 => 32,
        }
    }

    /// Id in the kernels that handle several formats.
    pub(super) fn number(self) -> i32 {
        self as i32
    }

    /// Name in the kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Q4K => "q4k",
            Self::Q5K => "q5k",
            Self::Q6K => "q6k",
            Self::Q80 => "q80",
            Self::Nibbles => "n4",
            Self::LoweredNibbles => "n4m",
            Self::Bf16 => "bf16",
        }
    }
}

impl From<Packing> for Format {
    fn from(packing: Packing) -> Self {
        match packing {
            Packing::Bytes => Self::Q80,
            Packing::SixBits => Self::Q6K,
            Packing::Nibbles => Self::Nibbles,
            Packing::LoweredNibbles => Self::LoweredNibbles,
        }
    }
}

/// A weight on the device.
#[derive(Debug)]
pub(in crate::nn) struct Weight {
    pub(super) format: Format,
    pub(super) data: CudaSlice<u8>,
    /// One per block of Q6_K and Q8_0; for nibbles, each group's scale and, if it has one, its minimum.
    pub(super) scales: CudaSlice<f16>,
}

/// Bytes that a matrix with this many rows takes on a device.
pub(in crate::nn) fn loaded_bytes(dtype: Dtype, rows: usize, inputs: usize) -> u64 {
    let in_place = Format::of(dtype, inputs).is_some() || matches!(dtype, Dtype::F32 | Dtype::F16);
    let row = if in_place { dtype.row_bytes(inputs).unwrap_or_default() } else { row_bytes(dtype, inputs) };
    (rows as u64).saturating_mul(row as u64)
}

impl Weight {
    /// Bytes on the device.
    pub(in crate::nn) fn bytes(&self) -> usize {
        self.data.len() + 2 * self.scales.len()
    }

    /// Copies a matrix to the device: unchanged if there is a kernel for it, else in another format that holds its
    /// numbers, else as bf16.
    pub(super) fn upload(module: &Module, raw: &RawTensor, inputs: usize) -> Result<Self> {
        let send = |format, data: &[u8], scales: &[f16]| {
            // An address is needed even for an empty array.
            let scales = if scales.is_empty() { &[f16::ZERO] } else { scales };
            let data = module.stream.clone_htod(data).map_err(failed)?;
            Ok(Self { format, data, scales: module.stream.clone_htod(scales).map_err(failed)? })
        };
        if let Some(format) = Format::of(raw.dtype, inputs) {
            if format != Format::Q6K {
                return send(format, &raw.data, &[]);
            }
            let (data, scales) = apart::<210>(&raw.data, 208);
            return send(format, &data, &scales);
        }
        if let Some(Repacked { packing, data, scales }) = repack(raw, inputs) {
            return send(packing.into(), &data, &scales);
        }
        let values = pensieve_kernels::dequantize(raw)?;
        let data: Vec<u8> = values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect();
        send(Format::Bf16, &data, &[])
    }
}

/// Splits off the f16 at offset `at` of each `N`-byte block.
fn apart<const N: usize>(bytes: &[u8], at: usize) -> (Vec<u8>, Vec<f16>) {
    let blocks = bytes.as_chunks::<N>().0;
    let mut data = Vec::with_capacity(blocks.len() * (N - 2));
    let mut scales = Vec::with_capacity(blocks.len());
    for block in blocks {
        data.extend_from_slice(&block[..at]);
        data.extend_from_slice(&block[at + 2..]);
        scales.push(f16::from_le_bytes([block[at], block[at + 1]]));
    }
    (data, scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_of_each_block_comes_apart() {
        let one = f16::ONE.to_le_bytes();
        let bytes = [7, one[0], one[1], 8, 9, one[0], one[1], 10];
        assert_eq!(apart::<4>(&bytes, 1), (vec![7, 8, 9, 10], vec![f16::ONE, f16::ONE]));
    }
}
