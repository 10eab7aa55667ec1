//! Weights as the kernels of `products.cu` read them: in the checkpoint's own blocks, with the scale of a block apart
//! where it would spoil the alignment.

use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use half::f16;

use super::{memory::failed, module::Module};
use crate::{
    Result,
    nn::cpu,
    weights::{Dtype, RawTensor},
};

/// A block format that the kernels know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nn) enum Format {
    Q4K,
    Q5K,
    Q6K,
    Q80,
    Bf16,
}

impl Format {
    /// The format of a matrix, where there is a kernel for it.
    pub(super) fn of(dtype: Dtype, inputs: usize) -> Option<Self> {
        let (format, multiple) = match dtype {
            Dtype::Q4K => (Self::Q4K, 256),
            Dtype::Q5K => (Self::Q5K, 256),
            Dtype::Q6K => (Self::Q6K, 256),
            Dtype::Q8_0 => (Self::Q80, 32),
            Dtype::BF16 => (Self::Bf16, 32),
            _ => return None,
        };
        inputs.is_multiple_of(multiple).then_some(format)
    }

    /// Bytes and separate scales of a row of a quantized matrix.
    pub(super) fn row_of(self, inputs: usize) -> (usize, usize) {
        match self {
            Self::Q4K => (inputs / 256 * 144, 0),
            Self::Q5K => (inputs / 256 * 176, 0),
            Self::Q6K => (inputs / 256 * 208, inputs / 256),
            Self::Q80 => (inputs, inputs / 32),
            Self::Bf16 => (2 * inputs, 0),
        }
    }

    /// The number in kernels of several formats.
    pub(super) fn number(self) -> i32 {
        self as i32
    }

    /// The name in kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Q4K => "q4k",
            Self::Q5K => "q5k",
            Self::Q6K => "q6k",
            Self::Q80 => "q80",
            Self::Bf16 => "bf16",
        }
    }
}

/// A weight on the device.
#[derive(Debug)]
pub(in crate::nn) struct Weight {
    pub(super) format: Format,
    pub(super) data: CudaSlice<u8>,
    /// One for each block of Q6_K and Q8_0.
    pub(super) scales: CudaSlice<f16>,
}

impl Weight {
    /// Copies a matrix to the device.
    pub(super) fn upload(module: &Module, raw: &RawTensor, format: Format) -> Result<Self> {
        let send = |bytes: &[u8]| module.stream.clone_htod(bytes).map_err(failed);
        let (data, scales) = match format {
            Format::Q4K | Format::Q5K | Format::Bf16 => (send(&raw.data)?, vec![f16::ZERO]),
            Format::Q6K => {
                let (data, scales) = apart::<210>(&raw.data, 208);
                (send(&data)?, scales)
            }
            Format::Q80 => {
                let (data, scales) = apart::<34>(&raw.data, 0);
                (send(&data)?, scales)
            }
        };
        let scales = module.stream.clone_htod(&scales).map_err(failed)?;
        Ok(Self { format, data, scales })
    }
}

impl Weight {
    /// Copies a matrix of a format without a kernel to the device, as bf16.
    pub(super) fn unpacked(module: &Module, raw: &RawTensor) -> Result<Self> {
        let values = cpu::dequantize(raw)?;
        let bytes: Vec<u8> = values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect();
        let data = module.stream.clone_htod(&bytes).map_err(failed)?;
        let scales = module.stream.clone_htod(&[f16::ZERO]).map_err(failed)?;
        Ok(Self { format: Format::Bf16, data, scales })
    }
}

/// Blocks of `N` bytes without the f16 at `at`, and these.
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
