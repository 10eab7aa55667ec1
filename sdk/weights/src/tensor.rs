//! Tensors as they are stored in their files.

use std::ops::Range;

use half::{bf16, f16};

use super::{Bytes, Dtype, quote};
use crate::{Error, Result};

/// A tensor in its file's storage format.
#[derive(Clone, Debug)]
pub struct RawTensor {
    pub name: String,
    pub dtype: Dtype,
    /// Row length last: `[out, in]` for a linear layer.
    pub shape: Vec<usize>,
    /// Exactly as many bytes as shape and type require, without any alignment.
    pub data: Bytes,
}

impl RawTensor {
    /// Returns the tensor, or an error if its shape differs.
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self> {
        if self.shape == expected {
            return Ok(self);
        }
        let (name, found) = (quote(&self.name), &self.shape);
        Err(Error::corrupt(format!("tensor {name} has the shape {found:?}, expected is {expected:?}"))
            .help("configuration and weights are of different models: download both again"))
    }

    /// Returns a range of the first dimension, without copying.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let count = self.shape.first().copied().unwrap_or_default();
        let row_bytes = self.data.len().checked_div(count).filter(|bytes| bytes * count == self.data.len());
        let data = row_bytes.and_then(|bytes| self.data.slice(rows.start * bytes..rows.end.checked_mul(bytes)?));
        let mut shape = self.shape.clone();
        match (data, shape.first_mut()) {
            (Some(data), Some(first)) if rows.start <= rows.end => {
                *first = rows.len();
                Ok(Self { name: self.name.clone(), dtype: self.dtype, shape, data })
            }
            _ => {
                let (name, shape) = (quote(&self.name), &self.shape);
                Err(Error::corrupt(format!("tensor {name} of shape {shape:?} has no rows {rows:?} to take apart")))
            }
        }
    }

    /// Returns the values of a dense tensor. Quantized tensors are never expanded; kernels read them in place.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        match self.dtype {
            Dtype::F32 => self.values(f32::from_le_bytes),
            Dtype::F16 => self.values(|bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => self.values(|bytes| bf16::from_le_bytes(bytes).to_f32()),
            quantized => {
                let name = quote(&self.name);
                Err(Error::invalid(format!("tensor {name} is stored as {quantized}, not as F32, F16 or BF16")))
            }
        }
    }

    /// Returns a tensor of these values under the same name, in the same type or, if that is quantized, in `f32`.
    pub fn with_values(&self, values: &[f32], shape: Vec<usize>) -> Result<Self> {
        let (dtype, data): (_, Vec<u8>) = match self.dtype {
            Dtype::F16 => (Dtype::F16, values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()),
            Dtype::BF16 => {
                (Dtype::BF16, values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect())
            }
            _ => (Dtype::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        };
        if dtype.tensor_bytes(&shape) != Some(data.len()) {
            let (name, count) = (quote(&self.name), values.len());
            return Err(Error::invalid(format!("{count} values from tensor {name} are not of the shape {shape:?}")));
        }
        Ok(Self { name: self.name.clone(), dtype, shape, data: Bytes::copy_of(&data)? })
    }

    fn values<const N: usize>(&self, value: impl Fn([u8; N]) -> f32) -> Result<Vec<f32>> {
        let (values, rest) = self.data.as_chunks::<N>();
        let expected = self.dtype.tensor_bytes(&self.shape);
        if !rest.is_empty() || expected != Some(self.data.len()) {
            let (name, bytes, shape) = (quote(&self.name), self.data.len(), &self.shape);
            return Err(Error::invalid(format!("tensor {name} has {bytes} bytes, which is not its shape {shape:?}")));
        }
        Ok(values.iter().map(|bytes| value(*bytes)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> RawTensor {
        RawTensor { name: name.into(), dtype, shape: shape.into(), data: Bytes::copy_of(data).unwrap() }
    }

    #[test]
    fn a_wrong_shape_names_tensor_and_both_shapes() {
        let tensor = tensor("model.norm.weight", Dtype::F32, &[2], &[0; 8]);
        let error = tensor.clone().expect_shape(&[3]).unwrap_err();
        assert_eq!(error.message, "tensor 'model.norm.weight' has the shape [2], expected is [3]");
        assert!(tensor.expect_shape(&[2]).is_ok());
    }

    #[test]
    fn dense_values_become_f32() {
        let full: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let half: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        let brain: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        for (dtype, data) in [(Dtype::F32, full), (Dtype::F16, half), (Dtype::BF16, brain)] {
            assert_eq!(tensor("x", dtype, &[2], &data).to_f32().unwrap(), [1.5, -2.0], "{dtype}");
        }
    }

    #[test]
    fn other_values_keep_the_type() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0] {
            let other = tensor("x", dtype, &[2], &[0; 8]).with_values(&[1.5, -2.0, 0.25], vec![3, 1]).unwrap();
            assert_eq!(other.dtype, if dtype == Dtype::Q8_0 { Dtype::F32 } else { dtype });
            assert_eq!((other.to_f32().unwrap(), other.shape), (vec![1.5, -2.0, 0.25], vec![3, 1]));
        }
        let error = tensor("x", Dtype::F16, &[2], &[0; 4]).with_values(&[1.0], vec![2]).unwrap_err();
        assert_eq!(error.message, "1 values from tensor 'x' are not of the shape [2]");
    }

    #[test]
    fn quantized_and_misshapen_values_do_not() {
        let quantized = tensor("x", Dtype::Q8_0, &[32], &[0; 34]).to_f32().unwrap_err();
        assert_eq!(quantized.message, "tensor 'x' is stored as Q8_0, not as F32, F16 or BF16");
        let misshapen = tensor("x", Dtype::F32, &[3], &[0; 8]).to_f32().unwrap_err();
        assert_eq!(misshapen.message, "tensor 'x' has 8 bytes, which is not its shape [3]");
    }

    #[test]
    fn rows_lie_where_the_tensor_lies() {
        let quantized = tensor("x", Dtype::Q8_0, &[3, 32], &[[1; 34], [2; 34], [3; 34]].concat());
        let rows = quantized.rows(1..3).unwrap();
        assert_eq!((rows.shape.as_slice(), &*rows.data), ([2, 32].as_slice(), &[[2; 34], [3; 34]].concat()[..]));
        assert!(std::ptr::eq(&*rows.data, &quantized.data[34..]), "copied");
        let error = quantized.rows(2..4).unwrap_err();
        assert_eq!(error.message, "tensor 'x' of shape [3, 32] has no rows 2..4 to take apart");
        let line = tensor("x", Dtype::Q8_0, &[32], &[0; 34]);
        assert!(line.rows(0..16).is_err(), "a block cannot be taken apart");
    }
}
