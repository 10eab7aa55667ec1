//! Packed keys and values in stock candle ops, whose tensors hold the bytes of `kv_packed.rs`.
//!
//! candle cannot take a tensor's bytes for other numbers, so codes and scales are looked up. Rows are packed on the host.

use candle_core::{DType, Device, Tensor};
use half::f16;
use pensieve_kernels::{Packing, ROTATED_MAX, pack_rows, rotated};

use crate::Result;

/// What packed rows are read by, on a device.
pub(super) struct PackedTables {
    /// By a scale's second byte: the scale if its first one is 0, and what a unit of that adds.
    scales: [Tensor; 2],
    /// The number that is each byte.
    bytes: Tensor,
    /// The numbers that are the halves of each byte.
    halves: [Tensor; 2],
    /// Of `ROTATED_MAX` rows, each of ones and minus ones; the matrices of smaller powers of two are its corners.
    hadamard: Tensor,
}

impl PackedTables {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let of_bytes = |value: fn(u8) -> f32| Tensor::from_iter((0..=u8::MAX).map(value), device);
        let hadamard = (0..ROTATED_MAX).flat_map(|row| {
            (0..ROTATED_MAX).map(move |column| if (row & column).count_ones() % 2 == 0 { 1.0_f32 } else { -1.0 })
        });
        Ok(Self {
            scales: [of_bytes(|high| half([0, high]))?, of_bytes(|high| half([1, high]) - half([0, high]))?],
            bytes: of_bytes(|byte| f32::from(byte.cast_signed()))?,
            halves: [
                of_bytes(|byte| f32::from((byte << 4).cast_signed() >> 4))?,
                of_bytes(|byte| f32::from(byte.cast_signed() >> 4))?,
            ],
            hadamard: Tensor::from_iter(hadamard, device)?.reshape((ROTATED_MAX, ROTATED_MAX))?,
        })
    }

    /// Packed rows, `[heads, rows, bytes]`, as `f32`: `[heads, rows, dim]`.
    pub(super) fn widen(&self, rows: &Tensor, packing: Packing, dim: usize) -> Result<Tensor> {
        let (heads, count, _) = rows.dims3()?;
        let blocks = rows.reshape((heads * count, (), packing.block_bytes()))?;
        let columns = |start: usize, len: usize| blocks.narrow(2, start, len)?.contiguous();
        // Of 8-bit ids candle takes the largest for none.
        let look_up = |table: &Tensor, ids: &Tensor| {
            table.index_select(&ids.flatten_all()?.to_dtype(DType::U32)?, 0)?.reshape(ids.dims())
        };
        let (low, high) = (columns(0, 1)?, columns(1, 1)?);
        let [base, unit] = &self.scales;
        let scales = (look_up(base, &high)? + (look_up(unit, &high)? * low.to_dtype(DType::F32)?)?)?;
        let codes = columns(2, packing.block_bytes() - 2)?;
        let codes = match packing {
            Packing::Q8 => look_up(&self.bytes, &codes)?,
            Packing::Q4 => {
                let [low, high] = &self.halves;
                Tensor::cat(&[look_up(low, &codes)?, look_up(high, &codes)?], 2)?
            }
        };
        let values = codes.broadcast_mul(&scales)?.reshape((heads * count, ()))?;
        let values = values.narrow(1, 0, dim)?.force_contiguous()?;
        let group = rotated(dim);
        let corner = self.hadamard.narrow(0, 0, group)?.narrow(1, 0, group)?.force_contiguous()?;
        let rotation = (corner * (group as f64).sqrt().recip())?;
        Ok(values.reshape(((), group))?.matmul(&rotation)?.reshape((heads, count, dim))?)
    }
}

fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// New rows, `[heads, rows, dim]`, packed.
pub(super) fn packed(rows: &Tensor, packing: Packing) -> Result<Tensor> {
    let (heads, count, dim) = rows.dims3()?;
    let bytes = pack_rows(packing, &rows.flatten_all()?.to_vec1::<f32>()?, dim);
    Ok(Tensor::from_vec(bytes, (heads, count, packing.row_bytes(dim)), rows.device())?)
}
