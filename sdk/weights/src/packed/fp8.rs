//! FP8 (E4M3) with one scale per tensor, row or block.

use std::collections::BTreeMap;

use ::safetensors::Dtype as StoredDtype;

use super::{Recipe, by_rows, floats, head, take};
use crate::{Bytes, Dtype, Error, RawTensor, Result, safetensors::Stored};

const BLOCK: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Fp8 {
    codes: Bytes,
    scales: Stored,
    /// Rows and columns that share a scale, and the number of scales along a row.
    rows: usize,
    cols: usize,
    across: usize,
}

pub(super) fn assemble(
    layer: &str,
    block: (usize, usize),
    left: &mut BTreeMap<String, Stored>,
) -> Result<(RawTensor, Recipe)> {
    let codes = take(left, &format!("{layer}.weight"), &[StoredDtype::F8_E4M3])?;
    let names = ["weight_scale_inv", "weight_scale"].map(|name| format!("{layer}.{name}"));
    let name = names.iter().find(|name| left.contains_key(*name)).unwrap_or(&names[0]);
    let scales = take(left, name, &super::FLOATS)?;
    let &[rows, cols] = codes.shape.as_slice() else {
        return Err(Error::unsupported(format!("it is of shape {:?}, and only matrices are read", codes.shape)));
    };
    let squares = [rows.div_ceil(block.0.max(1)), cols.div_ceil(block.1.max(1))];
    let (rows, cols, across) = match scales.shape.as_slice() {
        [] | [1] | [1, 1] => (rows, cols, 1),
        [count] | [count, 1] if *count == rows => (1, cols, 1),
        shape if *shape == squares && block.1.is_multiple_of(BLOCK) => (block.0, block.1, squares[1]),
        shape => {
            let message = format!("it is of shape {:?} and has scales of shape {shape:?}", codes.shape);
            return Err(Error::unsupported(message));
        }
    };
    let head = head(layer, Dtype::Fp8, &codes.shape, &codes.data);
    Ok((head, Recipe::Fp8(Fp8 { codes: codes.data, scales, rows, cols, across })))
}

impl Fp8 {
    pub(super) fn unpack(&self, head: &RawTensor) -> Result<Bytes> {
        let scales = floats(&self.scales)?;
        if self.codes.iter().any(|code| code & 0x7f == 0x7f) {
            return Err(Error::corrupt("it has values that are no numbers"));
        }
        let cols = head.shape.last().copied().unwrap_or_default();
        by_rows(head, |rows, data| {
            let codes = self.codes[rows.start * cols..rows.end * cols].as_chunks::<BLOCK>().0;
            let blocks = cols / BLOCK;
            for (i, (codes, data)) in codes.iter().zip(data.chunks_exact_mut(BLOCK + 4)).enumerate() {
                let (row, col) = (rows.start + i / blocks, i % blocks * BLOCK);
                let scale = scales[row / self.rows * self.across + col / self.cols];
                data[..4].copy_from_slice(&scale.to_le_bytes());
                data[4..].copy_from_slice(codes);
            }
        })
    }
}
