//! Tables that stay in their file: n-gram embeddings and other memories larger than the machine's.

use candle_core::Tensor;
use std::fmt::Display;

use crate::{
    Error, Result,
    nn::{Loader, Step},
    weights::RawTensor,
};

/// A table of vectors, quantized or not, of which only the rows that a step asks for are read. The system loads pages as
/// they are touched and drops them when memory is short, so the table may be larger than memory. It takes no adapters.
#[derive(Clone, Debug)]
pub struct MappedTable {
    raw: RawTensor,
    rows: usize,
    width: usize,
}

impl MappedTable {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Looks up rows by any ids, such as hashes of the tokens before: `[ids, width]`. An id may occur often.
    pub fn lookup(&self, ids: &[u32], step: &Step<'_>) -> Result<Tensor> {
        let row_bytes = self.raw.data.len() / self.rows;
        let mut values = vec![0.0; ids.len() * self.width];
        for (&id, out) in ids.iter().zip(values.chunks_exact_mut(self.width)) {
            let start = id as usize * row_bytes;
            let Some(row) = self.raw.data.get(start..start + row_bytes).filter(|_| (id as usize) < self.rows) else {
                let message = format!("row {id} of table '{}', which has {}", self.raw.name, self.rows);
                return Err(Error::invalid(message));
            };
            pensieve_kernels::dequantize_row(self.raw.dtype, row, out);
        }
        step.ops().activation_of(values, (ids.len(), self.width))
    }
}

impl Loader<'_> {
    /// Opens the table `name.weight`, of shape `[rows, width]`, in its file.
    /// [`Decoder::is_mapped`](crate::nn::Decoder::is_mapped) is to return true for its name, or else it counts as a
    /// weight that has to fit memory.
    pub fn table(&self, name: impl Display, rows: usize, width: usize) -> Result<MappedTable> {
        let raw = self.at(name).mapped("weight", &[rows, width])?;
        if rows == 0 || width == 0 || raw.dtype.row_bytes(width).map(|bytes| bytes * rows) != Some(raw.data.len()) {
            let message =
                format!("tensor '{}' of {rows} rows of {width} values has {} bytes", raw.name, raw.data.len());
            return Err(Error::corrupt(message));
        }
        raw.data.read_at_random();
        Ok(MappedTable { raw, rows, width })
    }
}
