//! Made-up weights: blocks of every format that kernels read, and what they mean.

use half::{bf16, f16};

use crate::weights::Dtype;

/// Numbers without regularities that an indexing error could hide behind.
pub(in crate::nn) struct Noise(u64);

impl Noise {
    pub(in crate::nn) fn new(seed: usize) -> Self {
        Self(seed as u64 * 2 + 1)
    }

    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Between −1 and 1.
    pub(in crate::nn) fn value(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }

    pub(in crate::nn) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

/// The bytes of a weight `[outputs, inputs]` in a format: any bits, under scales that keep values near 1. Nothing for rows of no
/// whole number of blocks.
pub(in crate::nn) fn weight(dtype: Dtype, outputs: usize, inputs: usize, seed: usize) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    let mut values = || noise.values(outputs * inputs).into_iter();
    let mut bytes: Vec<u8> = match dtype {
        Dtype::F32 => values().flat_map(f32::to_le_bytes).collect(),
        Dtype::F16 => values().flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        Dtype::BF16 => values().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => {
            let row_bytes = dtype.row_bytes(inputs).unwrap_or_default();
            (0..outputs * row_bytes).map(|_| noise.bits() as u8).collect()
        }
    };
    if dtype.is_quantized() {
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            scale(dtype, block, &mut noise);
        }
    }
    bytes
}

/// Such a weight, and what it means.
#[cfg(test)]
pub(in crate::nn) struct Weight {
    pub(in crate::nn) bytes: Vec<u8>,
    dtype: Dtype,
    outputs: usize,
    inputs: usize,
}

#[cfg(test)]
impl Weight {
    pub(in crate::nn) fn noise(dtype: Dtype, outputs: usize, inputs: usize, seed: usize) -> Self {
        Self { bytes: weight(dtype, outputs, inputs, seed), dtype, outputs, inputs }
    }

    /// The meaning of its rows.
    pub(in crate::nn) fn rows(&self) -> Vec<Vec<f32>> {
        let row = |bytes: &[u8]| {
            let mut values = vec![0.0; self.inputs];
            pensieve_kernels::dequantize_row(self.dtype, bytes, &mut values);
            values
        };
        self.bytes.chunks_exact(self.bytes.len() / self.outputs).map(row).collect()
    }
}

/// Puts a block's scales, and minimums if it has any, where its format has them.
fn scale(dtype: Dtype, block: &mut [u8], noise: &mut Noise) {
    let (offsets, size): (&[usize], f32) = match dtype {
        Dtype::Q4_1 | Dtype::Q5_1 => (&[0, 2], 0.06),
        Dtype::Q2K => (&[80, 82], 0.03),
        Dtype::Q3K => (&[108], 0.01),
        Dtype::Q4K | Dtype::Q5K => (&[0, 2], 0.001),
        Dtype::Q6K => (&[208], 0.0005),
        Dtype::IQ4XS => (&[0], 0.0005),
        Dtype::Q8_0 | Dtype::IQ4NL => (&[0], 0.01),
        Dtype::MXFP4 => {
            block[0] = 120 + (noise.bits() % 6) as u8;
            return;
        }
        Dtype::Int4 | Dtype::Int8 => {
            block[..4].copy_from_slice(&(0.02 * noise.value()).to_le_bytes());
            return;
        }
        _ => (&[0], 0.1),
    };
    for offset in offsets {
        let value = f16::from_f32(size * (1.5 + noise.value()));
        block[*offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }
}
