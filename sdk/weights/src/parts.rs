//! Views and copies of parts of a tensor: one expert of a stack, every second row, the transpose of GPT-2's and
//! gpt-oss's matrices.
//!
//! Contiguous parts are read in place. Others are copied once, while a model loads.

use super::{Bytes, RawTensor, quote};
use crate::{Error, Result};

impl RawTensor {
    /// Slice `index` of the first dimension, without that dimension, such as one expert's weight from a stack.
    pub fn part(&self, index: usize) -> Result<Self> {
        let mut part = self.rows(index..index + 1)?;
        part.shape.remove(0);
        Ok(part)
    }

    /// Copies every `step`th row of a matrix or vector, starting at row `start`.
    pub fn every(&self, start: usize, step: usize) -> Result<Self> {
        let count = self.shape.first().copied().unwrap_or_default();
        let row_bytes = self.data.len().checked_div(count).unwrap_or_default();
        if step == 0 || row_bytes * count != self.data.len() {
            return Err(self.cannot(&format!("be read in steps of {step}")));
        }
        let rows = (start..count).step_by(step);
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        let bytes: Vec<u8> = rows.flat_map(|row| &self.data[row * row_bytes..(row + 1) * row_bytes]).copied().collect();
        Ok(Self { shape, data: Bytes::copy_of(&bytes)?, ..self.clone() })
    }

    /// Copies the transpose of a dense matrix, for layers that multiply from the other side, such as GPT-2's `Conv1D`.
    pub fn transposed(&self) -> Result<Self> {
        let (&[rows, columns], false) = (self.shape.as_slice(), self.dtype.is_quantized()) else {
            return Err(self.cannot("be transposed"));
        };
        let bytes = self.dtype.block_bytes();
        if self.dtype.tensor_bytes(&self.shape) != Some(self.data.len()) {
            return Err(self.cannot("be transposed, as its bytes are not its shape's"));
        }
        let value = |row: usize, column: usize| &self.data[(row * columns + column) * bytes..][..bytes];
        let turned = (0..columns).flat_map(|column| (0..rows).flat_map(move |row| value(row, column)));
        let turned: Vec<u8> = turned.copied().collect();
        Ok(Self { shape: vec![columns, rows], data: Bytes::copy_of(&turned)?, ..self.clone() })
    }

    fn cannot(&self, what: &str) -> Error {
        let (name, dtype, shape) = (quote(&self.name), self.dtype, &self.shape);
        Error::unsupported(format!("tensor {name} of type {dtype} and shape {shape:?} cannot {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    fn tensor(shape: &[usize]) -> RawTensor {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        RawTensor { name: "x".into(), dtype: Dtype::F32, shape: shape.into(), data: Bytes::copy_of(&bytes).unwrap() }
    }

    #[test]
    fn parts_lose_the_dimension_that_they_are_taken_along() {
        let part = tensor(&[2, 3, 2]).part(1).unwrap();
        assert_eq!((part.shape.as_slice(), part.to_f32().unwrap()), (&[3, 2][..], (6..12).map(|i| i as f32).collect()));
        assert!(tensor(&[2, 3]).part(2).is_err());
    }

    #[test]
    fn rows_are_taken_in_steps() {
        let odd = tensor(&[5, 2]).every(1, 2).unwrap();
        assert_eq!((odd.shape.as_slice(), odd.to_f32().unwrap()), (&[2, 2][..], vec![2.0, 3.0, 6.0, 7.0]));
        assert!(tensor(&[5]).every(0, 0).is_err());
    }

    #[test]
    fn matrices_are_turned() {
        let turned = tensor(&[2, 3]).transposed().unwrap();
        assert_eq!(
            (turned.shape.as_slice(), turned.to_f32().unwrap()),
            (&[3, 2][..], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
        );
        let quantized = RawTensor { dtype: Dtype::Q8_0, ..tensor(&[2, 3]) };
        assert!(quantized.transposed().unwrap_err().message.contains("cannot be transposed"));
    }
}
